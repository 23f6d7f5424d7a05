"""starved-loader: what samples of the host's stacks show."""

from __future__ import annotations

from stepscope.api import Advice, Auxiliary
from stepscope.recordings.host.sampled_loading import (
    MIN_SAMPLED,
    MULTI,
    decoders,
    sampled_loading,
    tabled_advice,
    tabled_loading,
)
from stepscope.recordings.host.standing import looks_words

CODE = "starved-loader"
BOUND = "data"
ACTION = (
    "more workers where cores are left, else less work in each: decode smaller, transform on the "
    "device (torchvision.transforms.v2, kornia, DALI), cache what repeats"
)


def advise(auxiliary: Auxiliary) -> list[Advice]:
    """Advise by the host's stacks alone."""
    tabled = tabled_loading(auxiliary, MULTI)
    waits = "waits for its loader's workers"
    found = [] if tabled is None else [tabled_advice(CODE, tabled, waits, ACTION)]
    sampled = [
        Advice(
            code=CODE,
            bound=BOUND,
            summary=f"{few}, the process that trains waits for its loader's workers."
            if (few := looks_words(loading.stacks))
            else f"The process that trains waits for its loader's workers in {loading.waits:.0%} "
            f"of the host's {loading.stacks.unit}.",
            action=ACTION,
            evidence=(f"{loading.stacks.tool}: {loading.stacks.path}",),
            weight=None if looks_words(loading.stacks) else loading.waits,
            weight_of=f"the host's {loading.stacks.unit}",
        )
        for loading in sampled_loading(auxiliary)
        if loading.waits >= MIN_SAMPLED
    ]
    return found + (sampled or [*decoders(auxiliary, CODE)])
