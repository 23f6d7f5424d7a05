"""The step stops while weights are saved.

What it sees: saving or loading (torch.save, distributed checkpoint, safetensors) inside measured
steps, with the copies to the host it makes. `stepscope run` times torch.save in every step, so that
one in every tenth step counts too.

Why it costs: the training process copies the weights to the host and writes them while the device
has nothing to do.

Evidence it needs: a run recorded by `stepscope run`; else stacks (`with_stack=True`) or marks that
name the saving.

What to do: save less often, or `torch.distributed.checkpoint.async_save`, which copies to the host
and writes beside the steps.

Example: saving 1.5 GB every step costs about a second of each.
"""

from __future__ import annotations

from stepscope.analyses.host.activity import IO_RANGE
from stepscope.core.diagnosis import Abstention
from stepscope.core.run import Stalls
from stepscope.core.trace import Kind
from stepscope.replay.changes import without_host_parts
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import (
    marked_lines,
    named_events,
    rounded_up,
    without_ranges,
)

CODE = "checkpoint-stall"
BOUND = "host"
BEARABLE_SHARE = 0.01
"""Share of the run's time that saving may take."""


def propose(case: Case) -> Proposal | Abstention | None:
    """Take the saving, and the copies it makes, out of the steps."""
    graph, stalls = case.graph, case.stalls("save")
    rare_ns = 0.0 if stalls is None else float(stalls.step_ns)
    if not graph.call_parts["io"].any() and rare_ns == 0:
        return None
    between_ns = case.step_interval_ns / case.speedup(_elsewhere(case, graph))
    inside_ns = max(case.step_interval_ns - between_ns, 0.0)
    times = max(len(case.context.host.io), 1) / graph.num_steps
    once_ns = inside_ns / times if stalls is None else float(stalls.once_ns)
    seldom = rounded_up(once_ns / (BEARABLE_SHARE * between_ns))
    events = named_events(case, IO_RANGE, Kind.OP, Kind.MARK, Kind.PYTHON)
    return Proposal(
        summary="The step stops to save or load files: "
        f"{(inside_ns + rare_ns) / 1e6:.1f} ms a step{_over(stalls)}.",
        action=f"Save every {seldom} steps or more seldom, for {BEARABLE_SHARE:.0%} of the "
        "time at most; or asynchronously (torch.distributed.checkpoint.async_save)",
        evidence=_evidence(case, graph, stalls),
        events=events,
        locations=marked_lines(case, events, stalls),
        change=lambda before: _elsewhere(case, before),
        rare_ns=rare_ns,
    )


def _over(stalls: Stalls | None) -> str:
    return "" if stalls is None else " over all of them"


def _evidence(case: Case, graph: Graph, stalls: Stalls | None) -> tuple[str, ...]:
    if stalls is not None:
        longer = f"{stalls.once_ns / 1e6:.1f} ms"
        return (f"one of {stalls.every:.3g} timed steps saves, and takes {longer} longer for it",)
    num = len(case.context.host.io)
    return (f"{num} stretches of saving or loading while {graph.num_steps} steps were recorded",)


def _elsewhere(case: Case, graph: Graph) -> Graph:
    return without_host_parts(without_ranges(case, graph, case.context.host.io), "io")


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    propose=propose,
    # What is saved is copied first.
    answers=("transfer",),
)
