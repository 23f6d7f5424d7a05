"""The run's step time, from steps that no profiler slowed."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from stepscope.core.run import UnprofiledSteps

TRIMMED = 0.05
"""Share of the sorted steps that is left out at each end: one slow step in twenty does not count;
every fourth step's wait for a loader does."""
ENOUGH = 8
"""Steps before a recording with which those after it are not needed."""
MIN_STEPS = 3
"""Fewer steps give no time."""
ENOUGH_MARKED = 40
"""Steps measured on the device's clock with which the others' are not needed:
of a long run it measures some."""
MAX_STEPS = 400
"""The last steps before the recording:
step times may drift, and what is compared with the recording should be near it."""
AHEAD = 0.8
"""Share of the device's step: a host step this short did not wait for the device."""
RECORDED = 2
"""The state of a step with a profiler attached."""
Z = 1.645
"""Nine times in ten, of a normal distribution."""

Row = Mapping[str, int | None]


def unprofiled_steps(rows: Sequence[Row], stock: int = 0) -> UnprofiledSteps | None:
    """Unprofiled steps from rows of RUN/rank-N/steps.jsonl, in order; None when there are too few
    of the usual kind.

    `stock` steps may find batches that workers made while nobody took any: at the start, and while
    a profiler slowed the steps. Those after them tell what the workers bring, if there are enough.
    """
    settled = _settled(rows, stock)
    timed = before_recording(settled)
    if len(usual_rows(timed)) < ENOUGH:
        timed = before_recording(rows)
    usual = usual_rows(timed)[-MAX_STEPS:]
    if len(usual) < MIN_STEPS:
        return None
    lengths, whole = _lengths(usual)
    mean, error = _trimmed(lengths)
    middle = middle_rows(usual, "device_ns" if whole else "dur_ns")
    return UnprofiledSteps(
        num=len(usual),
        num_left_out=len(timed) - len(usual_rows(timed)),
        step_ns=round(mean),
        # A few steps that compile make the error larger than the mean of all.
        low_ns=round(max(mean - Z * error, min(lengths))),
        high_ns=round(mean + Z * error),
        median_ns=round(statistics.median(lengths)),
        slowest_ns=max(lengths),
        on_device=whole,
        wait_ns=_mean_part(middle, "wait_ns"),
        backward_ns=_mean_part(middle, "backward_ns"),
        optimizer_ns=_mean_part(middle, "optimizer_ns"),
        dur_ns=round(statistics.fmean(_value(row, "dur_ns") for row in middle)),
        num_batches=statistics.fmean(_value(row, "num_batches") for row in usual),
        num_backwards=statistics.fmean(_value(row, "num_backwards") for row in usual),
        wait_cpu_ns=_mean_part(middle, "wait_cpu_ns"),
        save_ns=_share_of(rows, "save_ns", mean),
        gc_ns=_share_of(rows, "gc_ns", mean),
        host_ns=_host_ns(rows, statistics.median(lengths)) if whole else None,
        host_share=_host_share(rows, usual),
    )


def _settled(rows: Sequence[Row], stock: int) -> list[Row]:
    """Rows without the steps that such a stock feeds; those with a profiler stay."""
    settled, since = [], 0
    for row in rows:
        since = 0 if row["state"] == RECORDED else since + 1
        if since == 0 or since > stock:
            settled.append(row)
    return settled


def _host_ns(rows: Sequence[Row], step_ns: float) -> int | None:
    """A host that is faster than the device runs ahead of it, from the first step or from the last
    wait on, until the device's queue is full. Meanwhile its steps are as long as its own work.
    Those of the warm-up count: nothing else makes them short."""
    recorded = next(
        (index for index, row in enumerate(rows) if row["state"] == RECORDED), len(rows)
    )
    lengths = [
        (_value(row, "dur_ns"), _value(row, "device_ns")) for row in usual_rows(rows[:recorded])
    ]
    ahead = [host for host, device in lengths if 0 < host < AHEAD * min(device, step_ns)]
    return round(statistics.median(ahead)) if len(ahead) >= MIN_STEPS else None


