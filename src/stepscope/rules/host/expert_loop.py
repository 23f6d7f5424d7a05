"""Experts are computed one after another in a Python loop, each with its own small kernels.

What it sees: `nonzero` (or an index with a mask, or `torch.where`) followed by the same products,
four times and more in a row: a mixture of experts that picks the tokens of each expert in turn.

Why it costs: every expert costs the host its own selection, products, activations and scatter,
forward and backward, and `nonzero` makes it wait for the device to learn how many tokens there are.
The products of one expert alone do not fill the device. Grouped products take all experts in one
kernel each, their sizes on the device.

Evidence it needs: shapes (`record_shapes=True`); the host's operators (`ProfilerActivity.CPU`).

What to do: sort the tokens by expert (`argsort`), and multiply with `torch._grouped_mm` (2.8 and
newer; megablocks and grouped_gemm before), the experts' weights stacked in one tensor; in
Hugging Face's models `experts_implementation="grouped_mm"`. The gain is of the host's work and the
waits of all experts but one, and of each kernel's fixed time; sorting is reckoned to cost as much
again as one expert, and the arithmetic to take as long as now.

Example: 16 experts in each of 6 layers made 3,900 launches and 96 waits in a step of 106 ms; the
device had work for 5 % of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import median
from stepscope.core.trace import NONE, Bool, Float64, Int64, Kind
from stepscope.replay.changes import without_tasks, without_waits
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.evidence import EXPERT_SELECTION
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import call_of_task, named_events
from stepscope.rules.shared.products import product_sizes
from stepscope.rules.shared.rates import SHORTEST_NS

CODE = "expert-loop"
BOUND = "host"

Products = tuple[tuple[int, int], ...]
"""n and k of an expert's products, in order."""


class Policy(Struct, frozen=True, kw_only=True):
    least_experts: int = 4
    """Experts in a row from which a loop is one over experts."""
    cautious_group: int = 4
    """Experts that one kernel takes at least."""
    sorting: float = 2.0
    """Times the host's work for one expert, with what sorting the tokens takes."""


POLICY = Policy()


class _Loops(Struct, frozen=True, kw_only=True):
    """Loop that each call and each task of the graph is in and the expert it is for; NONE outside.
    A loop's backward is a loop of its own."""

    num: int
    num_experts: int
    """Number of experts in all loops."""
    call_loop: Int64
    call_expert: Int64
    task_loop: Int64
    task_expert: Int64


def propose(case: Case) -> Proposal | None:
    """The first expert's calls stand for all, its kernels as long as all of theirs."""
    graph = case.graph
    if not case.context.trace.meta.has_shapes:
        return None
    loops = _loops(case, graph)
    if loops is None:
        return None
    steps = max(graph.num_steps, 1)
    inside = loops.call_loop != NONE
    waits = int((inside & (graph.call_wait != NONE)).sum()) / steps
    return Proposal(
        summary=f"{loops.num / steps:.0f} loops a step go over {loops.num_experts / loops.num:.0f} "
        "experts one by one.",
        action="sort the tokens by expert and use grouped products (torch._grouped_mm); Hugging "
        'Face: experts_implementation="grouped_mm"',
        evidence=(
            f"{inside.sum() / steps:.0f} launches a step for single experts",
            f"{waits:.0f} waits a step for the number of an expert's tokens",
        ),
        events=named_events(case, EXPERT_SELECTION, Kind.OP),
        change=lambda before: _grouped(before, loops, loops.num_experts),
        cautious=lambda before: _grouped(before, loops, POLICY.cautious_group),
        changes_numerics=True,
        alternative_to=("device-sync",),
    )


def _loops(case: Case, graph: Graph) -> _Loops | None:
    """The runs of selections that are followed by the same products; None where there is none."""
    starts, products = _selections(case)
    step = graph.call_step[np.clip(_calls_at(graph, starts), 0, len(graph.call_step) - 1)]
    runs = _runs(products, step.tolist())
    if not runs:
        return None
    spans = [_spans(graph, starts, first, last) for first, last in runs]
    call_loop, call_expert = (np.full(len(graph.call_event), NONE, np.int64) for _ in range(2))
    task_loop, task_expert = (np.full(len(graph), NONE, np.int64) for _ in range(2))
    table, call_of = case.table, call_of_task(graph)
    home_ns = np.where(table.home != NONE, case.replayed.start_ns[table.home], NONE)
    calls_ns = graph.call_start_ns
    backward = np.flatnonzero(table.backward)
    backward = backward[np.argsort(home_ns[backward], kind="stable")]
    origins_ns = home_ns[backward]
    for loop, bounds in enumerate(spans):
        mine = np.arange(*np.searchsorted(calls_ns, (bounds.min(), bounds.max())))
        mine, expert = _inside(bounds, calls_ns, mine)
        call_loop[mine], call_expert[mine] = 2 * loop, expert
        low, high = np.searchsorted(origins_ns, (bounds.min(), bounds.max()))
        back, origin = _inside(bounds, home_ns, np.sort(backward[low:high]))
        task_loop[back], task_expert[back] = 2 * loop + 1, origin
        calls = call_of[back]
        call_loop[calls], call_expert[calls] = 2 * loop + 1, origin
    forward = (task_loop == NONE) & (call_loop[call_of] != NONE) & ~table.backward
    task_loop[forward] = call_loop[call_of][forward]
    task_expert[forward] = call_expert[call_of][forward]
    return _Loops(
        num=len(runs),
        num_experts=sum(last - first for first, last in runs),
        call_loop=call_loop,
        call_expert=call_expert,
        task_loop=task_loop,
        task_expert=task_expert,
    )


