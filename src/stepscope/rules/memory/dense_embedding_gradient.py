"""Embeddings get gradients as large as their tables, of which a batch touches a few rows.

What it sees: the backward of an embedding whose batch looks up at most a quarter as many rows as
its table has, on one rank, with an optimizer of torch that takes sparse gradients (SGD) or has a
sparse counterpart (Adam, AdamW). Tables that a product reads too (a tied output layer) are
left out: their gradients are dense anyway.

Why it costs: a gradient of the table's size is filled with zeros, its few rows are sorted and
summed into it, and the optimizer reads and writes the whole table with its states.

Evidence it needs: shapes (`record_shapes=True`), and the optimizer's mark.

What to do: `nn.Embedding(..., sparse=True)` (`nn.EmbeddingBag` too). SGD without weight decay takes
it as it is; for Adam the tables go to a `torch.optim.SparseAdam` of their own, whose averages of
rows that a batch does not touch rest: another training. SparseAdam costs the host more than what it
spares where tables are small. The range ends where none of the host's cost is left.

Example: eight tables of a million rows of 64 under SGD, 4,096 rows of each a batch, took 3.55 ms a
step; 2.28 with sparse gradients. Under Adam, with 200,000 rows each, SparseAdam made 8.2 ms of 4.9.
"""

from __future__ import annotations

import re
from collections import Counter
from math import prod

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import is_among
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import Intervals
from stepscope.analyses.weights import BLOCK, Trained, optimizer_of, trained_weights
from stepscope.core.numbers import size_words
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace
from stepscope.replay.changes import with_part_ns, with_task_ns, without_tasks
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.evidence import EMBEDDING_BACKWARD, on_host
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import (
    named_events,
    ranges_of,
    share_inside,
    with_shorter_operators,
)
from stepscope.rules.task_table import per_step_ms
from stepscope.workload.inputs import ParsedInputs, inputs_of, integer_at
from stepscope.workload.operands import is_shape

CODE = "dense-embedding-gradient"
BOUND = "memory"
ROWS_AT = {"aten::embedding_dense_backward": 2, "aten::_embedding_bag_dense_backward": 5}
"""The argument that says how many rows the table has."""
PASSES = re.compile(r"^aten::(_?foreach_)?(\w+_|sqrt|add|mul|div|clone|linalg_vector_norm|norm)$")
"""Operators in place, and those of optimizers and of clipping: they pass over all that they
read."""
ELEMENT_BYTES = 4
MAX_TOUCHED = 0.25
"""Share of a table's rows that a batch looks up beyond which a sparse gradient spares little."""
HOST_LEFT = {"SGD": 0.3, "Adam": 2.2, "AdamW": 2.2}
"""Ratio of the sparse update's host time to the dense operator's: 0.28 with SGD, from four tables
of 20,000 rows, and 2.2 with SparseAdam, from eight of 200,000, whose steps wait for the host (an
H200's, torch 2.11). Other optimizers' was not measured."""
RESTING = ("Adam", "AdamW")
"""Optimizers whose sparse counterpart lets untouched rows rest."""


class Tables(Struct, frozen=True, kw_only=True):
    """Embeddings of which a batch touches few rows."""

    events: Int64
    """Their dense backward operators."""
    num: int
    """Number of these operators in a step."""
    size_bytes: int
    touched: float
    """The share of their rows that a batch looks up, at most."""


def propose(case: Case) -> Proposal | None:
    """Gradients of the rows that were looked up, and an update of these alone."""
    optimizer = optimizer_of(case.context.trace) or ""
    if case.graph.on_host:
        return _on_host(case, optimizer)
    left = HOST_LEFT.get(optimizer)
    trained = trained_weights(case.context)
    if left is None or trained is None or (case.context.trace.meta.world_size or 1) > 1:
        return None
    tables = tables_of(case, trained)
    if tables is None:
        return None
    ranges = ranges_of(case, tables.events)
    # Mask of the tasks that these operators launch.
    chosen = np.zeros(len(case.context.trace), np.bool_)
    chosen[tables.events] = True
    ops = case.table.op
    launched: Bool = ancestor_with(case.context.links.parent, ops, chosen) != NONE
    inside = launched | is_among(ops, tables.events)
    kept = 1.0 - (1.0 - tables.touched) * min(tables.size_bytes / trained.size_bytes, 1.0)
    update_ms = per_step_ms(case.graph, case.table.optimizer)
    rests = optimizer in RESTING
    remedy = "torch.optim.SparseAdam for these tables alone" if rests else f"{optimizer} as it is"
    return Proposal(
        summary=f"Gradients of {tables.num} embeddings are written and applied whole, "
        f"{size_words(tables.size_bytes)}; a batch touches {tables.touched:.2g} of their rows.",
        action=f"nn.Embedding(..., sparse=True), with {remedy} (no weight decay)",
        evidence=(
            f"{per_step_ms(case.graph, inside):.2f} ms a step of kernels make these gradients",
            (
                f"{update_ms:.2f} ms a step in the optimizer, {1 - kept:.0%} of its bytes for rows "
                "that no batch touched"
            ),
        ),
        events=tables.events,
        change=lambda graph: _sparse(case, graph, ranges, inside, kept, left),
        hopeful=lambda graph: _sparse(case, graph, ranges, inside, kept, 0.0),
        changes_numerics=True,
        changes_training=rests,
        may_slow=rests,
    )


