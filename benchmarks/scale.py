"""What `stepscope diagnose` costs as a job grows: 8 to 512 ranks made out of one real one.

    python -m benchmarks.scale --source TRACE [--ranks 8 32 128 256 512] [--jobs N]
        [--cluster ADDRESS]

Run it from the root of the repository, with the python that has stepscope. The table goes to the
screen and to benchmarks/out/scale.md.

Each rank is the source with its times bent a little: the ends of its collectives stay where they
are, as they do in a real job, the work between them shifts by up to 2 % of the time between two
ends, and its clock is off by up to a millisecond. Its rank, the number of ranks and the
collectives' groups are those of the job. So the ranks' collectives match, and all ranks are alike
but for noise: nothing here says how a job behaves whose ranks differ.

CPU is user and system time of the command and all its processes. Memory is the kernel's high-water
mark (VmHWM): of the coordinator, which is the command itself, and of the largest of its workers.
With --cluster the workers are not its children, and their time and memory are not in the table.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import descendants, proc_bytes

OUT = Path(__file__).parent / "out"
SHIFT = 0.02
CLOCK_US = 1000.0
RANKS_TOLD = 30
"""Kineto writes this many ranks of a group, and dots for the rest."""
MAX_GROWTH = 1.3
"""A rank may cost this much more among the most than among fewer, and the cost still count as
linear."""
SAMPLE_S = 0.05
MEASURED = (
    ("wall_s", "ms of wall time", 1e3),
    ("cpu_s", "ms of CPU", 1e3),
    ("coordinator_bytes", "kB in the coordinator", 1e-3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one run of the command took."""

    num: int
    wall_s: float
    cpu_s: float
    coordinator_bytes: int
    worker_bytes: int
    replayed: str


