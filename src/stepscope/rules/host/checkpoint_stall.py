"""The step stops while weights are saved.

What it sees: saving or loading (torch.save, distributed checkpoint, safetensors) inside measured
steps, with the copies to the host it makes.

Why it costs: the training process copies the weights to the host and writes them while the device
has nothing to do.

Evidence it needs: stacks (`with_stack=True`) or marks that name the saving.

What to do: save less often, or `torch.distributed.checkpoint.async_save`, which copies to the host
and writes beside the steps.

Example: saving 1.5 GB every step costs about a second of each.
"""

from __future__ import annotations

import math

from msgspec import Struct

from stepscope.analyses.host.activity import IO_RANGE
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Kind
from stepscope.replay.changes import without_host_parts
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.host_ranges import named_events, without_ranges

CODE = "checkpoint-stall"
BOUND = "host"
NEEDS_DEVICE = False


class Policy(Struct, frozen=True, kw_only=True):
    bearable_share: float = 0.01
    """Of the run's time that saving may take."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """Take the saving, and the copies it makes, out of the steps."""
    if case.graph is None:
        return None
    saving_ns = float(case.graph.call_parts["io"].sum()) / max(case.graph.num_steps, 1)
    if saving_ns == 0 or case.step_interval_ns is None:
        return None
    once_ns = saving_ns * case.graph.num_steps / max(len(case.context.host.io), 1)
    between_ns = case.step_interval_ns / case.speedup(_elsewhere(case, case.graph))
    seldom = math.ceil(once_ns / (POLICY.bearable_share * between_ns))
    return Proposal(
        code=CODE,
        bound=BOUND,
        summary=f"The step stops to save or load files: {saving_ns / 1e6:.1f} ms a step in the "
        "recording.",
        action=f"Save every {_rounded(seldom)} steps or more seldom, for "
        f"{POLICY.bearable_share:.0%} "
        "of the time at most; or"
        " asynchronously (torch.distributed.checkpoint.async_save)",
        evidence=(
            (
                f"{len(case.context.host.io)} stretches of saving or loading while "
                f"{case.graph.num_steps} steps were recorded"
            ),
        ),
        events=named_events(case, IO_RANGE, Kind.OP, Kind.MARK, Kind.PYTHON),
        change=lambda graph: _elsewhere(case, graph),
    )


def _elsewhere(case: Case, graph: Graph) -> Graph:
    return without_host_parts(without_ranges(case, graph, case.context.host.io), "io")


def _rounded(steps: int) -> int:
    """The next number with one digit that counts: 137 becomes 200."""
    unit = int("1".ljust(len(str(max(steps, 1))), "0"))
    return math.ceil(max(steps, 1) / unit) * unit
