"""What a diagnosis costs beside json.loads, on traces of four shapes, in one run.

    python -m benchmarks.shapes --source TRACE --stacks-source TRACE --ranks TRACE TRACE [TRACE ...]
        [--megabytes 520] [--repeat 1]

The shapes: many short steps and few long ones of the first trace's events, few long ones with
Python's stacks of the second's, and one job of several ranks, whose collectives are matched and
replayed together. Each is made of shifted copies (`make_big_trace`), the ranks' files together as
large as the others. `json.loads` reads the same files and does nothing more. The worst shape is the
headline. Run it from the root of the repository; compare CPU seconds of the process tree.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ingest import (
    FEW_STEPS,
    JSON_LOADS,
    MEGABYTES,
    OUT,
    count_steps,
    diagnosis_failure,
    machine_line,
    stepscope,
)
from benchmarks.make_big_trace import make_big_trace
from benchmarks.measure import measure

RANK_STEPS = 20
"""Of each rank's trace: a recording of a job has few."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Traces to diagnose together."""

    name: str
    folder: Path

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """CPU seconds of both, and the peak of the diagnosis."""

    loads_s: float
    diagnose_s: float
    peak_bytes: int

    @property
    def share(self) -> float:
        return self.diagnose_s / self.loads_s


def made(
    out: Path, source: Path, stacks_source: Path, ranks: Sequence[Path], megabytes: float
) -> list[Shape]:
    """The traces of each shape, in a folder of their own."""
    shapes = []
    for name, origins, steps in (
        ("many short steps", [source], None),
        ("few long steps", [source], FEW_STEPS),
        ("few, with stacks", [stacks_source], FEW_STEPS),
        (f"{len(ranks)} ranks' collectives", ranks, RANK_STEPS),
    ):
        folder = out / name.replace(" ", "-").replace(",", "").replace("'", "")
        folder.mkdir(parents=True, exist_ok=True)
        for rank, origin in enumerate(origins):
            path = folder / f"rank{rank}.json"
            if not path.exists():
                make_big_trace(origin, path, megabytes=megabytes / len(origins), steps=steps)
        shapes.append(Shape(name=name, folder=folder))
    return shapes


def cost_of(shape: Shape, repeat: int) -> Cost:
    """The medians of both, taking turns."""
    loads, diagnoses, peaks = [], [], []
    for _ in range(repeat):
        print(f"... {shape.name}", file=sys.stderr, flush=True)
        read = [measure([sys.executable, "-c", JSON_LOADS, str(path)]) for path in shape.files]
        loads.append(sum(each.cpu_s for each in read))
        target = shape.files[0] if len(shape.files) == 1 else shape.folder
        done = measure(stepscope("diagnose", str(target), "--no-cache", "--format", "json"))
        failure = next((each.failure for each in read if each.failure), diagnosis_failure(done))
        if failure:
            raise SystemExit(f"{shape.name}: {failure}")
        diagnoses.append(done.cpu_s)
        peaks.append(done.peak_bytes)
    return Cost(
        loads_s=statistics.median(loads),
        diagnose_s=statistics.median(diagnoses),
        peak_bytes=max(peaks),
    )


def table(costs: Sequence[tuple[Shape, Cost]]) -> list[str]:
    """The worst first, then a line each."""
    worst, most = max(costs, key=lambda each: each[1].share)
    lines = [
        f"{most.share:.2f} of json.loads' CPU at worst ({worst.name}). {machine_line()}",
        "",
        "| | MB | steps | json.loads, CPU s | diagnose --no-cache | of json.loads | peak MB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for shape, cost in costs:
        size = sum(path.stat().st_size for path in shape.files) / 1e6
        lines.append(
            f"| {shape.name} | {size:.0f} | {count_steps(shape.files[0])} | {cost.loads_s:.2f} | "
            f"{cost.diagnose_s:.2f} | {cost.share:.2f} | {cost.peak_bytes / 1e6:.0f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--stacks-source", type=Path, required=True)
    parser.add_argument("--ranks", type=Path, nargs="+", required=True)
    parser.add_argument("--megabytes", type=float, default=MEGABYTES)
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    shapes = made(
        OUT / "shapes", options.source, options.stacks_source, options.ranks, options.megabytes
    )
    print("\n".join(table([(shape, cost_of(shape, options.repeat)) for shape in shapes])))


if __name__ == "__main__":
    main()
