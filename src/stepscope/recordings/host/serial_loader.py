"""serial-loader: what samples of the host's stacks show."""

from __future__ import annotations

from stepscope.api import Advice, Auxiliary
from stepscope.recordings.host.sampled_loading import MIN_SAMPLED, sampled_loading

CODE = "serial-loader"
BOUND = "data"


def advise(auxiliary: Auxiliary) -> list[Advice]:
    """By the host's stacks alone: whether the device waits meanwhile, they do not tell."""
    return [
        Advice(
            code=CODE,
            bound=BOUND,
            summary=f"{loading.makes.label} makes the input in {loading.serial_share:.0%} of the "
            f"host's {loading.stacks.unit}, in the process that trains.",
            action="DataLoader(num_workers=..., persistent_workers=True, pin_memory=True): as many "
            "workers as the rank has cores, and as its memory holds copies of the dataset",
            evidence=(f"{loading.stacks.tool}: {loading.stacks.path}",),
            weight=loading.serial_share,
            weight_of=f"the host's {loading.stacks.unit}",
        )
        for loading in sampled_loading(auxiliary)
        if loading.makes is not None and loading.serial_share >= MIN_SAMPLED
    ]
