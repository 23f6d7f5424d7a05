"""Device memory is taken from the driver and given back in steady steps.

What it sees: `cudaMalloc`, `cudaFree` and their kin inside measured steps.

Why it costs: PyTorch keeps the memory it has taken, so a steady run calls the driver no more.
`cudaFree` waits for all of the device's work and `cudaMalloc` takes up to milliseconds; both happen
again and again when the cache is emptied, or when memory is so short that it must be returned to be
cut anew.

Evidence it needs: runtime calls. `torch.cuda.memory_stats()["num_alloc_retries"]` over 0 says that
memory is short.

What to do: no `torch.cuda.empty_cache()` in the loop;
`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; a lower peak where retries are counted.

Example: `empty_cache()` after each step makes every step take its blocks from the driver anew.
"""

from __future__ import annotations

from stepscope.analyses.host.activity import ALLOCATOR_CALL
from stepscope.analyses.intervals import contains
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import NONE, Kind
from stepscope.replay.changes import without_host_parts, without_waits
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.between_operators import per_step_ns
from stepscope.rules.shared.host_ranges import named_events

CODE = "allocator-churn"
BOUND = "host"


def propose(case: Case) -> Proposal | Abstention | None:
    """Take the driver's allocations, and the waits they force, out of the steps."""
    rows = case.facts.host.allocator
    if not rows:
        return None
    spent_ns = per_step_ns(case.graph, case.graph.call_parts["allocator"])
    return Proposal(
        summary=f"Memory goes to and from the driver while the run trains: {spent_ns / 1e6:.2f} ms "
        "a step.",
        action="No torch.cuda.empty_cache() in the loop; else "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or a lower peak",
        evidence=tuple(
            (
                f"{row.count} x {row.name}, {row.total_ns / 1e6:.2f} ms, the longest "
                f"{row.longest_ns / 1e6:.2f}"
            )
            for row in rows[:3]
        ),
        events=named_events(case, ALLOCATOR_CALL, Kind.RUNTIME),
        change=lambda graph: _kept(case, graph),
        cautious=lambda graph: without_host_parts(graph, "allocator"),
    )


def _kept(case: Case, graph: Graph) -> Graph:
    """No time in the allocator's calls, and no waiting inside them."""
    inside = contains(case.context.host.allocator, graph.call_start_ns) & (graph.call_wait != NONE)
    return without_waits(without_host_parts(graph, "allocator"), inside)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
