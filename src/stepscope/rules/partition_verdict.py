"""The bound of steps that cannot be replayed, named only where the parts of a step are enough."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.analyses.steps.windows import WHOLE_TRACE
from stepscope.core.facts import RankFacts, Replayed
from stepscope.core.trace import CLOCK_NOTES, CLOCKS_DIFFER, CUT_NOTES

PROFILER_STRETCH = 2.0
"""The profiler at most doubles the host's time (lab/launch_tiny: 17 ms a step, 35 while
profiled)."""
MAX_IDLE = 0.1
"""Largest idle share of the step with which the device is the limit: the host could give no more
than that."""
MAX_MISSED = 0.25
"""Share of the known step by which a replay may miss it. The lab's own recordings are met within 17
%; two even jobs on a busy machine, missed by 43 % and 98 %, had somebody blamed for what the
recording itself had cost."""
MAX_SILENT = 0.5
"""Share of the idle time from which the host's gaps without a call hold the device up."""

MIN_CUT = 0.01
"""Share of the device's work that must be missing for a file to count as cut. The last operators of
a whole recording launch nothing, too."""

DEVICE_PARTS = {
    "compute": "compute",
    "comms_wait": "comms",
    "comms_transfer": "comms",
    "transfer": "transfer",
}
IDLE_PARTS = {
    "idle_input": "data", "idle_sync": "host", "idle_launch": "host", "idle_allocator": "host",
    "idle_compile": "host", "idle_io": "host",
}  # fmt: skip
"""Idle time whose cause was seen."""


def missed_by(played: Replayed) -> float:
    """How much longer the replay is than the known step, or than the recorded one where none is."""
    return played.recorded_error if played.error is None else played.error


def is_missed(played: Replayed) -> bool:
    """Whether that is so much that what was recorded is not what the run usually does, or not all
    that it did."""
    return abs(missed_by(played)) > MAX_MISSED


def cut_share(rank: RankFacts) -> float:
    """Share of the device's work that a file that ends early does not have; 0 where that is next to
    none."""
    share = 0.0 if rank.launches is None else rank.launches.cut_share
    is_cut = any(note.startswith(CUT_NOTES) for note in rank.notes)
    if is_cut and rank.device_name is not None and rank.steps.where == "host":
        share = 1.0
    return share if share >= MIN_CUT else 0.0


def clock_fault(rank: RankFacts) -> str | None:
    """Note on what is wrong with the times of the recording, where they cannot be right."""
    return next((note for note in rank.notes if note.startswith(CLOCK_NOTES)), None)


def has_step_time(rank: RankFacts) -> bool:
    """Whether what lies between two steps' ends is a step's time: not where no step was detected,
    the file ends early, or time runs back or jumps."""
    fault = clock_fault(rank)
    is_apart = fault is None or fault.startswith(CLOCKS_DIFFER)
    return is_apart and not (is_whole_trace(rank) or cut_share(rank))


def is_whole_trace(rank: RankFacts) -> bool:
    """Whether no step could be detected, and all that was recorded is taken for one."""
    return rank.steps.source == WHOLE_TRACE


def is_blind(rank: RankFacts) -> bool:
    """Whether the device waits for host time that may be the loader's or the program's.

    The loader is known by its mark, which PyTorch writes whenever it records the host's operators.
    A trace without any mark hides it, and long gaps of the host without a call into the
    runtime can be either.
    """
    launches = rank.launches
    return (
        not rank.has_marks and launches is not None and (launches.silent_share or 0.0) > MAX_SILENT
    )


def bound_by_parts(rank: RankFacts, parts: Mapping[str, float]) -> str | None:
    """What limits the step, from its parts alone; None where that depends on what was not recorded.

    The device is busy for b of the step and idle for i. With little idle time only the device's
    work can be the limit. Idle time is time that the host needed: where even half of it, the
    profiler's cost taken off, is more than b, no host that runs ahead could hide it behind the
    device's work, and the cause of most of it is the limit. In between, how far the host runs ahead
    decides, which needs two steps and their launches.
    """
    if rank.steps.where != "device" or _is_fragment(rank):
        return None
    idle = sum(share for part, share in parts.items() if part.startswith("idle_"))
    if idle <= MAX_IDLE:
        part = max(DEVICE_PARTS, key=lambda name: parts.get(name, 0.0))
        return _of_kernels(rank) if part == "compute" else DEVICE_PARTS[part]
    largest = max(IDLE_PARTS, key=lambda name: parts.get(name, 0.0))
    if idle / PROFILER_STRETCH <= 1 - idle or parts.get(largest, 0.0) <= idle / 2 or is_blind(rank):
        return None
    return IDLE_PARTS[largest]


def _is_fragment(rank: RankFacts) -> bool:
    """Whether no steps were detected and work ran that was launched before the recording: it began
    inside a step, and how much of one it holds is not known."""
    return is_whole_trace(rank) and sum(rank.busy_ns) < rank.device.busy


def _of_kernels(rank: RankFacts) -> str | None:
    share = rank.roofline.arithmetic_share
    if share is None:
        return None
    return "compute" if share >= 0.5 else "memory"
