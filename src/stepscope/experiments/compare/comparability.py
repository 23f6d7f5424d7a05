"""One variable at a time: what the two sides of an experiment must have in common, and whether they
have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from stepscope.core.experiments.experiment import Difference
from stepscope.core.experiments.trials import Setup, Trial
from stepscope.protocol.settings import OF_DDP, OF_LOADERS

Read = Callable[[Setup], object]


class Term(Struct, frozen=True, kw_only=True):
    """One thing that must be the same."""

    name: str
    """As in --allow."""
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
    """In what the sides differ. What was not measured on one of them differs in nothing."""
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
    """Those that follow from none of the others: another seed makes other data, and is what is to
    be fixed."""
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
