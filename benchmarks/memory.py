"""How near the memory of a trace is to torch's own counters: `python -m benchmarks.memory`.

The lab's recordings (benchmarks/recordings.py) have traces with the allocator's events of real jobs
on an H200, and lab/memory/truth.json what the same jobs measured of themselves: bytes of their live
tensors, peaks at larger batches, the largest batch that ran under a limit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recordings import LAB, demand, recorded
from stepscope.analyses.memory.use import memory_of
from stepscope.pipeline.contexts import context_of
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source

FOLDER = LAB / "memory"
Pair = tuple[float, float]
"""What was said, and what was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    kinds: dict[str, Pair]
    phases: dict[str, Pair]
    batches: dict[float, Pair]
    fits: tuple[Pair, ...]
    """Batches of jobs that begin with them,"""
    fits_after_others: tuple[Pair, ...]
    """and in a process that has trained smaller ones, and other models, before."""


def truth_of(name: str) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((FOLDER / "truth.json").read_text())["models"][name]
    return truth


def compared(path: Path, name: str) -> Recorded:
    truth = truth_of(name)
    source = Source(path=path, label=name)
    use, fit = memory_of(context_of(read_trace(source, use_cache=False), None))
    assert use is not None
    assert fit is not None
    assert use.most is not None
    use.self_check()
    peaks = {phase.phase: phase.peak_bytes or 0 for phase in use.phases} | {"all": use.peak_bytes}
    sizes = dict(truth["rounded_bytes"])
    if "activations_bytes" in truth:
        sizes["activations"] = truth["activations_bytes"]

    def fitting(rows: list[dict[str, int]]) -> tuple[Pair, ...]:
        largest = [fit.largest(row["limit"], use.largest_batch(row["limit"]) or 1) for row in rows]
        return tuple(
            (truth["batch"] * (times or 0), row["largest"])
            for times, row in zip(largest, rows, strict=True)
        )

    return Recorded(
        kinds={kind: (use.most.get(kind, 0), size) for kind, size in sizes.items()},
        phases={phase: (peaks[phase], size) for phase, size in truth.get("peak_bytes", {}).items()},
        batches={
            row["batch"] / truth["batch"]: (
                use.peak_at(row["batch"] / truth["batch"]) or 0,
                row["peak_allocated"],
            )
            for row in truth["timed"]
        },
        fits=fitting(truth["fits"]),
        fits_after_others=fitting(truth["fits_after_others"]),
    )


def main() -> None:
    demand([FOLDER])
    print(
        "| job | weights | gradients | optimizer | activations | peaks at larger batches "
        "| fits | fits, after others |"
    )
    print("|---|---:|---:|---:|---:|---:|---|---|")
    for path in sorted(recorded(FOLDER).glob("*.gz")):
        name = path.name.removesuffix(".pt.trace.json.gz")
        row = compared(path, name)
        kinds = " | ".join(
            _error(row.kinds[kind]) if kind in row.kinds else ""
            for kind in ("weights", "gradients", "optimizer", "activations")
        )
        worst = max(row.batches.values(), key=lambda pair: abs(pair[0] / pair[1] - 1))
        fits, after = (
            ", ".join(f"{said:.1f} ({real:.0f})" for said, real in pairs)
            for pairs in (row.fits, row.fits_after_others)
        )
        print(f"| {name} | {kinds} | {_error(worst)} | {fits} | {after} |")


def _error(pair: Pair) -> str:
    said, real = pair
    return f"{said / real - 1:+.1%}" if real else f"{said / 1e6:.1f} MB of none"


if __name__ == "__main__":
    main()
