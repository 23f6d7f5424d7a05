"""What a framework's own timers show: exchanges that nothing hides, and waiting for batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from stepscope.api import Advice, Auxiliary
from stepscope.core.recordings.training_log import FrameworkLog, Phase

WHOLE = (("fwd", "bwd", "step"), ("forward-backward", "optimizer"))
"""Timers that are a step together."""
MICRO = "_microstep"


class Kind(Struct, frozen=True, kw_only=True):
    """Timers of one kind, and the finding that they are of."""

    names: re.Pattern[str]
    code: str
    bound: str
    what: str
    action: str
    least_share: float
    """Share of the step from which it is said; chosen without recordings."""


KINDS = (
    Kind(
        names=re.compile(
            r"all-?_?reduce|all-?_?gather|reduce-?_?scatter|grads-sync|all-?_?to-?_?all",
            re.IGNORECASE,
        ),
        code="exposed-collectives",
        bound="comms",
        what="an exchange that no computing hides, or a wait for another rank",
        action="overlap it (DeepSpeed: overlap_comm; Megatron: --overlap-grad-reduce), fewer "
        "exchanges (gradient accumulation), 16-bit gradients; traces of all ranks say whether one "
        "comes late",
        least_share=0.15,
    ),
    Kind(
        names=re.compile(r"batch-generator|data-?_?time|data-?_?load|^batch_input$", re.IGNORECASE),
        code="starved-loader",
        bound="data",
        what="making or waiting for batches",
        action="more workers (num_workers), data on a local disk, samples prepared beforehand",
        least_share=0.1,
    ),
)


def advise(auxiliary: Auxiliary) -> list[Advice]:
    """Advise by each log's timers."""
    logs = () if auxiliary.training is None else auxiliary.training.logs
    return [advice for log in logs for advice in _of_log(log)]


def _of_log(log: FrameworkLog) -> Iterator[Advice]:
    for is_micro in (False, True):
        phases = [phase for phase in log.phases if phase.is_micro == is_micro]
        whole_ns = _whole_ns(log, phases, is_micro=is_micro)
        if not whole_ns:
            continue
        for kind in KINDS:
            found = [phase for phase in phases if kind.names.search(phase.name)]
            worst = max(found, key=lambda phase: phase.ns, default=None)
            if worst is not None and worst.ns >= kind.least_share * whole_ns:
                yield _advice(log, worst, min(worst.ns / whole_ns, 1.0), kind)


def _advice(log: FrameworkLog, phase: Phase, share: float, kind: Kind) -> Advice:
    of = "micro-batch" if phase.is_micro else "step"
    return Advice(
        code=kind.code,
        bound=kind.bound,
        summary=f"{log.framework}'s timer {phase.name} has {share:.0%} of a {of}: {kind.what}.",
        action=kind.action,
        evidence=(f"{log.path}: {phase.name} {phase.ns / 1e6:.1f} ms",),
        weight=share,
        weight_of=f"the {of}",
    )


def _whole_ns(log: FrameworkLog, phases: Sequence[Phase], *, is_micro: bool) -> int | None:
    """What the timers are parts of; None where that is not known."""
    if log.step_ns is not None and not is_micro:
        return log.step_ns
    by_name = {phase.name.removesuffix(MICRO): phase.ns for phase in phases}
    for names in WHOLE:
        if all(name in by_name for name in names):
            return sum(by_name[name] for name in names)
    return None
