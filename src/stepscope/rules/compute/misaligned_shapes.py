"""Matrix products have a dimension that the fast kernels cannot load.

What it sees: products with a weight whose rows, or whose output's rows, are no multiple of 16 bytes
(8 numbers in 16 bits, 4 in TF32), most often a vocabulary (50257) or a hidden size; and what the
step's other products reach of what the device gives.

Why it costs: the copy engines that feed the tensor cores take 16 bytes at a time. Rows that begin
in between are loaded number by number by older kernels (their names end in align1 or align2), three
to seven times slower on an H200. The number of tokens does not matter: no row is that long.

Evidence it needs: shapes (`record_shapes=True`); strides, which come with them, tell which
dimension is the row.

What to do: pad the vocabulary or the hidden size to the next multiple of 64 (50257 to 50304:
`resize_token_embeddings(n, pad_to_multiple_of=64)`); the padded logits are masked or never looked
up.

Example: a 2-layer GPT-2 with 50257 tokens took 28.5 ms a step, 15.2 ms with 50304.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Bool, Float64
from stepscope.replay.changes import Change, with_task_ns
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.products import MISALIGNED_NAME, ROW_OF, padded_times, product_sizes
from stepscope.rules.shared.unrecorded import ask_for_shapes
from stepscope.rules.task_table import TaskTable, per_step_ms

CODE = "misaligned-shapes"
BOUND = "compute"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.005
    """Share of the step in such products below which nothing is reported."""
    unknown_share: float = 0.05
    """Share of the step in kernels that look so by name from which shapes are asked for."""
    pad_to: int = 64
    uncertainty: float = 0.25
    """Fraction of the padded products' time that they may take more or less: what well-made
    products differ by (0.69 to 0.81 of the peak, and tails)."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """The same products, padded, at the rate that the step's aligned ones reach."""
    graph, roofs = case.graph, case.context.roofs
    table = case.table
    if roofs is None or not case.context.trace.meta.has_shapes:
        return _ask(case, graph, table)
    padded, plain = padded_times(case)
    slow = ~np.isnan(padded) & (graph.task_ns > np.nan_to_num(padded) * plain)
    spent_ms = per_step_ms(graph, slow)
    if spent_ms * 1e6 < POLICY.least_share * case.step_interval_ns:
        return None
    longest = int(np.flatnonzero(slow)[np.argmax(graph.task_ns[slow])])
    steps, sizes = max(graph.num_steps, 1), product_sizes(table, int(table.op[longest]))
    named = int(matching(table.trace, MISALIGNED_NAME)[graph.task_event[slow]].sum())
    return Proposal(
        summary=f"{spent_ms:.1f} ms a step are products whose rows are no multiple of 16 bytes.",
        action=f"pad {_odd_words(sizes, table.precision[longest])} (a multiple of {POLICY.pad_to})",
        evidence=(
            (
                f"{int(slow.sum()) // steps} products a step, the longest "
                f"{' x '.join(map(str, sizes))} (m x n x k)"
            ),
            (
                f"that one takes {float(graph.task_ns[longest]) / 1e3:.0f} us; padded about "
                f"{padded[longest] * plain / 1e3:.0f}"
            ),
            f"{named // steps} of their kernels are named align1 or align2",
        ),
        events=graph.task_event[slow],
        change=_padded(slow, padded * plain),
        cautious=_padded(slow, padded * plain * (1 + POLICY.uncertainty)),
        hopeful=_padded(slow, padded * plain * (1 - POLICY.uncertainty)),
        changes_numerics=True,
    )


def _ask(case: Case, graph: Graph, table: TaskTable) -> Abstention | None:
    named = table.of_category("gemm") & matching(table.trace, MISALIGNED_NAME)[graph.task_event]
    named &= table.tensor_core == 1
    reason = "products in kernels named align1 or align2, of sizes not known"
    return ask_for_shapes(case, CODE, named, POLICY.unknown_share, reason)


def _odd_words(sizes: tuple[int, int, int], precision: str) -> str:
    odd = sorted({size for size in sizes if size % ROW_OF.get(precision, 8)}, reverse=True)
    return (
        " and ".join(f"{size} to {math.ceil(size / POLICY.pad_to) * POLICY.pad_to}" for size in odd)
        or "the rows"
    )


def _padded(slow: Bool, times: Float64) -> Change:
    return lambda graph: with_task_ns(graph, slow, np.where(slow, times, np.inf))


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
