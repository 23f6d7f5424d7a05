"""One variable at a time: what the two sides of an experiment must have in common, and whether they
have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from stepscope.core.experiments.comparison import Changed, DeviceChange
from stepscope.core.experiments.experiment import Difference
from stepscope.core.experiments.trials import Setup, Trial
from stepscope.experiments.compare.side import CompareSide, WorkDone
from stepscope.protocol.settings import OF_DDP, OF_LOADERS

Read = Callable[[Setup], object]


class Term(Struct, frozen=True, kw_only=True):
    """One thing that must be the same."""

    name: str
    """Name as in --allow."""
    words: str
    read: Read
    varies: bool = False
    """Whether runs of one and the same command may differ in it. It is then judged only where the
    baseline repeats itself."""


TERMS = (
    Term(name="world-size", words="the number of ranks", read=lambda setup: setup.world_size),
    Term(name="batch-size", words="the batch size", read=lambda setup: setup.batch_size),
    Term(
        name="batches",
        words="the batches a step",
        read=lambda setup: None if setup.num_batches is None else round(setup.num_batches, 1),
    ),
    Term(name="updates", words="what a step ends with", read=lambda setup: setup.ends_with),
    Term(
        name="parameters", words="the number of parameters", read=lambda setup: setup.num_parameters
    ),
    Term(name="model", words="the model", read=lambda setup: setup.model),
    Term(name="dataset", words="the dataset", read=lambda setup: setup.dataset),
    Term(name="device", words="the device", read=lambda setup: setup.device),
    Term(
        name="versions",
        words="the version of PyTorch",
        read=lambda setup: setup.versions.get("torch"),
    ),
    Term(name="seed", words="the seed", read=lambda setup: setup.seed, varies=True),
    Term(
        name="data",
        words="the data of the first batches",
        read=lambda setup: setup.data,
        varies=True,
    ),
)
IMPLIED = {
    "batch-size": ("data", "batches"),
    "world-size": ("data", "batches"),
    "dataset": ("data",),
    "seed": ("data",),
}
"""Whoever allows the first allows what follows from it."""


def widened(allowed: Collection[str]) -> frozenset[str]:
    """What is allowed, with what follows from it."""
    return frozenset(allowed) | {name for key in allowed for name in IMPLIED.get(key, ())}


def differences(
    baseline: Sequence[Setup], candidate: Sequence[Setup], allowed: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Differences of the sides. What was not measured on one of them differs in nothing."""
    may = widened(allowed)
    differing = []
    for term in TERMS:
        first, second = _values(term, baseline), _values(term, candidate)
        if not first or not second or first == second or _is_loose(term, first, baseline):
            continue
        differing.append(
            Difference(
                what=term.name,
                words=term.words,
                baseline=_shown(first),
                candidate=_shown(second),
                is_allowed=term.name in may,
            )
        )
    return tuple(differing)


def loose_terms(baseline: Sequence[Setup]) -> tuple[str, ...]:
    """What the baseline's own runs do not agree in, in words."""
    return tuple(term.words for term in TERMS if term.varies and len(_values(term, baseline)) > 1)


def untaken(trial: Trial) -> tuple[str, ...]:
    """What was to be set and never was, in words, where nothing of the change took hold; empty
    otherwise."""
    change = trial.change
    took = (
        change.environment
        or change.arguments
        or any(trial.taken.get(knob) != 0 for knob in change.knobs)
    )
    return () if took else _untaken(trial)


def partly_taken(trial: Trial) -> tuple[str, ...]:
    """The same for a change of which something else took hold."""
    return () if untaken(trial) else _untaken(trial)


def _untaken(trial: Trial) -> tuple[str, ...]:
    """Each knob that never took hold; the job's own reason, where it gave one, stands in the
    trial's notes."""
    knobs = [knob for knob in trial.change.knobs if trial.taken.get(knob) == 0]
    reasons = {note.partition(": ")[0]: note.partition(": ")[2] for note in trial.notes}
    usual = "nothing that it applies to was made in the job"
    return tuple(
        f"{knob} did not take effect: {reasons.get(knob) or WHY_UNTAKEN.get(knob, usual)}"
        for knob in knobs
    )


WHY_UNTAKEN = {
    **dict.fromkeys(OF_LOADERS, "no DataLoader was made"),
    **dict.fromkeys(OF_DDP, "no model was wrapped in DistributedDataParallel"),
    **dict.fromkeys(
        ("fused_optimizer", "foreach_optimizer"), "no optimizer that has such an option was made"
    ),
    "compile_mode": "no model that could be compiled was seen",
    "channels_last": "no model with convolutions was seen",
}


def causes(refused: Sequence[Difference]) -> tuple[Difference, ...]:
    """Differences that follow from none of the others: another seed makes other data, and is what
    is to be fixed."""
    following = {name for difference in refused for name in IMPLIED.get(difference.what, ())}
    return tuple(difference for difference in refused if difference.what not in following)


def refusal_words(difference: Difference) -> str:
    """`the batch size differs: 32 before, 64 after. ...`"""
    return (
        f"{difference.words} differs: {difference.baseline} for the baseline, "
        f"{difference.candidate} for the candidate. "
        f"Make them equal, or say --allow {difference.what}"
    )


def _values(term: Term, setups: Sequence[Setup]) -> set[object]:
    return {value for setup in setups if (value := term.read(setup)) is not None}


def _is_loose(term: Term, first: set[object], baseline: Sequence[Setup]) -> bool:
    """Where even the baseline does not repeat itself, or has not yet had to, the term proves
    nothing."""
    return term.varies and (len(first) > 1 or len(baseline) < 2)


def _shown(values: set[object]) -> str:
    texts = sorted(
        f"{value:,}".replace(",", " ") if isinstance(value, int) else str(value) for value in values
    )
    return " or ".join(text if len(text) <= 80 else text[:77] + "..." for text in texts[:3])


SAME_WORK = 0.02
"""FLOPs a step within this share of one another are the same work: what is modelled of an operator
may differ by its kernel."""
REPLACED_WORK = 0.25
"""FLOPs further apart than this are other work, whatever was replaced: a fused attention that skips
what is masked saves less."""
MAX_ALONE = 0.3
"""Share of the busy time: with more work that has no counterpart, FLOPs that differ are work that
differs; on both sides, it is another model's."""


def _flops_change(before: WorkDone, after: WorkDone) -> float | None:
    """Share by which the FLOPs differ; None where those of one are not known."""
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
    return reshaped <= SAME_WORK * device.before_ns and alone <= MAX_ALONE * device.before_ns


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
    if min(went, came) < MAX_ALONE:
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