class Peaks(threading.Thread):
    """The high-water marks of a process and of those below it, until stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.of: dict[int, int] = {}
        self._pid = pid
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            for pid in descendants(self._pid):
                self.of[pid] = max(self.of.get(pid, 0), proc_bytes(pid, "status", "VmHWM:"))

    def stop(self) -> None:
        self._ended.set()
        self.join()


def write_ranks(source: Path, folder: Path, num: int) -> None:
    """`num` ranks of one job, each the source bent a little."""
    with gzip.open(source) if source.suffix == ".gz" else source.open("rb") as file:
        trace = json.load(file)
    events = [event for event in trace["traceEvents"] if "ts" in event]
    start = np.array([event["ts"] for event in events], np.float64)
    end = start + np.array([event.get("dur", 0.0) for event in events], np.float64)
    is_end = [
        event.get("cat") == "kernel" and "Collective name" in event.get("args", {})
        for event in events
    ]
    fixed = np.unique(np.concatenate(([start.min()], end[np.array(is_end)], [end.max()])))
    told = list(range(num)) if num <= RANKS_TOLD else [*range(RANKS_TOLD - 1), "...", num - 1]
    for event in events:
        if "Group size" in event.get("args", {}):
            event["args"] |= {
                "Group size": num,
                "Process Group Ranks": f"[{', '.join(map(str, told))}]",
            }
    for rank in range(num):
        bent_start, bent_end = _bent(start, end, fixed, np.random.default_rng(rank))
        for event, ts, stop in zip(events, bent_start.tolist(), bent_end.tolist(), strict=True):
            event["ts"] = round(ts, 3)
            if "dur" in event:
                event["dur"] = round(stop - ts, 3)
        _number(trace, rank, num)
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


def _bent(start: Any, end: Any, fixed: Any, random: np.random.Generator) -> tuple[Any, Any]:
    """Starts and ends on a clock that runs unevenly between the fixed points, and is off by a
    constant."""
    middle, gap = (fixed[1:] + fixed[:-1]) / 2, np.diff(fixed)
    before = np.sort(np.concatenate((fixed, middle)))
    after = np.sort(np.concatenate((fixed, middle + gap * random.uniform(-SHIFT, SHIFT, len(gap)))))
    off = random.uniform(-CLOCK_US, CLOCK_US)
    return np.interp(start, before, after) + off, np.interp(end, before, after) + off


def _number(trace: dict[str, Any], rank: int, num: int) -> None:
    info = trace["distributedInfo"]
    info |= {"rank": rank, "world_size": num}
    for group in info.get("pg_config", ()):
        group |= {"pg_size": num, "ranks": list(range(num))}


def run_once(folder: Path, num: int, options: list[str]) -> Cost:
    """`diagnose` on a folder of ranks, from nothing."""
    command = [
        sys.executable,
        "-m",
        "stepscope",
        "diagnose",
        str(folder),
        "--format",
        "json",
        "--no-cache",
        *options,
    ]
    with tempfile.TemporaryFile() as stdout:
        began = time.perf_counter()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout)
        peaks = Peaks(child.pid)
        peaks.start()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        wall_s = time.perf_counter() - began
        peaks.stop()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{' '.join(command)} failed with exit code {child.returncode}")
        stdout.seek(0)
        said = json.load(stdout)
    assert len(said["ranks"]) == num, f"{num} ranks were given, {len(said['ranks'])} came back"
    replayed = next(
        (
            note.split(" ranks were replayed")[0]
            for note in said["notes"]
            if "were replayed" in note
        ),
        "all, or none",
    )
    coordinator = peaks.of.pop(child.pid, 0)
    return Cost(
        num=num,
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        coordinator_bytes=coordinator,
        worker_bytes=max(peaks.of.values(), default=0),
        replayed=replayed,
    )


def table(costs: list[Cost]) -> str:
    head = "| ranks | wall s | CPU s | coordinator MB | largest worker MB | replayed together |"
    rows = []
    for c in costs:
        memory = f"{c.coordinator_bytes / 1e6:.0f} | {c.worker_bytes / 1e6:.0f}"
        rows.append(f"| {c.num} | {c.wall_s:.1f} | {c.cpu_s:.1f} | {memory} | {c.replayed} |")
    return "\n".join([head, "|---:|---:|---:|---:|---:|---|", *rows])


def words(costs: list[Cost]) -> list[str]:
    """Whether a rank more costs the same wherever it is added: the last stretch of the table beside
    the one before it.

    The first rows say little: the peak of the replay, which is the same for any number of ranks,
    covers what few ranks take.
    """
    if len(costs) < 3:
        return ["Too few numbers of ranks to tell whether the cost is linear."]
    first, before, last = costs[-3:]
    said = []
    for name, unit, scale in MEASURED:
        early = (getattr(before, name) - getattr(first, name)) / (before.num - first.num) * scale
        late = (getattr(last, name) - getattr(before, name)) / (last.num - before.num) * scale
        verdict = "linear, or better" if late <= MAX_GROWTH * early else "NOT LINEAR"
        said.append(
            f"A rank more costs {early:.1f} {unit} from {first.num} to {before.num} ranks, "
            f"{late:.1f} from {before.num} to {last.num}: {verdict}."
        )
    under = "under" if last.coordinator_bytes < 1e9 else "NOT under"
    said.append(f"The coordinator stays {under} 1 GB at {last.num} ranks.")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--source",
        type=Path,
        required=True,
        help="a real rank's trace, with distributedInfo and collectives",
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32, 128, 256, 512])
    parser.add_argument("--jobs")
    parser.add_argument("--cluster")
    arguments = parser.parse_args()
    options = (
        ["--jobs", arguments.jobs]
        if arguments.jobs
        else ["--cluster", arguments.cluster]
        if arguments.cluster
        else []
    )
    costs = []
    for num in sorted(arguments.ranks):
        with tempfile.TemporaryDirectory(prefix="stepscope-scale-") as folder:
            write_ranks(arguments.source, Path(folder), num)
            costs.append(run_once(Path(folder), num, options))
        print(table(costs[-1:]).splitlines()[-1], flush=True)
    head = f"{arguments.source.name}, {os.cpu_count()} cores, Python {platform.python_version()}"
    text = "\n\n".join([head, table(costs), "\n".join(words(costs))])
    OUT.mkdir(exist_ok=True)
    (OUT / "scale.md").write_text(text + "\n")
    print(f"\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
