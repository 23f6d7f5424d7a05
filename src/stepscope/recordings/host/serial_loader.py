"""serial-loader: what samples of the host's stacks show."""

from __future__ import annotations

from stepscope.api import Abstention, Advice, Auxiliary
from stepscope.core.recordings.system import HotSpot
from stepscope.recordings.host.sampled_loading import (
    MIN_SAMPLED,
    SINGLE,
    SampledLoading,
    decoders,
    sampled_loading,
    tabled_advice,
    tabled_loading,
)
from stepscope.recordings.host.standing import innermost, looks_words

CODE = "serial-loader"
BOUND = "data"
ACTION = (
    "DataLoader(num_workers=..., persistent_workers=True, pin_memory=True): as many workers as the "
    "rank has cores, and as its memory holds copies of the dataset"
)


def advise(auxiliary: Auxiliary) -> list[Advice] | Abstention:
    """Advise by the host's stacks alone: whether the device waits meanwhile, they do not tell."""
    found = [
        _advice(loading, loading.makes)
        for loading in sampled_loading(auxiliary)
        if loading.makes is not None and loading.serial_share >= MIN_SAMPLED
    ]
    found = found or [*decoders(auxiliary, CODE)]
    if (tabled := tabled_loading(auxiliary, SINGLE)) is not None:
        found.append(tabled_advice(CODE, tabled, "makes its batches by itself", ACTION))
    stacks = () if auxiliary.system is None else auxiliary.system.stacks
    few = next((each for each in stacks if looks_words(each)), None)
    if found or few is None:
        return found
    spot = innermost(few)
    where = "" if spot is None else f" {spot.label}"
    return Abstention(
        code=CODE,
        reason=f"{looks_words(few).lower()}, the main thread stood in{where}: too few to say where "
        "its time goes",
        needs="py-spy record --native -f speedscope -o host.json -p PID, or stepscope run",
    )


def _advice(loading: SampledLoading, makes: HotSpot) -> Advice:
    stacks = loading.stacks
    summary = (
        f"{makes.label} makes the input in {loading.serial_share:.0%} of the host's {stacks.unit}, "
        "in the process that trains."
    )
    evidence = [f"{stacks.tool}: {stacks.path}"]
    if few := looks_words(stacks):
        summary = f"{few}, {makes.label} makes the input, in the process that trains."
        spot = innermost(stacks)
        evidence += [] if spot is None else [f"innermost: {spot.label}"]
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=summary,
        action=ACTION,
        evidence=tuple(evidence),
        weight=None if few else loading.serial_share,
        weight_of="" if few else f"the host's {stacks.unit}",
    )
