"""python-overhead: what a profile of the host shows."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepscope.api import Advice, Auxiliary
from stepscope.core.recordings.system import HostStacks

CODE = "python-overhead"
BOUND = "host"


class Policy(Struct, frozen=True, kw_only=True):
    least_sampled: float = 0.4
    """Share of a profiler's samples in which the interpreter itself runs; a loop that launches
    operators has a tenth or two, and the imports of a short recording add to it."""
    device_busy: float = 0.9
    """Share of the time from which the device is never waiting: then the host's Python costs
    nothing."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    """Advise by stacks with native frames: only these tell Python's own work from the operators it
    calls."""
    if auxiliary.system is None:
        return []
    busy = [
        share for device in auxiliary.system.devices if (share := device.used_share) is not None
    ]
    if busy and min(busy) >= POLICY.device_busy:
        return []
    return [
        _sampled(stacks, stacks.interpreter_share)
        for stacks in auxiliary.system.stacks
        if stacks.interpreter_share is not None and stacks.interpreter_share >= POLICY.least_sampled
    ]


def _sampled(stacks: HostStacks, share: float) -> Advice:
    hot = sorted(
        (spot for spot in stacks.training if spot.self_share > 0), key=lambda spot: -spot.self_share
    )[:3]
    named = tuple(
        f"{spot.label}: {spot.self_share:.0%} of the {stacks.unit} in its own Python"
        for spot in hot
    )
    if not named:
        own = sorted(
            (spot for spot in stacks.functions if "python" in (spot.file or "")),
            key=lambda spot: -spot.self_share,
        )[:2]
        named = tuple(
            f"{spot.label}: innermost in {spot.self_share:.0%} of the {stacks.unit}" for spot in own
        )
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"The interpreter itself runs in {share:.0%} of the host's {stacks.unit} "
        f"({stacks.tool}).",
        action="where the device waits for the host: do this work every 50th step, before the loop "
        "or in loader workers; or write"
        " it with tensors and compile it. A trace shows whether the device waits",
        evidence=named,
        weight=share,
        weight_of=f"the host's {stacks.unit}",
    )
