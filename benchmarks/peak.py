"""Checks where the peak goes, on every recording below folders.

    python -m benchmarks.peak FOLDER... [--only TEXT]

Each rank's waterfall and the job's must hold no negative part and sum to the whole, to the
nanosecond; the kernels' parts must be the step's compute; and where MFU is known, what was achieved
and what the precision costs must be no more than MFU, over all recorded steps: less where a
kernel takes less time than its FLOPs need at the peak (Winograd). One line each: the largest parts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.agree import cases_below
from benchmarks.recordings import demand
from stepscope.core.facts import Facts, RankFacts
from stepscope.core.peak import PeakWaterfall
from stepscope.errors import StepscopeError
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import Recording

MFU_TOLERANCE = 0.01
"""Kernels that began before a step's window are in it by their share."""


def faults(facts: Facts) -> Iterator[str]:
    """What does not add up."""
    job = facts.peak_waterfall
    made = [rank.peak_waterfall for rank in facts.ranks if rank.peak_waterfall is not None]
    for where, waterfall in (*enumerate(made), *((("job", job),) if job is not None else ())):
        if sum(part.ns for part in waterfall.parts) != waterfall.total_ns:
            yield f"{where}: the parts do not sum to the whole"
        if any(part.ns < 0 for part in waterfall.parts):
            yield f"{where}: a negative part"
    for rank in facts.ranks:
        has_steps = bool(rank.steps.windows) and rank.steps.where == "device"
        if has_steps != (rank.peak_waterfall is not None):
            yield f"rank {rank.rank}: no waterfall, or one of no step"
        if rank.compute_split is None or rank.partition is None:
            continue
        for at, compute in enumerate(rank.partition.parts["compute"]):
            values = [per_window[at] for per_window in rank.compute_split.parts.values()]
            if sum(values) != compute or min(values) < 0:
                yield f"rank {rank.rank}, window {at}: {values} are not {compute}"
        yield from _mfu_faults(rank)


def _mfu_faults(rank: RankFacts) -> Iterator[str]:
    split, mfu, step_ns = rank.compute_split, rank.roofline.mfu, rank.steps.step_interval_ns
    if split is None or mfu is None or not step_ns or not rank.steps.is_step_interval:
        return
    used_ns = sum(sum(split.parts[part]) for part in ("achieved", "precision"))
    by_split = used_ns / len(rank.steps.windows) / step_ns
    if by_split > (1 + MFU_TOLERANCE) * mfu:
        yield f"rank {rank.rank}: MFU is {mfu:.3%}, and {by_split:.3%} by the waterfall"


def line(waterfall: PeakWaterfall) -> str:
    shown = sorted(waterfall.parts, key=lambda part: -part.ns)[:5]
    words = ", ".join(f"{part.what} {part.share:.1%}" for part in shown if part.ns)
    achieved = "not known" if waterfall.achieved is None else f"{waterfall.achieved:.2%}"
    least = "at least " if waterfall.is_least else ""
    return f"{waterfall.precision} {least}{achieved}: {words}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", default="", help="only recordings with this in their name")
    arguments = parser.parse_args()
    demand(arguments.folders)
    num = num_without = num_faults = 0
    for folder in arguments.folders:
        for name, paths in cases_below(folder).items():
            if arguments.only not in name:
                continue
            try:
                with Recording(paths, Options(use_cache=False, jobs=1)) as recording:
                    facts = recording.job.facts
            except StepscopeError as problem:
                sys.stderr.write(f"{name}: {problem}\n")
                continue
            num += 1
            job = facts.peak_waterfall
            num_without += job is None
            found = list(faults(facts))
            num_faults += len(found)
            for fault in found:
                sys.stdout.write(f"{name}: FAULT {fault}\n")
            sys.stdout.write(f"{name}: {'no device' if job is None else line(job)}\n")
            sys.stdout.flush()
    words = f"{num} recordings, {num_without} without a step on a device, {num_faults} faults"
    sys.stdout.write(f"\n{words}\n")
    return 1 if num_faults else 0


if __name__ == "__main__":
    sys.exit(main())
