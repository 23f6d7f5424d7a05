"""Attention is spelled out: scores, mask, softmax and product as kernels of their own.

What it sees: a batched product whose result, one number per query and key, goes through a softmax
into a second batched product (also the math back end of scaled_dot_product_attention), with
everything between, forward and backward.

Why it costs: the scores are queries x keys x heads numbers, and every kernel between the products
reads and writes them all. A fused kernel keeps them on the chip. Over fp32 tensors the fused
kernels' arithmetic is slower than the products' in TF32, and short sequences gain little: what is
predicted is the fused kernel's own time, not that the traffic is gone.

Evidence it needs: shapes (`record_shapes=True`).

What to do: `F.scaled_dot_product_attention(q, k, v, is_causal=True)`; `attn_implementation="sdpa"`
in transformers; `flex_attention` for masks of your own. An explicit mask tensor keeps the flash
kernels away: say `is_causal` where that is meant. `with sdpa_kernel(SDPBackend.FLASH_ATTENTION):`
(torch.nn.attention) around a call makes it fail, with the reason, where the flash kernel cannot be
taken: that is how to check which one runs. Which form when: sdpa for full and causal attention;
`flex_attention` for any mask or bias that a function of positions gives; its decoding kernel
(FlexDecoding, chosen by itself where queries are few) for generation; context parallelism
(`torch.distributed.tensor.experimental.context_parallel`, `stepscope plan --cp N`) where one
sequence is too long for a device.

Example: a hand-written causal attention at 2048 tokens took 123 ms a step, 33 ms as
scaled_dot_product_attention.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import Intervals, union
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.analyses.steps.projection import BACKWARD_RANGE
from stepscope.core.diagnosis import Abstention
from stepscope.core.hardware import OperatorCall
from stepscope.core.trace import NONE, Bool
from stepscope.replay.changes import Change, without_host_ranges
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.attention_backends import backends_line
from stepscope.rules.shared.measured import attention_call, probed_time
from stepscope.rules.shared.rates import ATTENTION_BACKWARD, attention_ns
from stepscope.rules.shared.unrecorded import ask_for_shapes
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.operands import operand, operands

CODE = "unfused-attention"
BOUND = "memory"

SDPA = re.compile(r"^aten::scaled_dot_product_attention$")
WRITTEN_OUT = (
    'attn_implementation="sdpa" where the model has that knob, else '
    "F.scaled_dot_product_attention(q, k, v, is_causal=True), with is_causal in place of a causal "
    "mask; flex_attention for masks of other kinds"
)
FALLEN_BACK = (
    "from torch.nn.attention import SDPBackend, sdpa_kernel; with "
    "sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]): around the call "
    "forces a fused back end, or warns why none takes it. In place of an explicit mask: "
    "is_causal=True for a causal one, flex_attention for others"
)
"""Where the model calls it already."""


class Policy(Struct, frozen=True, kw_only=True):
    unknown_share: float = 0.02
    """Share of the step in softmax kernels from which shapes are asked for."""
    reach: int = 40
    """Tasks between the softmax and its products: scale, mask, casts, dropout, and copies take a
    dozen."""
    launches_left: int = 2
    """Launches' worth of a group's host time that is left: the fused operator dispatches and
    launches, with a helper."""


POLICY = Policy()
PRODUCTS = {"aten::bmm": (0, 1), "aten::baddbmm": (1, 2), "aten::baddbmm_": (1, 2)}
"""Batched products, and where their matrices are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGroup:
    """One spelled-out attention: its sizes, and the tasks of its forward or its backward."""

    batch: int
    queries: int
    keys: int
    dim: int
    precision: str
    causal: bool
    lead: int
    """The task that the fused kernel takes the place of."""
    tasks: tuple[int, ...]
    span: tuple[int, int]
    """The host's time from its first product to its last, forward."""
    is_backward: bool

    def fused_ns(self, roofs: DevicePeaks, now_ns: float, *, causal: bool) -> float:
        """The fused kernel's time, measured where it was; `now_ns` is what the group takes."""
        found = probed_time(roofs, self.call(causal=causal), self.precision, now_ns)
        probed = None if found is None else found.ns
        if probed is not None:
            return probed
        once = attention_ns(
            roofs,
            batch=self.batch,
            queries=self.queries,
            keys=self.keys,
            dim=self.dim,
            precision=self.precision,
            causal=causal,
        )
        return once * ATTENTION_BACKWARD if self.is_backward else once

    def call(self, *, causal: bool) -> OperatorCall:
        """The fused one."""
        query = (self.batch, 1, self.queries, self.dim)
        key = (self.batch, 1, self.keys, self.dim)
        return attention_call(query, key, key, (), causal=causal, backward=self.is_backward)


