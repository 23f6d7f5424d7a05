"""Whether a step of two runs is the same work, and by how much it is not."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.experiments.comparison import Changed, DeviceChange
from stepscope.experiments.compare.side import CompareSide, WorkDone

SAME_WORK = 0.02
"""FLOPs a step within this share of one another are the same work: what is modelled of an operator
may differ by its kernel."""
REPLACED_WORK = 0.25
"""FLOPs further apart than this are other work, whatever was replaced: a fused attention that skips
what is masked saves less."""
MOST_ALONE = 0.3
"""Of the busy time: with more work that has no counterpart, FLOPs that differ are work that
differs; on both sides, it is another model's."""


def _flops_change(before: WorkDone, after: WorkDone) -> float | None:
    """By which share the FLOPs differ; None where those of one are not known."""
    if not before.all_flops or not after.all_flops:
        return None
    return abs(after.all_flops / before.all_flops - 1)


def _is_same_flops(
    before: WorkDone, after: WorkDone, device: DeviceChange | None, changed: Sequence[Changed]
) -> bool:
    """Whether the model's FLOPs are the same, or differ in work that was replaced: no shape changed
    then, and what is counted of a fused operator is not what is counted of its pieces."""
    change = _flops_change(before, after)
    if change is None or change <= SAME_WORK:
        return True
    if device is None or not device.before_ns or change > REPLACED_WORK:
        return False
    reshaped = sum(row.before_ns for row in changed if "shape" in row.how)
    alone = sum(row.before_ns + row.after_ns for row in changed if row.paired_by == "none")
    return reshaped <= SAME_WORK * device.before_ns and alone <= MOST_ALONE * device.before_ns


def _strangers(
    before: WorkDone, after: WorkDone, device: DeviceChange | None, changed: Sequence[Changed]
) -> str | None:
    """Says when much of either run has no counterpart in the other; with the same FLOPs it was only
    put otherwise."""
    if device is None or not device.before_ns or not device.after_ns:
        return None
    change = _flops_change(before, after)
    if change is not None and change <= SAME_WORK:
        return None
    went_ns = sum(row.before_ns for row in changed if row.how == ("went",))
    came_ns = sum(row.after_ns for row in changed if row.how == ("came",))
    went, came = went_ns / device.before_ns, came_ns / device.after_ns
    if min(went, came) < MOST_ALONE:
        return None
    return (
        f"{went:.0%} of the first one's work and {came:.0%} of the second's have no counterpart "
        "in the other: another model?"
    )


def growth(
    before: WorkDone, after: WorkDone, device: DeviceChange | None, changed: Sequence[Changed]
) -> tuple[float | None, str]:
    """How much more work a step of the second does, where that is known and is not the same."""
    if before.samples and after.samples:
        return (
            after.samples / before.samples if before.samples != after.samples else None
        ), "samples"
    if before.all_flops and after.all_flops and not _is_same_flops(before, after, device, changed):
        return after.all_flops / before.all_flops, "FLOPs"
    return None, "samples" if before.samples else "FLOPs"


def width(side: CompareSide) -> int | None:
    return side.work.world_size or side.num_ranks or None


def _figure(value: float | str) -> str:
    """`6,297,600`, `0.5`, or a name as it is."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def unequal(
    before: CompareSide,
    after: CompareSide,
    device: DeviceChange | None,
    changed: Sequence[Changed],
) -> tuple[str, ...]:
    """Why the two are not the same work."""
    reasons = []
    first, second = before.work, after.work
    for word, a, b in (
        ("batch size", first.batch_size, second.batch_size),
        ("batches a step", first.num_batches, second.num_batches),
        ("parameters", first.num_parameters, second.num_parameters),
        ("model", first.model, second.model),
        ("ranks", width(before), width(after)),
        ("device", before.device_name, after.device_name),
    ):
        if a is not None and b is not None and a != b:
            reasons.append(f"{word}: {_figure(a)} -> {_figure(b)}")
    if first.all_flops and second.all_flops and not _is_same_flops(first, second, device, changed):
        reasons.append(
            f"FLOPs a step: {first.all_flops / 1e12:.3g} -> {second.all_flops / 1e12:.3g} TFLOP"
        )
    strange = _strangers(first, second, device, changed)
    return (*reasons, strange) if strange else tuple(reasons)