def _on_host(case: Case, optimizer: str) -> Proposal | None:
    """Propose without a device, where the operators over whole tables are the work: gradients that
    are filled, added up, and applied."""
    trace = case.context.trace
    is_asked = optimizer in HOST_LEFT and (trace.meta.world_size or 1) == 1
    if not is_asked or not on_host(case):
        return None
    touched: dict[tuple[int, int], float] = {}
    for event in named_events(case, EMBEDDING_BACKWARD, Kind.OP).tolist():
        inputs = inputs_of(trace, event)
        shape = None if inputs is None else _table_shape(inputs, trace.names[trace.name[event]])
        if inputs is not None and shape is not None:
            share = prod(each for each in inputs.dims[1] if isinstance(each, int)) / shape[0]
            touched[shape] = max(touched.get(shape, 0.0), share)
    tables = {shape: share for shape, share in touched.items() if share <= MAX_TOUCHED}
    whole = _over(case, set(tables))
    if not len(whole):
        return None
    ranges, kept = ranges_of(case, whole), max(tables.values())
    rests = optimizer in RESTING
    remedy = "torch.optim.SparseAdam for these tables alone" if rests else f"{optimizer} as it is"
    size = sum(map(prod, tables)) * ELEMENT_BYTES
    return Proposal(
        summary=f"Gradients of {len(tables)} embeddings are written and applied whole, "
        f"{size_words(size)}; a batch touches {kept:.2g} of their rows at most.",
        action=f"nn.Embedding(..., sparse=True), with {remedy} (no weight decay)",
        evidence=(
            f"{len(whole) / max(case.graph.num_steps, 1):.0f} operators a step pass over all rows",
        ),
        events=whole,
        change=lambda graph: with_shorter_operators(case, graph, ranges, 1.0 - kept),
        cautious=lambda graph: with_shorter_operators(
            case, graph, ranges, 1.0 - min(HOST_LEFT[optimizer] / 2, 1.0)
        ),
        changes_numerics=True,
        changes_training=rests,
        may_slow=rests,
    )


def _over(case: Case, tables: set[tuple[int, int]]) -> Int64:
    """Operators that pass over whole tables: in the optimizer's step, and what makes and adds up
    their gradients. Where a product reads one, it is dense anyway."""
    trace = case.replayed
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & (trace.detail >= 0))
    names = np.array([bool(PASSES.search(name)) for name in trace.names], np.bool_)[trace.name[ops]]
    dims = [_dims(trace, op) for op in ops.tolist()]
    read = {shape for each, passes in zip(dims, names, strict=True) if not passes for shape in each}
    tied = {shape for shape in tables if shape[::-1] in read}
    chosen = [bool(each) and each[0] in tables - tied for each in dims]
    over: Int64 = ops[names & np.array(chosen, np.bool_)]
    made = named_events(case, EMBEDDING_BACKWARD, Kind.OP)
    return np.unique(np.concatenate([over, made])) if len(over) and tables - tied else over[:0]


def _dims(trace: Trace, op: int) -> list[tuple[int, ...]]:
    inputs = inputs_of(trace, op)
    return [] if inputs is None else [tuple(dims) for dims in inputs.dims if is_shape(dims)]


def tables_of(case: Case, trained: Trained) -> Tables | None:
    """None where a batch touches no table sparsely."""
    steps, table = max(case.graph.num_steps, 1), case.table
    sizes, products = Counter(trained.sizes), _multiplied(case)
    events, shapes, rows = [], Counter[tuple[int, int]](), 0
    for event in named_events(case, EMBEDDING_BACKWARD, Kind.OP).tolist():
        inputs = table.inputs(event)
        shape = None if inputs is None else _table_shape(inputs, table.op_name(event))
        if inputs is None or shape is None or shape in products:
            continue
        looked_up = prod(each for each in inputs.dims[1] if isinstance(each, int))
        if looked_up <= MAX_TOUCHED * shape[0] and sizes[_table_bytes(shape)]:
            events.append(event)
            shapes[shape] += 1
            rows += looked_up
    if not events:
        return None
    # One table may be looked up several times a step: weights are counted.
    num = {
        shape: min(sizes[_table_bytes(shape)], max(count // steps, 1))
        for shape, count in shapes.items()
    }
    whole = sum(shape[0] * each for shape, each in num.items())
    return Tables(
        events=np.array(events, np.int64),
        num=sum(num.values()),
        size_bytes=sum(_table_bytes(shape) * each for shape, each in num.items()),
        touched=min(rows / steps / max(whole, 1), 1.0),
    )


def _table_shape(inputs: ParsedInputs, name: str) -> tuple[int, int] | None:
    rows, gradient = integer_at(inputs, ROWS_AT[name]), inputs.dims[0]
    if not rows or not is_shape(gradient) or not gradient or not is_shape(inputs.dims[1]):
        return None
    return rows, gradient[-1]


def _table_bytes(shape: tuple[int, int]) -> int:
    """Bytes in the allocator's blocks, as weights are counted."""
    return -(-prod(shape) * ELEMENT_BYTES // BLOCK) * BLOCK


def _multiplied(case: Case) -> set[tuple[int, ...]]:
    """Shapes of what products read, either way round."""
    shapes: set[tuple[int, ...]] = set()
    for op in case.table.examples(case.table.is_matrix):
        inputs = case.table.inputs(op)
        for dims in () if inputs is None else inputs.dims:
            if is_shape(dims) and len(dims) == 2:
                shapes |= {tuple(dims), tuple(dims[::-1])}
    return shapes


def _sparse(
    case: Case, graph: Graph, ranges: Intervals, inside: Bool, kept: float, left: float
) -> Graph:
    """No dense gradient; of the update the rows that were touched, and its cost to the host."""
    work = graph.call_parts["work"] * (1.0 - (1.0 - left) * share_inside(case, ranges))
    update = case.table.optimizer
    shorter = with_task_ns(graph, update, np.asarray(graph.task_ns * kept))
    return with_part_ns(without_tasks(shorter, inside), "work", work)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