def propose(case: Case) -> Proposal | Abstention | None:
    """Each group becomes one fused kernel."""
    graph, roofs = case.graph, case.context.roofs
    table = case.table
    if not case.context.trace.meta.has_shapes:
        softmax, reason = table.of_category("softmax"), "softmax kernels of unknown size"
        return ask_for_shapes(case, CODE, softmax, POLICY.unknown_share, reason)
    groups = find_groups(case, graph, table)
    if not groups or roofs is None:
        return None
    mask = np.zeros(len(graph), np.bool_)
    for group in groups:
        mask[list(group.tasks)] = True
    first = groups[0]
    count = sum(not group.is_backward for group in groups) // max(graph.num_steps, 1)
    sizes = Counter(
        (group.batch, group.queries, group.keys, group.dim, group.precision) for group in groups
    ).most_common(1)[0][0]
    fallen_back = _fallen_back(case, table, groups)
    return Proposal(
        summary=f"{per_step_ms(graph, mask):.1f} ms a step of attention written out as separate "
        f"kernels{'' if fallen_back is None else ': scaled_dot_product_attention fell back'}.",
        action=WRITTEN_OUT if fallen_back is None else FALLEN_BACK,
        evidence=(
            *(() if fallen_back is None else (fallen_back,)),
            f"{count} attentions a step, {len(first.tasks)} kernels for one forward pass",
            (
                f"{sizes[0]} heads x batch of {sizes[1]} queries x {sizes[2]} keys, head size "
                f"{sizes[3]}, {sizes[4]}"
            ),
            *backends_line(
                roofs,
                first.call(causal=first.causal),
                first.precision,
                per_step_ms(graph, mask) * 1e6,
            ),
        ),
        events=graph.task_event[mask],
        change=_fusing(case, graph, groups, roofs, mask, None),
        cautious=_fusing(case, graph, groups, roofs, mask, False),
        hopeful=_fusing(case, graph, groups, roofs, mask, True),
        changes_numerics=True,
    )


def _fallen_back(case: Case, table: TaskTable, groups: list[AttentionGroup]) -> str | None:
    """Note that scaled_dot_product_attention itself wrote most of them out, and its mask; None
    where the model did."""
    trace = case.replayed
    wanted = matching(trace, SDPA) & ~trace.device_work
    leads = [int(table.op[group.lead]) for group in groups if not group.is_backward]
    parent = case.context.links.parent[: len(trace)]
    outer = ancestor_with(parent, np.array(leads, np.int64), wanted)
    inside = outer[outer != NONE]
    if 2 * len(inside) <= len(leads):
        return None
    words = f"{len(inside)} of {len(leads)} are aten::scaled_dot_product_attention's math back end"
    inputs = table.inputs(int(inside[0]))
    mask = None if inputs is None else operand(inputs, 3)
    if mask is None or not mask.dims:
        return f"{words}, without a mask"
    return f"{words}, with a mask of {'x'.join(map(str, mask.dims))}"


def find_groups(case: Case, graph: Graph, table: TaskTable) -> list[AttentionGroup]:
    """Every softmax that stands between two batched products of its size, and the backward work of
    each."""
    forward = [
        group
        for task in _softmax_tasks(table)
        if (group := _forward_group(case, graph, table, task)) is not None
    ]
    return forward + _backward_groups(table, forward)


def _softmax_tasks(table: TaskTable) -> list[int]:
    named = table.where(lambda op: table.op_name(op) in ("aten::_softmax", "aten::_safe_softmax"))
    tasks: list[int] = np.flatnonzero(named & table.leads).tolist()
    return tasks


