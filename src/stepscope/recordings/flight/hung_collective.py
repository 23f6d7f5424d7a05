"""Ranks wait in a collective that cannot end.

What it sees: in the ranks' flight-recorder dumps, a collective that some ranks are in and others
are not; or that they entered with another operation, size or type; sends without their receive;
groups entered in different order; a rank that left no dump.

Why it costs: a collective ends for all when the last rank has come to it. Until the watchdog gives
up, after 10 minutes by default (30 with gloo), every device of the job is paid for and does
nothing; then the job ends.

Evidence it needs: dumps of the flight recorder, of as many ranks as there are
(`TORCH_FR_BUFFER_SIZE=2000`, which older versions call `TORCH_NCCL_TRACE_BUFFER_SIZE`, and
`TORCH_NCCL_DUMP_ON_TIMEOUT=1`).

What to do: look at the rank and the line that are named: a branch that not all ranks take, an input
that ended sooner on one of them, an exception that one rank caught, a batch of another size, groups
in another order. Let all ranks issue the same collectives in the same order.

Example: one rank's loader has 4 batches and the others' have 5; it leaves the loop and comes to the
metric's all_reduce, while the others are in the gradients'.
"""

from __future__ import annotations

from stepscope.api import Advice, Auxiliary, Rule

CODE = "hung-collective"
BOUND = "comms"


def advise(auxiliary: Auxiliary) -> Advice | None:
    """What the dumps show; there is nothing to weigh in a job that stands still."""
    hang = auxiliary.hang
    if hang is None:
        return None
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=hang.summary,
        action=hang.action,
        evidence=hang.details,
        ranks=hang.at_fault,
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
