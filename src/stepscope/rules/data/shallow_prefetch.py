"""Batches come in bursts: every n-th step waits for the loader, the others find theirs ready.

What it sees: fetches of a multi-process DataLoader that wait at equal distances, the ones between
ready at once.

Why it costs: workers that started together finish together. Their n batches are used up one after
another while the next n are being made, and if too few are kept ready the device stands still once
in n steps. On average there are enough workers.

Evidence it needs: `enumerate(DataLoader)` marks over at least three bursts; record 3 x num_workers
steps or more.

What to do: raise `prefetch_factor` (2 is the default) to 4 or 8; it costs that many batches of host
memory per worker. If the mean wait stays, the workers are too few: see starved-loader.

Example: (for illustration, not measured) 4 workers, every fourth step waited 40 ms behind three of
12 ms; with prefetch_factor=8 each took 19.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct
from stepscope.analyses.host.loader import READY_NS, WORKERS, next_calls
from stepscope.core.diagnosis import Abstention
from stepscope.replay.changes import with_part_ns
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.rule import Rule

CODE = "shallow-prefetch"
BOUND = "data"


class Policy(Struct, frozen=True, kw_only=True):
    least_bursts: int = 3
    """Two equal distances between them: fewer may be chance."""
    least_share: float = 0.02
    """Share of the run spent in those waits below which nothing is reported."""
    least_speedup: float = 1.02
    """Speedup under which the median step does not show the bursts: they are reported without a
    gain."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Spread the bursts' waits evenly over the steps."""
    fetches = case.context.trace.dur_ns[next_calls(case.context.trace, case.context.host, WORKERS)]
    bursts = np.flatnonzero(fetches > READY_NS)
    distance = distinct(np.diff(bursts))
    if len(bursts) < POLICY.least_bursts or len(distance) != 1 or int(distance[0]) < 2:
        return None
    every, wait_ms = int(distance[0]), float(fetches[bursts].mean()) / 1e6
    if wait_ms * 1e6 / every < POLICY.least_share * case.step_interval_ns:
        return None
    if case.speedup(_smoothed(case.graph)) < POLICY.least_speedup:
        return Remark(
            code=CODE,
            text=f"every {every}. step waits {wait_ms:.1f} ms for the loader, the others do not: "
            f"its workers deliver in bursts; try prefetch_factor={2 * _depth(case)} or "
            f"{4 * _depth(case)} ({wait_ms / every:.1f} ms a step at most; the median step does "
            "not show it)",
        )
    return Proposal(
        summary=f"Batches come in bursts: every {every}. step waits "
        f"{wait_ms:.1f} ms for the loader.",
        action=f"DataLoader(prefetch_factor={2 * _depth(case)}), then {4 * _depth(case)} "
        f"({_depth(case)} now)",
        evidence=(
            f"{len(bursts)} of {len(fetches)} fetches waited, each {every} steps after the last",
        ),
        change=_smoothed,
        cautious=lambda graph: graph,
    )


def _depth(case: Case) -> int:
    """Batches that each worker keeps ready; PyTorch's own number where the job's is not known."""
    loader = None if case.metadata is None else case.metadata.loader
    if loader is None or loader.prefetch_factor is None:
        return 2
    return max(2, loader.prefetch_factor)


def _smoothed(graph: Graph) -> Graph:
    """Each of the loader's calls takes the mean of them all."""
    part = graph.call_parts["input"]
    mean = float(part[part > 0].mean()) if (part > 0).any() else 0.0
    return with_part_ns(graph, "input", np.where(part > 0, mean, 0.0))


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
