"""The lab's loops through the capture, unedited: are verdicts those of bare traces, and predictions
better?

    python -m benchmarks.captured record OUT [--seconds N] [--cases A,B] [--each S]
        [--command "..."]
    python -m benchmarks.captured score OUT [--truth lab/truth.json]
    python -m benchmarks.captured habits OUT [--cases A,B] [--each S] [--rounds N] [--on-cores]
    python -m benchmarks.captured planted OUT [--cases A,B]

`record` needs a GPU. It plays each case's slow and fixed run under the capture (the command gets
the case and the variant after it; `python -m lab.play` without one) and keeps OUT/CASE.VARIANT, a
run folder each, recordings compressed. It needs torch and the standard library alone. `score`
diagnoses them with nothing else given, and compares with the truth and with the step time that the
truth has.

`habits` does the same with the jobs of benchmarks.slow_jobs that stop their steps (saves,
evaluations, collections, logs), on any machine: records the slow run, and then times slow and fixed
in turn with nothing attached, into OUT/truth.json, which `score` takes. Where other programs share
the machine, `--on-cores` compares the time that the job has on cores, which they change little.

`planted` runs 200 short steps under `stepscope run`, with stretches of known length in them (each
kind by itself, and all at once): is each accounted for within 2 % of what the job's own clock says,
and under its name?
"""

from __future__ import annotations

import argparse
import gzip
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from stepscope.process.launch import environment, prepare
from stepscope.protocol.options import Options

LIMIT_S = 60
CLOSE = 0.02
"""Of the planted seconds."""


def record(
    out: Path,
    command: list[str],
    names: list[str],
    seconds: float,
    each: float,
    variants: tuple[str, ...] = ("slow", "fixed"),
) -> None:
    until = time.monotonic() + seconds
    for name in names:
        for variant in variants:
            if time.monotonic() > until:
                print(f"no time left for {name}.{variant}", flush=True)
                continue
            folder, begun = out / f"{name}.{variant}", time.monotonic()
            folder.mkdir(parents=True)
            words = [*command, name, variant, "--seconds", str(each)]
            prepare(folder, words, Options(), "benchmark")
            try:
                done = subprocess.run(
                    words,
                    env=environment(folder),
                    timeout=LIMIT_S,
                    check=False,
                    capture_output=True,
                    text=True,
                )
                code, tail = done.returncode, done.stderr[-600:] if done.returncode else ""
            except subprocess.TimeoutExpired:
                code, tail = -1, "ran past its limit"
            print(
                f"{name}.{variant}: exit {code}, {time.monotonic() - begun:.1f} s {tail}",
                flush=True,
            )
            for trace in folder.glob("rank-*/window-*.json"):
                with (
                    trace.open("rb") as raw,
                    gzip.open(f"{trace}.gz", "wb", compresslevel=6) as packed,
                ):
                    shutil.copyfileobj(raw, packed)
                trace.unlink()


def habits(out: Path, names: list[str], each: float, rounds: int, *, on_cores: bool) -> None:
    from benchmarks.slow_jobs import CAUSES

    names = names or list(CAUSES)
    command = [sys.executable, "-m", "benchmarks.slow_jobs"]
    record(out, command, names, LIMIT_S * len(names), each, ("slow",))
    cases: dict[str, Any] = {}
    for name in names:
        times: dict[str, list[float]] = {"slow": [], "fixed": []}
        for number in range(2 * rounds):
            variant = ("slow", "fixed")[number % 2]
            times[variant].append(_seconds_a_step([*command, name, variant], each, on_cores))
        speedups = [a / b for a, b in zip(times["slow"], times["fixed"], strict=True)]
        cases[name] = {
            "bounds": ["host", "compute", "memory"],
            "causes": [CAUSES[name]],
            "speedup": statistics.median(speedups),
            "speedups": sorted(speedups),
            **{f"{variant}_ms": 1e3 * statistics.median(spent) for variant, spent in times.items()},
        }
        print(name, json.dumps(cases[name]), flush=True)
        (out / "truth.json").write_text(json.dumps({"cases": cases}, indent=1))


def _seconds_a_step(command: list[str], each: float, on_cores: bool) -> float:
    from benchmarks.slow_jobs import SPEED

    done = subprocess.run(
        [*command, "--seconds", str(each)],
        timeout=LIMIT_S,
        check=True,
        capture_output=True,
        text=True,
    )
    wall, own = done.stdout.rpartition(SPEED)[2].split()
    return float(own if on_cores else wall)


