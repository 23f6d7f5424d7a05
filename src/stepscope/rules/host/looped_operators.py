"""A Python loop calls the same few small operators, hundreds of times a step.

What it sees: on a run without a device, the same few operators again and again in one order (a
`select` and an `add` per edge of a graph, a `where` per token), and the same in backward; or in any
order, for nodes have not as many edges each and a branch is not always taken. Layers of a model
repeat too, but with many operators in each, or large products: a body of up to 64 counts where it
multiplies no matrices and reads few numbers (the loss of one sample). The optimizer's own loop is
not meant, nor the backward of one operator that turns inside (nn.GRU, nn.LSTM), nor what
`logged-tensors` tells.

Why it costs: a call of an operator takes the host microseconds however little it computes: its
arguments are checked, memory is found, a node for backward is written. A hundred calls on one row
each take a hundred times that; one call on a hundred rows takes it once.

Evidence it needs: operators (`ProfilerActivity.CPU`). Stacks (`with_stack=True`) name the line.

What to do: one operator over all of them: `index_select` and `index_add_` or `scatter_reduce` in
place of a loop over edges, a mask in place of a loop over tokens, `torch.stack` once and
`torch.vmap` over what is left; `torch._foreach_*` for a loop over parameters (an average of
weights, a copy of them). Where each turn needs the one before (a recurrent cell), nn.GRU or
nn.LSTM, or torch.compile. The gain is that of one call in place of each operator's calls; half of
it where only a part of the loop can go.

Example: sums over 600 edges in a loop took 205 ms a step, in 2,500 operators; `index_add` takes 2.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching
from stepscope.core.trace import NONE, Bool, Float64, Int64, Kind, Trace
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_tasks import home_of, in_optimizer, reading
from stepscope.workload.inputs import inputs_of
from stepscope.workload.operands import is_shape

CODE = "looped-operators"
BOUND = "host"


class Policy(Struct, frozen=True, kw_only=True):
    most_operators: int = 16
    """Operators of a loop's body at most, whatever it reads. A layer has more: 20 to 60 in a
    transformer."""
    most_small: int = 64
    """Operators at most of a body without products, whose operators read few numbers each: the loss
    of one sample."""
    least_turns: int = 32
    """Turns of a loop at least. Models of as many layers as that have more operators in each."""
    left: float = 0.5
    """Share of the loop that stays where only part of it can go."""
    small: int = 16_384
    """Numbers that are read in about the time that a call takes (64 KiB: 3 to 10 us on the hosts
    of the recorded runs). A loop that spends half its time in products of more is over work."""


POLICY = Policy()
PRODUCT = re.compile(r"^aten::(mm|addmm|bmm|baddbmm|linear|matmul|\w*convolution\w*)$")
"""Products: what stays of these, in one call, is what they compute."""


def propose(case: Case) -> Proposal | None:
    """One call in place of each operator's calls."""
    graph = case.graph
    if not graph.on_host:
        return None
    turns = turns_of(case, graph)
    looped = turns > 1
    if not looped.any():
        return None
    trace, steps = case.context.trace, max(graph.num_steps, 1)
    nodes = trace.fwd_thread[graph.task_event] > 0
    spent_ns = graph.task_ns + graph.call_parts["work"]
    spent_ms = float(spent_ns[looped].sum()) / steps / 1e6
    names = trace.name[graph.task_event[looped]]
    which, count = np.unique(names, return_counts=True)
    most = np.argsort(-count, kind="stable")[:2]
    words = " and ".join(trace.names[which[at]] for at in most)
    return Proposal(
        summary=f"{int(looped.sum()) / steps:.0f} operators a step are calls of the same few in a "
        f"loop: {spent_ms:.2f} ms, most of it for being called.",
        action="one operator over all of them: index_select and index_add_ for a loop over edges, "
        "a mask for one over tokens, torch.stack and torch.vmap else; where each turn needs the "
        "one before, nn.GRU, nn.LSTM or torch.compile",
        evidence=(
            f"up to {int(turns.max())} turns one after the other, most of {words}",
            f"{float(np.median(graph.task_ns[looped])) / 1e3:.1f} us a call in the middle",
        ),
        events=graph.task_event[looped],
        events_ns=spent_ns[looped],
        change=lambda before: _called_once(before, turns, nodes, 0.0),
        cautious=lambda before: _called_once(before, turns, nodes, POLICY.left),
    )