def _forward_group(
    case: Case, graph: Graph, table: TaskTable, softmax: int
) -> AttentionGroup | None:
    inputs = table.inputs(int(table.op[softmax]))
    scores = None if inputs is None else operand(inputs, 0)
    if scores is None or len(scores.dims) < 3:
        return None
    first = _product(table, softmax, -1, scores.numel, reads=False)
    second = _product(table, softmax, +1, scores.numel, reads=True)
    if first is None or second is None:
        return None
    left = _matrices(table, int(table.op[first]))
    right = _matrices(table, int(table.op[second]))
    if left is None or right is None:
        return None
    queries, keys = scores.dims[-2], scores.dims[-1]
    low, high = _host_span(case, table, first)[0], _host_span(case, table, second)[1]
    near = np.arange(max(first - 8, 0), second + 1)
    launch = case.context.links.launch[graph.task_event[near]]
    launched = case.replayed.start_ns[np.maximum(launch, 0)]
    inside = near[
        (launched >= low)
        & (launched <= high)
        & (graph.task_stream[near] == graph.task_stream[softmax])
    ]
    return AttentionGroup(
        batch=max(scores.numel // max(queries * keys, 1), 1),
        queries=queries,
        keys=keys,
        dim=max(left[0][-1], right[1][-1]),
        precision=table.precision[first] or "fp32",
        causal=_is_causal(table, inside.tolist(), queries, keys),
        lead=first,
        tasks=tuple(inside.tolist()),
        span=(low, high),
        is_backward=False,
    )


def _product(table: TaskTable, start: int, step: int, numel: int, *, reads: bool) -> int | None:
    """The nearest batched product before or after; None when it has nothing to do with so many
    scores."""
    for task in range(start + step, max(min(start + step * POLICY.reach, len(table.op)), -1), step):
        op = int(table.op[task])
        if not table.leads[task] or not table.is_matrix[task]:
            continue
        pair = _matrices(table, op)
        if pair is None:
            return None
        (batch, rows, inner), (_, _, columns) = pair
        of_scores = batch * rows * (inner if reads else columns) == numel
        return task if of_scores else None
    return None


def _matrices(
    table: TaskTable, op: int
) -> tuple[tuple[int, int, int], tuple[int, int, int]] | None:
    positions, inputs = PRODUCTS.get(table.op_name(op)), table.inputs(op)
    if positions is None or inputs is None:
        return None
    left, right = operand(inputs, positions[0]), operand(inputs, positions[1])
    if left is None or right is None or len(left.dims) != 3 or len(right.dims) != 3:
        return None
    return (left.dims[0], left.dims[1], left.dims[2]), (right.dims[0], right.dims[1], right.dims[2])


def _host_span(case: Case, table: TaskTable, task: int) -> tuple[int, int]:
    """When the host was inside the product, or in the matmul around it, which also copies what is
    not contiguous."""
    trace, op = case.replayed, int(table.op[task])
    outer = int(case.context.links.parent[op])
    wide = (
        outer if outer != NONE and table.op_name(outer) in ("aten::matmul", "aten::einsum") else op
    )
    start = int(trace.start_ns[wide])
    return start, start + int(trace.dur_ns[wide])


def _is_causal(table: TaskTable, tasks: list[int], queries: int, keys: int) -> bool:
    """Whether one and the same triangle-sized mask is applied to every batch entry: then it is
    almost always the causal one."""
    if queries != keys:
        return False
    for task in tasks:
        inputs = table.inputs(int(table.op[task]))
        if inputs is None or not table.op_name(int(table.op[task])).removesuffix("_").endswith(
            ("masked_fill", "where", "add")
        ):
            continue
        masks = [
            tensor
            for tensor in operands(inputs, range(len(inputs.dims)))
            if tensor.dims[-2:] == (queries, keys)
        ]
        if any(prod(mask.dims[:-2]) == 1 or mask.stored == queries * keys for mask in masks):
            return True
    return False


def _backward_groups(table: TaskTable, forward: list[AttentionGroup]) -> list[AttentionGroup]:
    """Backward tasks, by the forward attention whose operators they belong to."""
    trace = table.trace
    starts = np.array([group.span[0] for group in forward])
    ends = np.array([group.span[1] for group in forward])
    tasks = np.flatnonzero(
        table.backward & ~table.recomputed & (table.home != NONE) & (table.home != table.op)
    )
    if len(tasks) == 0 or len(forward) == 0:
        return []
    order = np.argsort(starts)
    began = trace.start_ns[table.home[tasks]]
    position = np.searchsorted(starts[order], began, side="right") - 1
    hit = (position >= 0) & (began <= ends[order[np.maximum(position, 0)]])
    groups = []
    for number in distinct(position[hit]).tolist():
        own = tuple(tasks[hit & (position == number)].tolist())
        lead = next((task for task in own if table.leads[task] and table.is_matrix[task]), own[0])
        groups.append(replace(forward[order[number]], lead=lead, tasks=own, is_backward=True))
    return groups


def _fusing(
    case: Case,
    graph: Graph,
    groups: list[AttentionGroup],
    roofs: DevicePeaks,
    mask: Bool,
    causal: bool | None,
) -> Change:
    leads = np.array([group.lead for group in groups])
    now_ns = np.array([graph.task_ns[list(group.tasks)].sum() for group in groups])
    times = np.array(
        [
            group.fused_ns(roofs, ns, causal=group.causal if causal is None else causal)
            for group, ns in zip(groups, now_ns.tolist(), strict=True)
        ]
    )
    times = np.where(np.isnan(times), now_ns, times)
    gone = _host_time(case, graph, groups)
    launches = sum(len(group.tasks) for group in groups) / len(groups)
    share = max(1.0 - POLICY.launches_left / max(launches, 1.0), 0.0)

    def change(before: Graph) -> Graph:
        lengths, gaps = np.where(mask, 0.0, before.task_ns), np.where(mask, 0.0, before.task_gap_ns)
        lengths[leads], gaps[leads] = times, before.task_gap_ns[leads]
        return without_host_ranges(replace(before, task_ns=lengths, task_gap_ns=gaps), gone, share)

    return change


def _host_time(case: Case, graph: Graph, groups: list[AttentionGroup]) -> Intervals:
    """The host's time from a forward group's first product to its last, and in the backward nodes
    of the others."""
    trace, links = case.context.trace, case.context.links
    backward = [task for group in groups if group.is_backward for task in group.tasks]
    launch = links.launch[graph.task_event[np.array(backward, np.int64)]]
    nodes = ancestor_with(links.parent, launch, matching(trace, BACKWARD_RANGE))
    nodes = distinct(nodes[nodes != NONE])
    spans = [group.span for group in groups if not group.is_backward]
    start = np.concatenate([trace.start_ns[nodes], np.array([low for low, _ in spans], np.int64)])
    return union(
        start,
        np.concatenate([trace.end_ns[nodes], np.array([high for _, high in spans], np.int64)]),
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
