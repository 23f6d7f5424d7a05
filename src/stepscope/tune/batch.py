"""What must stay equal while knobs turn: the samples that one optimizer step sees.

    samples a step = batch_size x accumulation x ranks

A batch size that is searched therefore takes an accumulation with it, which is not searched: it is
what makes the product come out. The script must take it as an argument, or a variable.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from stepscope.core.experiments.trials import Setup
from stepscope.errors import InputError, UsageError
from stepscope.tune.knob_space import HOOK, Knob, Pinned, Settings, Space, shown

BATCH, ACCUMULATION = "batch_size", "accumulation"
FREE_BATCH, FREE_NUMERICS = "batch", "numerics"


def check_batch(knobs: Sequence[Knob], free: Collection[str]) -> None:
    """Refuses, before anything runs, a search that would change the samples a step."""
    names = {knob.name: knob for knob in knobs}
    if FREE_BATCH in free or not {BATCH, ACCUMULATION} & set(names):
        return
    if BATCH not in names:
        raise UsageError(
            f"--knob {ACCUMULATION} alone would change how many samples an optimizer step sees. "
            f"Give --knob {BATCH}=... with it, or say --free batch"
        )
    if ACCUMULATION not in names:
        raise UsageError(
            f"--knob {BATCH}: another batch size makes another effective batch (batch size x "
            "accumulation x ranks), and with it "
            "another training. Give the accumulation too, so that it stays: --knob "
            f"{ACCUMULATION}=1..16 "
            f'--as {ACCUMULATION}="--accum={{}}"; or say --free batch, and times are given per '
            "sample"
        )
    if names[ACCUMULATION].way.kind == HOOK:
        raise UsageError(
            f'say how the script takes the accumulation: --as {ACCUMULATION}="--accum={{}}"'
        )
    if names[BATCH].values is None or not names[BATCH].is_ordered:
        raise UsageError(f"--knob {BATCH}: give whole numbers, such as {BATCH}=16,32,64")


def is_per_sample(space: Space, free: Collection[str]) -> bool:
    """Whether times are given per sample: where the batch may change."""
    return FREE_BATCH in free or any(knob.name == BATCH for knob in space.knobs)


def settled_space(
    space: Space, setup: Setup, free: Collection[str], effective: int | None
) -> Space:
    """The space with its batch sizes brought to those that can keep the effective batch, now that
    the baseline has shown it."""
    names = {knob.name: knob for knob in space.knobs}
    if FREE_BATCH in free or BATCH not in names:
        return space
    total = _total(setup, effective)
    sizes = [
        size
        for size in names[BATCH].values or ()
        if isinstance(size, int) and size > 0 and total % size == 0
    ]
    allowed = set(names[ACCUMULATION].values or ())
    kept = tuple(size for size in sizes if total // size in allowed)
    if not kept:
        raise UsageError(
            f"none of {BATCH}={names[BATCH].words} makes {total} samples a step on a rank with "
            f"{ACCUMULATION}="
            f"{names[ACCUMULATION].words}. Give sizes that divide {total}, and their "
            "accumulations; or say --free batch"
        )
    batch = replace(
        names[BATCH],
        choices=kept,
        low=None,
        high=None,
        step=None,
        is_log=False,
        usual=setup.batch_size,
    )
    knobs = tuple(
        batch if knob.name == BATCH else knob for knob in space.knobs if knob.name != ACCUMULATION
    )
    return Space(knobs=knobs, pinned=Pinned(knob=names[ACCUMULATION], by=BATCH, total=total))


def _total(setup: Setup, effective: int | None) -> int:
    """Samples a step, on one rank."""
    world = setup.world_size or 1
    if effective is not None:
        if effective % world:
            raise UsageError(f"--effective-batch {effective} cannot be shared by {world} ranks")
        return effective // world
    if setup.samples is None or setup.samples <= 0:
        raise InputError(
            "the baseline's batch was not seen: no DataLoader fed its steps. Say it with "
            "--effective-batch N"
        )
    return round(setup.samples / world)


def samples_of(
    settings: Settings, seen: Setup | None, given: Setup, effective: int | None
) -> float | None:
    """Samples a step on all ranks: as the trial itself shows, or as its settings make it; None
    where neither is known."""
    if seen is not None and seen.samples:
        return seen.samples
    size, times = settings.get(BATCH), settings.get(ACCUMULATION, given.num_batches or 1)
    if isinstance(size, int) and isinstance(times, int | float):
        return float(size * times * (given.world_size or 1))
    return given.samples or (None if effective is None else float(effective))


def changes_batch(settings: Settings, given: Setup) -> bool:
    """Whether a step with these settings sees other samples than one of the baseline."""
    size, times = settings.get(BATCH), settings.get(ACCUMULATION)
    is_other = (
        times is not None and given.num_batches is not None and times != round(given.num_batches)
    )
    return is_other or (size is not None and size != given.batch_size)


def batch_words(space: Space) -> str | None:
    """How the effective batch was kept, in words."""
    if space.pinned is None:
        return None
    sizes = next(knob for knob in space.knobs if knob.name == BATCH).values or ()
    pairs = ", ".join(f"{shown(size)} x {space.pinned.total // int(size)}" for size in sizes)
    return (
        f"the effective batch stayed {space.pinned.total} a rank: {BATCH} x {ACCUMULATION} was "
        f"one of {pairs}"
    )
