"""What a few looks at the stacks of the process that trains say of other findings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stepscope.api import Advice, Auxiliary
from stepscope.core.recordings.system import HostStacks, HotSpot
from stepscope.recordings.host.stack_dump import TOOL

HUNG = "hung-collective"
COLLECTIVE = re.compile(
    r"(?:all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|all_?to_?all|send|recv|scatter|"
    r"gather)\w{0,40}$"
)
DISTRIBUTED = re.compile(r"torch[/\\]distributed[/\\]|deepspeed[/\\]comm[/\\]")
MAX_SHOWN = 3


def advise(auxiliary: Auxiliary) -> list[Advice]:
    """Advice from dumps in which the main thread stands in a collective."""
    system = auxiliary.system
    dumps = () if system is None else (each for each in system.stacks if each.tool == TOOL)
    return [_waits(stacks, spot) for stacks in dumps for spot in _collectives(stacks)][:MAX_SHOWN]


def looks_words(stacks: HostStacks) -> str:
    """How few looks there are; empty for a recording of more."""
    if stacks.tool != TOOL:
        return ""
    return "In the only look" if stacks.amount <= 1 else f"In {stacks.amount:.0f} looks"


def innermost(stacks: HostStacks) -> HotSpot | None:
    """The call that was innermost most often."""
    return max(stacks.functions, key=lambda spot: spot.self_share, default=None)


def _collectives(stacks: HostStacks) -> Iterator[HotSpot]:
    found = [
        spot
        for spot in stacks.functions
        if COLLECTIVE.match(spot.name) and DISTRIBUTED.search(spot.file or "")
    ]
    if found:
        yield max(found, key=lambda spot: spot.total_share)


def _waits(stacks: HostStacks, spot: HotSpot) -> Advice:
    caller = max(stacks.training, key=lambda each: each.total_share, default=None)
    by = "" if caller is None else f", which {caller.label} called"
    return Advice(
        code=HUNG,
        bound="comms",
        summary=f"{looks_words(stacks)}, the main thread stands in {spot.name}{by}: it waits for "
        "other ranks, or for the device.",
        action="py-spy dump of every rank, twice, some seconds apart: who stands in the same call "
        "both times hangs, and who stands elsewhere is the one that the others wait for (stepscope "
        "attach PID does it)",
        evidence=(f"{stacks.path}: {spot.label}",),
    )
