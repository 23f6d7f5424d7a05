"""Do the ways out of memory free what the report says, and are they enough where it says so?

    python -m benchmarks.ways_out record FILE [--seconds N] [--jobs A,B] [--at-once N]
        [--known FILE] [--small]
    python -m benchmarks.ways_out score [FILE]

`record` needs a GPU, torch and the standard library alone. Each job of benchmarks.memory_job is
run as it is and with each way applied: peaks of the allocator and the step's time. Under several
limits it dies under the capture, and what that wrote is kept; then each way is run under the same
limit, where the peaks do not settle by themselves whether it is enough. Two ranks on the one device
die as data parallel and are sharded; one job dies because another process has most of the device.
With `--known` the peaks of an earlier recording are taken, and what ran under its limits.
`score` explains the kept failures as a report does, and holds each way against what was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

LIMITS = (0.93, 0.75, 0.5)
RAGGED_LIMITS = (1.08, 1.02, 0.9, 0.6)
"""Of the peak of the job as it is; tensors of many sizes leave pieces that nothing fits in."""
RANKS, RANKS_JOB, RANKS_LIMIT = 2, "text", 0.8
BESIDE_JOB, LEFT = "text", 0.7
"""Of the job's peak, that another process leaves of the device."""
RAGGED_STEPS, TIMED_STEPS = 12, 8
TIMED = ("as-it-is", "checkpoint-3", "checkpoint-10", "split-2", "split-4", "fused", "chunked-loss")
ONE_S = 60.0
WORDS = {True: "yes", False: "no", None: ""}
FILE = Path(__file__).parents[1] / "lab" / "memory" / "ways_out.json"


