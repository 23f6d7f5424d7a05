"""The step stops while weights are saved.

What it sees: saving or loading (torch.save, distributed checkpoint, safetensors) inside measured steps, with the copies to the
host it makes.

Why it costs: the training process copies the weights to the host and writes them while the device has nothing to do.

Evidence it needs: stacks (`with_stack=True`) or marks that name the saving.

What to do: save less often, or `torch.distributed.checkpoint.async_save`, which copies to the host and writes beside the steps.

Example: saving 1.5 GB every step costs about a second of each.
"""

from __future__ import annotations

from stepscope.replay.changes import without_host_parts
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.host_ranges import spared
from stepscope.rules.proposal import Abstention, Proposal

CODE = "checkpoint-stall"
BOUND = "host"


def propose(case: Case) -> Proposal | Abstention | None:
    """Take the saving, and the copies it makes, out of the steps."""
    if case.graph is None:
        return None
    saving_ns = float(case.graph.call_parts["io"].sum()) / max(case.graph.num_steps, 1)
    if saving_ns == 0:
        return None
    return Proposal(
        code=CODE,
        bound=BOUND,
        summary=f"The step stops to save or load files: {saving_ns / 1e6:.1f} ms a step in the recording.",
        action="Save less often, or asynchronously (torch.distributed.checkpoint.async_save)",
        evidence=(f"{len(case.survey.host.io)} stretches of saving or loading while {case.graph.num_steps} steps were recorded",),
        change=lambda graph: _elsewhere(case, graph),
    )


def _elsewhere(case: Case, graph: Graph) -> Graph:
    return without_host_parts(spared(case, graph, case.survey.host.io), "io")