def _inside(bounds: Int64, times: Int64, indices: Int64) -> tuple[Int64, Int64]:
    """Indices that lie inside the bounds by their times, and the bounds that each lies between."""
    part = np.searchsorted(bounds, times[indices], side="right") - 1
    inside = (part >= 0) & (part < len(bounds) - 1)
    return indices[inside], part[inside]


def _selections(case: Case) -> tuple[Int64, list[Products]]:
    """When the host selected tokens, in order, and the forward products up to the next time; those
    that none follow are left out."""
    table, trace = case.table, case.replayed
    events = named_events(case, EXPERT_SELECTION, Kind.OP)
    starts = np.sort(trace.start_ns[events])
    is_product = table.is_matrix & table.leads & ~table.backward & ~table.recomputed
    tasks = np.flatnonzero(is_product & (table.op != NONE))
    at = np.searchsorted(starts, trace.start_ns[table.op[tasks]], side="right") - 1
    by_position: dict[int, list[tuple[int, int]]] = {}
    for task, position in zip(tasks.tolist(), at.tolist(), strict=True):
        _, n, k = product_sizes(table, int(table.op[task]))
        if position >= 0 and n:
            by_position.setdefault(position, []).append((n, k))
    positions = sorted(by_position)
    return starts[positions], [tuple(by_position[position]) for position in positions]


def _runs(products: Sequence[Products], steps: Sequence[int]) -> list[tuple[int, int]]:
    """First and one past the last selection of each loop: the same products in one step. After the
    last expert other layers may follow."""
    runs, first = [], 0
    while first < len(products):
        last = first + 1
        size = len(products[first])
        while (
            last < len(products)
            and steps[last] == steps[first]
            and products[last][:size] == products[first]
            and products[last - 1] == products[first]
        ):
            last += 1
        if last - first >= POLICY.least_experts:
            runs.append((first, last))
        first = last
    return runs


def _spans(graph: Graph, starts: Int64, first: int, last: int) -> Int64:
    """When each expert's part of a loop begins, and when the last one's ends: after as many calls
    as those before took."""
    calls = _calls_at(graph, starts[first:last])
    usual = int(median(np.diff(calls)))
    end = min(int(calls[-1]) + usual, len(graph.call_start_ns) - 1)
    bounds: Int64 = np.append(starts[first:last], graph.call_start_ns[end])
    return bounds


def _calls_at(graph: Graph, times: Int64) -> Int64:
    """The first call at or after each time."""
    calls: Int64 = np.searchsorted(graph.call_start_ns, times)
    return calls


def _grouped(graph: Graph, loops: _Loops, group: int) -> Graph:
    """Leave the first of every `group` experts, with all their work."""
    in_loop = loops.call_loop != NONE
    gone_calls = in_loop & (loops.call_expert % group != 0)
    gone = (loops.task_loop != NONE) & (loops.task_expert % group != 0)
    work = np.where(gone_calls, 0.0, graph.call_parts["work"])
    work[in_loop & ~gone_calls & (loops.call_loop % 2 == 0)] *= POLICY.sorting
    changed = replace(
        graph,
        call_parts=graph.call_parts | {"work": work},
        task_ns=_with_all_work(graph.task_ns, loops, gone, group),
    )
    return without_waits(without_tasks(changed, gone), in_loop)


def _with_all_work(task_ns: Float64, loops: _Loops, gone: Bool, group: int) -> Float64:
    """The kernels that are left take as long as all of their group, less the fixed time of those
    that are gone."""
    tasks = np.flatnonzero(loops.task_loop != NONE)
    groups = loops.task_expert[tasks] // group
    key = loops.task_loop[tasks] * (int(groups.max(initial=0)) + 1) + groups
    _, group_of = np.unique(key, return_inverse=True)
    own = task_ns[tasks]
    spent = np.where(gone[tasks], np.maximum(own - SHORTEST_NS, 0.0), own)
    whole = np.bincount(group_of, spent)
    left = np.bincount(group_of, np.where(gone[tasks], 0.0, own))
    longer = np.divide(whole, left, out=np.ones_like(whole), where=left > 0)
    result: Float64 = task_ns.copy()
    result[tasks] = own * longer[group_of]
    return result


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