class Recorder:
    """Fills one document, and stops beginning when its time is over."""

    def __init__(
        self, seconds: float, at_once: int, is_small: bool, known: dict[str, Any] | None = None
    ) -> None:
        self.until = time.monotonic() + seconds
        self.at_once, self.is_small, self.known = at_once, is_small, known or {"jobs": {}}
        self.document: dict[str, Any] = {"torch": None, "jobs": {}}

    def record(self, names: Sequence[str]) -> None:
        import torch

        from benchmarks.memory_job import AS_IT_IS, EXPANDABLE, JOBS

        self.document["torch"] = str(torch.__version__)
        self.peaks(names)
        for part in (self.ranks, self.beside, self.times):
            part()
        jobs = self.document["jobs"]
        limited = [
            (name, round(share * jobs[name]["ways"][AS_IT_IS]["allocated"]))
            for name in names
            for share in (RAGGED_LIMITS if JOBS[name].is_ragged else LIMITS)
            if jobs[name]["ways"][AS_IT_IS].get("allocated")
        ]
        with ThreadPoolExecutor(self.at_once) as pool:
            dead = list(pool.map(lambda pair: self.dies(*pair), limited))
        asked: list[tuple[str, str, int]] = []
        for (name, limit), notes in zip(limited, dead, strict=True):
            runs = self.known_runs(name, limit)
            jobs[name]["failures"].append({"limit": limit, "notes": notes, "runs": runs})
            for way in (*JOBS[name].ways, EXPANDABLE) if notes else ():
                if runs.get(way) is None:
                    runs[way] = settled(jobs[name]["ways"].get(way, {}), limit)
                if runs[way] is None:
                    asked.append((name, way, limit))
        for (name, way, limit), found in zip(asked, self.trials(asked), strict=True):
            of_it = next(each for each in jobs[name]["failures"] if each["limit"] == limit)
            of_it["runs"][way] = None if "skipped" in found else "failed" not in found

    def peaks(self, names: Sequence[str]) -> None:
        from benchmarks.memory_job import AS_IT_IS, JOBS

        jobs = self.document["jobs"]
        for name in names:
            ways = self.known["jobs"].get(name, {}).get("ways", {})
            jobs[name] = {"ways": dict(ways), "failures": []}
        wanted = [
            (name, way)
            for name in names
            for way in (AS_IT_IS, *JOBS[name].ways)
            if way not in jobs[name]["ways"]
        ]
        # Jobs in turn, so that those of the largest do not all run at once.
        wanted.sort(key=lambda pair: pair[1])
        for (name, way), found in zip(wanted, self.trials(wanted), strict=True):
            jobs[name]["ways"][way] = found | {"step_ms": None}

    def known_runs(self, name: str, limit: int) -> dict[str, Any]:
        known = self.known["jobs"].get(name, {}).get("failures", [])
        return next((dict(each["runs"]) for each in known if each["limit"] == limit), {})

    def trials(self, wanted: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
        """Each in a process of its own, forked from one that has imported torch and no more."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        with context.Pool(self.at_once, maxtasksperchild=1) as pool:
            arguments = [(self.until, self.is_small, *each) for each in wanted]
            left_s = max(self.until + ONE_S - time.monotonic(), 1.0)
            return pool.starmap_async(trial, arguments, chunksize=1).get(left_s)

    def words(self, name: str, way: str, *more: object) -> list[str]:
        words = [sys.executable, "-m", "benchmarks.memory_job", name, way, *map(str, more)]
        return [*words, "--small"] if self.is_small else words

    def dies(self, name: str, limit: int) -> list[dict[str, Any]]:
        """What the capture wrote of it; nothing where it did not die."""
        from benchmarks.memory_job import AS_IT_IS

        steps = num_steps(name)
        return self.captured(self.words(name, AS_IT_IS, "--limit", limit, "--steps", steps), 1)

    def captured(self, words: list[str], num_ranks: int) -> list[dict[str, Any]]:
        from stepscope.process.launch import environment, prepare
        from stepscope.protocol.options import Options
        from stepscope.protocol.run_folder import FAILURE_NAME

        with tempfile.TemporaryDirectory() as folder:
            prepare(Path(folder), words, Options(), "benchmark")
            self.ranks_of(words, num_ranks, environment(Path(folder)))
            paths = sorted(Path(folder).glob(FAILURE_NAME.format(pid="*")))
            return [json.loads(path.read_text()) for path in paths]

    def ranks_of(
        self, words: list[str], num_ranks: int, given: dict[str, str]
    ) -> list[dict[str, Any]]:
        """What each process printed; where one has died the others wait for it, and are ended."""
        if time.monotonic() > self.until:
            return []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        several = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1"}
        several["MASTER_PORT"] = str(port)
        started = []
        for rank in range(num_ranks):
            more = {**several, "RANK": str(rank)} if num_ranks > 1 else {}
            started.append(
                subprocess.Popen(
                    words,
                    env={**given, **more},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        until = time.monotonic() + ONE_S
        while any(each.poll() is None for each in started) and time.monotonic() < until:
            time.sleep(0.1)
            if any(each.poll() not in (None, 0) for each in started):
                until = min(until, time.monotonic() + 10.0)
        for each in started:
            if each.poll() is None:
                each.kill()
        texts = [each.communicate()[0] for each in started]
        return [json.loads(text) for text in texts if text.startswith("{")]

    def ranks(self) -> None:
        from benchmarks.memory_job import AS_IT_IS, SHARDED

        of_it: dict[str, Any] = {"num_ranks": RANKS, "ways": {}, "failures": []}
        self.document["ranks"] = {RANKS_JOB: of_it}
        for way in (AS_IT_IS, SHARDED):
            told = self.ranks_of(self.words(RANKS_JOB, way), RANKS, dict(os.environ))
            of_it["ways"][way] = max(told, key=lambda each: each["allocated"] or 0, default={})
        peak = of_it["ways"][AS_IT_IS].get("allocated")
        if peak:
            limit = round(RANKS_LIMIT * peak)
            words = self.words(RANKS_JOB, AS_IT_IS, "--limit", limit)
            notes = self.captured(words, RANKS)
            told = self.ranks_of(
                self.words(RANKS_JOB, SHARDED, "--limit", limit), RANKS, dict(os.environ)
            )
            runs = {SHARDED: len(told) == RANKS}
            of_it["failures"].append({"limit": limit, "notes": notes, "runs": runs})

    def beside(self) -> None:
        """With another process that leaves too little; once that has ended, it runs."""
        from benchmarks.memory_job import AS_IT_IS

        base = self.document["jobs"].get(BESIDE_JOB, {}).get("ways", {}).get(AS_IT_IS, {})
        if not base.get("allocated") or time.monotonic() > self.until:
            return
        code = (
            "import torch, time\n"
            f"held = torch.empty(torch.cuda.mem_get_info()[0] - {round(LEFT * base['allocated'])},"
            " dtype=torch.uint8, device='cuda')\n"
            "print('held', flush=True)\ntime.sleep(600)\n"
        )
        other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        try:
            is_held = other.stdout.readline().startswith("held")
            notes = self.captured(self.words(BESIDE_JOB, AS_IT_IS), 1) if is_held else []
        finally:
            other.kill()
            other.wait()
        told = self.ranks_of(self.words(BESIDE_JOB, AS_IT_IS), 1, dict(os.environ))
        self.document["beside"] = {"notes": notes, "runs_without": len(told) == 1}

    def times(self) -> None:
        """One after the other in one process, with the device to itself."""
        jobs = self.document["jobs"]
        wanted = [(name, way) for name in jobs for way in TIMED if way in jobs[name]["ways"]]
        context = multiprocessing.get_context("forkserver")
        with context.Pool(1) as pool:
            begun = pool.starmap_async(
                trial, [(self.until, self.is_small, *each, None, TIMED_STEPS) for each in wanted]
            )
            found = begun.get(max(self.until + ONE_S - time.monotonic(), 1.0))
        for (name, way), each in zip(wanted, found, strict=True):
            jobs[name]["ways"][way]["step_ms"] = each.get("step_ms")


def settled(found: dict[str, Any], limit: int) -> bool | None:
    """Whether it runs under the limit, by its peaks without one; None where they do not say."""
    if found.get("allocated") is None:
        return None
    if found["allocated"] > limit:
        return False
    return True if found["reserved"] <= limit else None


def num_steps(name: str) -> int:
    from benchmarks.memory_job import JOBS, STEPS

    return RAGGED_STEPS if JOBS[name].is_ragged else STEPS


def trial(
    until: float,
    is_small: bool,
    name: str,
    way: str,
    limit: int | None = None,
    steps: int | None = None,
) -> dict[str, Any]:
    import torch

    from benchmarks.memory_job import JOBS, measured, small

    if time.monotonic() > until:
        return {"skipped": "no time"}
    job = small(JOBS[name]) if is_small else JOBS[name]
    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
        try:
            return measured(job, way, limit, steps or num_steps(name))
        except torch.OutOfMemoryError as problem:
            return {"failed": str(problem)[:200]}
        except (RuntimeError, AttributeError, ValueError) as problem:
            return {"skipped": repr(problem)[:300]}
        finally:
            torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way of one failure: what is said, and what was measured."""

    job: str
    limit: int
    phase: str
    way: str
    is_shown: bool
    """Among the cheapest, which a report has."""
    said: int | None
    real: int | None
    """The peak with it, in bytes."""
    is_enough: bool | None
    runs: bool | None

    @property
    def off(self) -> float | None:
        return self.said / self.real - 1 if self.said and self.real else None

    @property
    def cells(self) -> list[str]:
        way = f"{self.way} *" if self.is_shown else self.way
        off = "" if self.off is None else f"{self.off:+.1%}"
        sizes = (f"{size / 1e9:.2f}" if size else "" for size in (self.said, self.real))
        enough = (WORDS[self.is_enough], WORDS[self.runs])
        return [self.job, f"{self.limit / 1e9:.2f}", self.phase, way, *sizes, off, *enough]


def rows(document: dict[str, Any]) -> Iterator[Row]:
    for name, job in document["jobs"].items():
        for failure in job["failures"]:
            for notes in failure["notes"][:1]:
                yield from _rows(name, job["ways"], failure, notes, 1)
    for name, job in document.get("ranks", {}).items():
        for failure in job["failures"]:
            for notes in failure["notes"][:1]:
                several = _rows(name, job["ways"], failure, notes, job["num_ranks"])
                yield from (row for row in several if row.way == "sharded")


def _rows(
    name: str, ways: dict[str, Any], failure: dict[str, Any], notes: dict[str, Any], num_ranks: int
) -> Iterator[Row]:
    from benchmarks.memory_job import AS_IT_IS, JOBS, way_name
    from stepscope.analyses.memory.ways_out import MAX_WAYS, every_way, explained
    from stepscope.analyses.run.metadata import recorded_failure

    # Older recordings lack what the capture writes since; the job's shapes say it.
    known: dict[str, Any] = {"head_weight_bytes": JOBS[name].head_weight_bytes}
    if "block" in notes and not JOBS[name].is_ragged:
        known["input_bytes"] = JOBS[name].input_bytes
    recorded = recorded_failure({**known, **notes})
    assert recorded is not None
    report, moments = explained(recorded, name)
    phase = f"{report.phase or '?'} of step {report.step}"
    if moments is not None:
        needs = max(moment.size_bytes for moment in moments)
        yield _row(name, failure, phase, AS_IT_IS, needs, ways)
    for place, way in enumerate(every_way(report, num_ranks, moments)):
        applied = way_name(way.action) or way.action
        row = _row(name, failure, phase, applied, way.peak_bytes, ways)
        runs = _runs(applied, failure["runs"])
        yield replace(row, is_shown=place < MAX_WAYS, is_enough=way.is_enough, runs=runs)


def measured_peak(job: Any, way: str, ways: dict[str, Any]) -> int | None:
    """Of as many blocks, on a line between those that ran: each frees as much as the others."""
    if not way.startswith("checkpoint-"):
        peak: int | None = ways.get(way, {}).get("allocated")
        return peak
    number = float(way.removeprefix("checkpoint-")) / 10 * job.num_blocks
    peaks = [
        (round(job.num_blocks * tenths / 10), ways[name]["allocated"])
        for tenths in range(11)
        if (name := f"checkpoint-{tenths}" if tenths else "as-it-is") in ways
    ]
    below = max((peak for peak in peaks if peak[0] <= number + 1e-6), default=None)
    above = min((peak for peak in peaks if peak[0] >= number - 1e-6), default=None)
    if below is None or above is None:
        return None
    share = (number - below[0]) / max(above[0] - below[0], 1)
    return int(below[1] + share * (above[1] - below[1]))


def _runs(way: str, runs: dict[str, bool | None]) -> bool | None:
    """Where so many blocks were not tried: fewer were enough, or more were not."""
    if way in runs or not way.startswith("checkpoint-"):
        return runs.get(way)
    tenths = float(way.removeprefix("checkpoint-"))
    tried = {float(name[11:]): ran for name, ran in runs.items() if name.startswith("checkpoint-")}
    if any(ran for number, ran in tried.items() if number <= tenths):
        return True
    return False if any(ran is False for number, ran in tried.items() if number >= tenths) else None


def _row(
    name: str, failure: dict[str, Any], phase: str, way: str, said: int | None, ways: dict[str, Any]
) -> Row:
    from benchmarks.memory_job import JOBS

    return Row(
        job=name,
        limit=failure["limit"],
        phase=phase,
        way=way,
        is_shown=False,
        said=said,
        real=measured_peak(JOBS[name], way, ways),
        is_enough=None,
        runs=None,
    )


def score(path: Path) -> None:
    print("| job | limit, GB | died in | way | peak, said | peak | off | enough | runs |")
    print("|---|---:|---|---|---:|---:|---:|---|---|")
    known = [row for row in _printed(path) if None not in (row.is_enough, row.runs)]
    right = sum(row.is_enough == row.runs for row in known)
    hoped = sum(bool(row.is_enough) and not row.runs for row in known)
    print(f"\nenough or not: {right} of {len(known)} right; {hoped} are said to be enough, and die")


def _printed(path: Path) -> Iterator[Row]:
    for row in rows(json.loads(path.read_text())):
        print(f"| {' | '.join(row.cells)} |")
        yield row


def main() -> None:
    from benchmarks.memory_job import JOBS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "score"))
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--known", type=Path, help="an earlier recording")
    parser.add_argument("--small", action="store_true", help="for a machine without a device")
    arguments = parser.parse_args()
    if arguments.what == "score":
        score(arguments.file)
        return
    known = json.loads(arguments.known.read_text()) if arguments.known else None
    recorder = Recorder(arguments.seconds, arguments.at_once, arguments.small, known)
    try:
        recorder.record(arguments.jobs.split(","))
    finally:
        arguments.file.write_text(json.dumps(recorder.document, indent=1) + "\n")


if __name__ == "__main__":
    main()