def score(out: Path, truths: dict[str, Any]) -> None:
    from benchmarks.truth import CLOSE
    from stepscope.errors import StepscopeError
    from stepscope.pipeline.options import Options
    from stepscope.pipeline.recording import diagnose

    print("| run | step, true | step, measured | bound | named | cause at | predicted | true |")
    print("|---|---|---|---|---|---|---|---|")
    counts = dict.fromkeys(("named", "cases", "found", "faults", "close"), 0)
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        name, variant = folder.name.rsplit(".", 1)
        truth = truths.get(name)
        if truth is None or f"{variant}_ms" not in truth:
            continue
        try:
            found = diagnose([str(folder)], Options(use_cache=False, jobs=1))
        except StepscopeError as problem:
            print(f"| {folder.name} | | | {problem} | | | | |")
            continue
        step = "-" if found.step.ms is None else f"{found.step.ms:.2f}"
        row = [
            folder.name,
            f"{truth[f'{variant}_ms']:.2f}",
            f"{step} ({found.step.source})",
            found.verdict.bound,
        ]
        if variant == "slow":
            row += _judged(found, truth, counts, CLOSE)
        print(f"| {' | '.join(row)} |", flush=True)
    print(
        f"\nnamed {counts['named']}/{counts['cases']}, found "
        f"{counts['found']}/{counts['faults']}, close {counts['close']}"
    )


def _judged(found: Any, truth: dict[str, Any], counts: dict[str, int], close: float) -> list[str]:
    named = found.verdict.bound in truth["bounds"]
    counts["cases"] += 1
    counts["named"] += named
    codes = [finding.code for finding in found.findings]
    places = [codes.index(cause) for cause in truth["causes"] if cause in codes]
    speedup = truth.get("speedup", truth.get("true_speedup"))
    if not truth["causes"]:
        return ["yes" if named else "NO", "-", "-", "-" if speedup is None else f"{speedup:.2f}"]
    counts["faults"] += 1
    counts["found"] += bool(places) and min(places) < 3
    if not places:
        return ["yes" if named else "NO", "-", "-", f"{speedup:.2f}"]
    predicted = found.findings[min(places)].predicted_speedup
    counts["close"] += abs(predicted / speedup - 1) <= close
    return ["yes" if named else "NO", str(min(places) + 1), f"{predicted:.2f}", f"{speedup:.2f}"]


def planted(out: Path, names: list[str]) -> None:
    from benchmarks.slow_jobs import PLANTS, TRUTH

    print("| planted | part | true s | accounted s | off | |")
    print("|---|---|---|---|---|---|")
    off = []
    for name in names or [*PLANTS, ",".join(PLANTS)]:
        folder = out / name.replace(",", "+")
        job = [sys.executable, "-m", "benchmarks.slow_jobs", "planted", "--plant", name]
        words = [sys.executable, "-m", "stepscope", "run", "--out", str(folder), "--", *job]
        done = subprocess.run(
            words, timeout=3 * LIMIT_S, check=True, capture_output=True, text=True
        )
        truth = json.loads(done.stdout.rpartition(TRUTH)[2])
        whole = json.loads((folder / "diagnosis.json").read_text())["whole_run"]
        for what, seconds in truth.items():
            accounted = _accounted(whole, what)
            off.append(abs(accounted / seconds - 1))
            verdict = "" if off[-1] <= CLOSE else "OFF"
            row = (name, what, f"{seconds:.3f}", f"{accounted:.3f}", f"{off[-1]:.1%}", verdict)
            print(f"| {' | '.join(row)} |", flush=True)
    print(f"\n{sum(each <= CLOSE for each in off)}/{len(off)} within {CLOSE:.0%}")


def _accounted(whole: dict[str, Any], what: str) -> float:
    """Of slow steps those that come in turn, as they were planted; the rest is the machine's."""
    from benchmarks.slow_jobs import STALL_EVERY

    parts, every = whole["parts"], "every_steps"
    if what == "stalls":
        parts = [each | {"what": what} for each in whole["stalls"] if each[every] == STALL_EVERY]
    return float(sum(part["seconds"] for part in parts if part["what"] == what))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "score", "habits", "planted"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", default="")
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--each", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs, slow and fixed")
    parser.add_argument("--on-cores", action="store_true")
    parser.add_argument("--truth", type=Path, default=Path("lab/truth.json"))
    parser.add_argument(
        "--command",
        default=f"{sys.executable} -m lab.play",
        help="gets the case and the variant after it",
    )
    arguments = parser.parse_args()
    names = [name for name in arguments.cases.split(",") if name]
    if arguments.what == "habits":
        habits(arguments.out, names, arguments.each, arguments.rounds, on_cores=arguments.on_cores)
        return
    if arguments.what == "planted":
        planted(arguments.out, names)
        return
    truths = json.loads(arguments.truth.read_text())["cases"]
    if arguments.what == "score":
        score(arguments.out, truths)
        return
    names = names or [name for name in truths if "/" not in name]
    record(arguments.out, shlex.split(arguments.command), names, arguments.seconds, arguments.each)


if __name__ == "__main__":
    main()