def _host_share(rows: Sequence[Row], usual: Sequence[Row]) -> tuple[float, float, float] | None:
    """Share of the host by the backward pass, which is timed in recorded steps and in others: the
    queue of a device that is behind is full later in the step, or was emptied before, so that the
    host takes its own time for it. The first recorded step is the profiler's start, too."""
    recorded = _ahead_in_backward([row for row in rows if row["state"] == RECORDED][1:])
    timed = _ahead_in_backward(usual)
    if not recorded or len(timed) < max(ENOUGH, len(usual) // 2):
        return None
    low, high = timed[len(timed) // 10], timed[-1 - len(timed) // 10]
    middle = statistics.median(timed) / statistics.median(recorded)
    return middle, low / recorded[-1], high / recorded[0]


def _ahead_in_backward(rows: Sequence[Row]) -> list[int]:
    """How long the host took for backward passes that took the device longer, in order."""
    timed = [(_value(row, "backward_ns"), _value(row, "device_backward_ns")) for row in rows]
    return sorted(host for host, device in timed if 0 < host < AHEAD * device)


def before_recording(rows: Sequence[Row]) -> list[Row]:
    """Timed steps before the first recording, if there are enough; all of them otherwise. Once a
    profiler has been attached, parts of it may stay and slow the host, but nothing that stays makes
    a step shorter: where those after it are, something else held up those before, and the ones
    after it are how the run steps."""
    timed = [row for row in rows if row["state"] == 0]
    recorded = [row["step"] or 0 for row in rows if row["state"] == RECORDED]
    first = recorded[0] if recorded else None
    before = [row for row in timed if first is None or (row["step"] or 0) < first]
    usual = usual_rows(before)
    if len(usual) < ENOUGH:
        return timed
    after = [row for row in timed if first is not None and (row["step"] or 0) > first]
    return after[:MAX_STEPS] if _are_shorter(usual_rows(after)[: len(usual)], usual) else before


def _are_shorter(rows: Sequence[Row], than: Sequence[Row]) -> bool:
    """Whether as many other steps would be shorter too."""
    if len(rows) < ENOUGH:
        return False
    (mean, error), (mean_than, error_than) = (_trimmed(_lengths(some)[0]) for some in (rows, than))
    return mean + Z * error < mean_than - Z * error_than


def _lengths(rows: Sequence[Row]) -> tuple[list[int], bool]:
    """Lengths of the steps, and whether they are by the device's clock: where it measured
    enough."""
    measured = [ns for row in rows if (ns := row["device_ns"]) is not None]
    whole = len(measured) == len(rows) or len(measured) >= max(
        MIN_STEPS, min(len(rows) // 2, ENOUGH_MARKED)
    )
    return (measured if whole else [_value(row, "dur_ns") for row in rows]), whole


def usual_rows(rows: Sequence[Row]) -> list[Row]:
    """Steps with the commonest number of batches and backward passes, with no save and no
    evaluation unless most have one.

    Where most steps are of another kind than the commonest (a
    closure called as often as it takes), all kinds are usual.
    """
    kinds = Counter((row["num_batches"], row["num_backwards"]) for row in rows)
    if not kinds:
        return []
    commonest, num = kinds.most_common(1)[0]
    usual = list(rows)
    if num * 2 >= len(rows):
        usual = [row for row in rows if (row["num_batches"], row["num_backwards"]) == commonest]
    for name in ("save_ns", "num_evals"):
        without = [row for row in usual if not row[name]]
        if 2 * len(without) >= len(usual):
            usual = without
    return usual


def _trimmed(lengths: Sequence[int]) -> tuple[float, float]:
    """The mean of the middle, and its standard error with
    the ends counted as the last ones kept (Yuen 1974)."""
    ordered = sorted(lengths)
    cut = int(TRIMMED * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    drawn_in = [kept[0]] * cut + kept + [kept[-1]] * cut
    spread = statistics.stdev(drawn_in) if len(drawn_in) > 1 else 0.0
    return statistics.fmean(kept), spread / ((1 - 2 * TRIMMED) * math.sqrt(len(ordered)))


def middle_rows(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows whose lengths the mean is of:
    a part of the step is a part of the same steps, or it may come out longer."""
    ordered = sorted(
        (row for row in rows if row[name] is not None), key=lambda row: _value(row, name)
    )
    cut = int(TRIMMED * len(ordered))
    return ordered[cut : len(ordered) - cut]


def _mean_part(rows: Sequence[Row], name: str) -> int | None:
    """Mean of what the host spent on a part of a step. A row in which that is longer than the step
    itself is damaged, or it was spent in another thread; where most are so, or it was not measured,
    it is no part of the step and None."""
    measured = [(ns, _value(row, "dur_ns")) for row in rows if (ns := row[name]) is not None]
    inside = [ns for ns, dur_ns in measured if ns <= dur_ns]
    return round(statistics.fmean(inside)) if inside and 2 * len(inside) >= len(measured) else None


def _share_of(rows: Sequence[Row], name: str, step_ns: float) -> int | None:
    """The same, by its share of all timed steps: it comes and goes more than a step's length, and
    what it takes is no longer with a profiler about."""
    usual = usual_rows([row for row in rows if row["state"] == 0])
    middle = middle_rows(usual, "dur_ns")
    part, whole = _mean_part(middle, name), _mean_part(middle, "dur_ns")
    return None if part is None or not whole else round(step_ns * part / whole)


def _value(row: Row, name: str) -> int:
    return row[name] or 0