def turns_of(case: Case, graph: Graph) -> Int64:
    """Turns of the loop that each task is in; 1 outside of loops. The shortest body counts: in `a b
    a b a b` that is `a b`, not `a b a b`. Of turns that are not all alike, as often as the operator
    in the middle is called.

    The shortest body counts: in `a b a b a b` that is `a b`, not `a b a b`. Of turns that are not
    all alike, as often as the operator in the middle is called.
    """
    trace = case.context.trace
    names = trace.name[graph.task_event].astype(np.int64)
    own = ~in_optimizer(case, graph) & ~reading(case)
    home, large = home_of(case, graph), _of_large_products(case, graph)
    turns = np.ones(len(names), np.int64)

    def mark(inside: slice, num: int) -> None:
        if num < POLICY.least_turns or (turns[inside] != 1).any():
            return
        if graph.task_ns[inside][large[inside]].sum() > graph.task_ns[inside].sum() / 2:
            return
        known = home[inside][home[inside] != NONE]
        if not len(known) or len(distinct(known)) >= POLICY.least_turns:
            turns[inside] = num

    small = own & _small(case, graph)
    for size in range(1, POLICY.most_small + 1):
        least = POLICY.least_turns * size
        mine = own if size <= POLICY.most_operators else small
        blocks = [block for block in _runs(mine) if block[1] - block[0] >= least]
        for low, high in blocks:
            inside = slice(low + size, high)
            before = slice(low, high - size)
            same = (names[inside] == names[before]) & (
                graph.task_step[inside] == graph.task_step[before]
            )
            for begin, end in _runs(same):
                mark(slice(low + begin, low + size + end), (end - begin) // size + 1)
    for inside in _irregular(names, graph.task_step, own & (turns == 1)):
        _, counts = np.unique(names[inside], return_counts=True)
        num = int(np.median(counts))
        if inside.stop - inside.start <= POLICY.most_operators * num:
            mark(inside, num)
    return turns


def _runs(mask: Bool) -> list[tuple[int, int]]:
    """Begin and end of each stretch of it."""
    edge = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    begins, ends = np.flatnonzero(edge > 0).tolist(), np.flatnonzero(edge < 0).tolist()
    return list(zip(begins, ends, strict=True))


def _irregular(names: Int64, step: Int64, own: Bool) -> list[slice]:
    """Stretches of operators that a step calls often, in whatever order: nodes of a graph have not
    as many edges each, and a branch is not always taken."""
    _, which, count = np.unique(
        np.stack((step, names)), axis=1, return_inverse=True, return_counts=True
    )
    often = own & (count[which.reshape(-1)] >= POLICY.least_turns)
    stretches = []
    for begin, end in _runs(often):
        # A step's end is one of a stretch, too.
        cuts = np.flatnonzero(np.diff(step[begin:end])) + begin + 1
        bounds = [begin, *cuts.tolist(), end]
        stretches += [slice(low, high) for low, high in pairwise(bounds)]
    return stretches


def _of_large_products(case: Case, graph: Graph) -> Bool:
    """Mask of the tasks in which a product reads more numbers than a call's time is worth."""
    trace = case.context.trace
    products = np.flatnonzero(trace.is_kind(Kind.OP) & matching(trace, PRODUCT))
    large = products[[_num_read(trace, op) > POLICY.small for op in products.tolist()]]
    starts = np.sort(trace.start_ns[large])
    tasks = graph.task_event
    first, last = (np.searchsorted(starts, at[tasks]) for at in (trace.start_ns, trace.end_ns))
    inside: Bool = first < last
    return inside


def _small(case: Case, graph: Graph) -> Bool:
    """Mask of the tasks that multiply no matrices and read few numbers, as far as is known: those
    of backward are as small as what they are the backward of."""
    trace, begun = case.context.trace, case.context.trace.start_ns[graph.task_event]
    ops = np.flatnonzero(trace.is_kind(Kind.OP))
    task = np.searchsorted(begun, trace.start_ns[ops], side="right") - 1
    inside = (task >= 0) & (trace.start_ns[ops] < trace.end_ns[graph.task_event[task]])
    ops, task = ops[inside], task[inside]
    small, known = np.ones(len(graph), np.bool_), np.zeros(len(graph), np.bool_)
    small[task[matching(trace, PRODUCT)[ops]]] = False
    has = trace.detail[ops] >= 0
    details, first = np.unique(trace.detail[ops[has]], return_index=True)
    num = np.array([_num_read(trace, op) for op in ops[has][first].tolist()], np.int64)
    known[task[has]] = True
    if len(details):
        read = num[np.searchsorted(details, trace.detail[ops[has]])]
        small[task[has][read > POLICY.small]] = False
    return small & known


def _num_read(trace: Trace, op: int) -> int:
    inputs = inputs_of(trace, op)
    return 0 if inputs is None else sum(map(math.prod, filter(is_shape, inputs.dims)))


def _called_once(graph: Graph, turns: Int64, nodes: Bool, left: float) -> Graph:
    """Each turn's share of a call, and of the Python between two. What backward's engine does for
    its nodes before the first of a step and after the last, it does for those that are left."""
    share: Float64 = left + (1.0 - left) / turns
    within = np.append((turns[1:] > 1) & (turns[1:] == turns[:-1]), False)
    spared = np.where(within, share, 1.0)
    for step in distinct(graph.task_step[nodes]).tolist():
        of_step = np.flatnonzero(nodes & (graph.task_step == step))
        around = [max(of_step[0] - 1, 0), of_step[-1]]
        spared[around] = np.minimum(spared[around], share[of_step].mean())
    return replace(
        graph,
        task_ns=graph.task_ns * share,
        call_parts=graph.call_parts | {"work": graph.call_parts["work"] * spared},
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose, includes=("python-overhead",))
