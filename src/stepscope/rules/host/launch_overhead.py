"""The device waits for the host to launch its next kernel.

What it sees: kernels that are over before the call that launches one is, so that the host cannot
keep the device fed, and a replayed step that gets shorter when launching is made cheap.

Why it costs: each eager operator takes the host some 10 to 30 us (Python, dispatch, autograd, the
driver), whatever it computes. A kernel of 3 us then leaves the device idle most of the time.

Evidence it needs: runtime calls and the kernels they launched.

What to do: `torch.compile(model, mode="reduce-overhead")`, or `torch.cuda.make_graphed_callables` /
`torch.cuda.CUDAGraph` around the step: shapes must hold still and nothing inside may wait for the
device. A graph of one's own is recorded as: a few steps on a side stream
(`torch.cuda.stream(s)`), then `with torch.cuda.graph(g): loss = step(static_x, static_y)`; each
step copies its batch into `static_x.copy_(x)` and calls `g.replay()`. What it reads and writes must
keep its memory: optimizers with `capturable=True`, `zero_grad(set_to_none=True)` before the
recording, no new sizes, no `.item()` inside. Which mode of torch.compile: `default` for a first try
and where sizes change; `reduce-overhead` for short kernels and sizes that hold still, as here;
`max-autotune` for long training of large products, where minutes of compiling are paid back: it
times Triton's kernels against the libraries', and `stepscope tune --knob
compile_mode=off,default,max-autotune` says what that gives here. Where the model is many equal
blocks, compile one (`block.compile()` in a loop): it is compiled once. A kernel of one's own comes
last, as `torch.library.custom_op` so that compiling goes on around it. Fewer, larger kernels help
too: fused modules (a cuDNN RNN in place of a loop of cells), a
larger batch. What compiling does not reach is left in the gain: the optimizer, what the loop
launches and reads between a backward and the next forward, and around the graphs entering them, the
parameters' checks and gradients, and each tensor that the forward leaves for the backward.

Example: 675 kernels of 3 us took a step of 17 ms; captured in a CUDA graph it was 2.35 ms.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, median
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import NONE, Bool
from stepscope.replay.changes import Change, captured_in_pieces, with_part_ns
from stepscope.replay.graph import Graph
from stepscope.replay.simulate import busy_share
from stepscope.rules.case import Case
from stepscope.rules.memory import unfused_pointwise
from stepscope.rules.memory.unfused_pointwise import turned_and_fused
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.compiled_host import (
    OPEN_SHARE,
    captured_work,
    compiled_work,
    launches_of_kernels,
    model_launches,
    own_python,
    without_checks,
)
from stepscope.rules.shared.host_costs import host_costs, timed_words
from stepscope.rules.shared.host_ranges import tasks_of

CODE = "launch-overhead"
BOUND = "host"


class Policy(Struct, frozen=True, kw_only=True):
    gap_ns: float = 420.0
    """Nanoseconds between two kernels of a graph; lab/launch_tiny.fixed, the median of 2,022 (5 %
    to 95 %: 383 to 608)."""
    least_gain: float = 1.02
    """Gain without the host's time for launches below which they cost nothing."""
    same_share: float = 0.9
    """Share of a step's launches that must recur in the next for its shapes to hold still."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """Compile the model and capture it, in pieces between the waits."""
    graph = case.graph
    mask = model_launches(case)
    if not mask.any() or case.speedup(_launched_at_once(graph, mask)) < POLICY.least_gain:
        return None
    steady, waits = _holds_still(case, graph), int((graph.call_wait != NONE).sum())
    captured, compiled = _captured(case, mask), compiled_work(case)
    whole = launches_of_kernels(case)
    by_hand = _by_hand(case, whole)
    change = captured if steady else compiled
    by_hand_gain = case.speedup(by_hand(graph))
    is_more = by_hand_gain > case.speedup(change(graph))
    is_by_hand = steady and not waits and is_more
    less = "" if is_more else " (less: it fuses nothing)"
    return Proposal(
        summary=_summary(case, graph),
        action=_action(steady=steady, waits=waits > 0, is_more=is_more),
        evidence=(
            *_evidence(graph, steady=steady, waits=waits),
            *timed_words(host_costs(case)),
            f"in a CUDA graph captured by hand, optimizer and all: {by_hand_gain:.2g}x{less}",
        ),
        events=graph.call_event[mask],
        events_ns=graph.call_parts["work"][mask],
        change=change,
        cautious=_captured(case, mask, 1.0 + OPEN_SHARE) if steady else compiled,
        # A graph captured by hand, where the action offers that too.
        hopeful=by_hand if is_by_hand else _captured(case, mask, 1.0 - OPEN_SHARE),
        hopes_for_other=is_by_hand,
    )


def _by_hand(case: Case, whole: Bool) -> Change:
    """The whole step in CUDA graphs; long stretches of the loop's own Python are in none."""
    own = own_python(case)

    def change(before: Graph) -> Graph:
        launched, kept = _in_graphs(case, before, whole), np.minimum(own, before.call_parts["work"])
        work = launched.call_parts["work"] + np.where(whole, kept, 0.0)
        return with_part_ns(launched, "work", work)

    return change


def _launched_at_once(graph: Graph, mask: Bool) -> Graph:
    """The masked calls take the host no time: what the device could do by itself."""
    work = np.where(mask, 0.0, graph.call_parts["work"])
    return with_part_ns(graph, "work", work)


def _captured(case: Case, mask: Bool, slowdown: float = 1.0) -> Change:
    """Compiled and captured, with what the compiled model does around its graphs, `slowdown` times
    as slowly."""
    on_device, around = turned_and_fused(case, 0.5), captured_work(case, slowdown)
    unchecked = without_checks(case)

    def change(before: Graph) -> Graph:
        graph = unchecked(on_device(before))
        launched = _in_graphs(case, graph, mask)
        work = launched.call_parts["work"] + np.where(mask, around(graph).call_parts["work"], 0.0)
        return with_part_ns(launched, "work", work)

    return change


def _in_graphs(case: Case, graph: Graph, mask: Bool) -> Graph:
    """Each stretch of captured calls between two waits, inside one step, is one graph launch."""
    waits, costs = graph.call_wait != NONE, host_costs(case)
    return captured_in_pieces(
        graph,
        mask,
        np.cumsum(waits) * (graph.num_steps + 1) + graph.call_step,
        launch_ns=costs.graph_launch_ns,
        per_task_ns=costs.graph_kernel_ns,
        gap_ns=POLICY.gap_ns,
    )


def _holds_still(case: Case, graph: Graph) -> bool:
    """Whether each step launches what the one before did: the same kernels on as large a grid."""
    trace = case.context.trace
    names, details = trace.name[graph.task_event], trace.detail[graph.task_event]
    grids: dict[object, int] = {}
    grid_of = np.zeros(len(trace.details) + 1, np.int64)
    for detail in distinct(details).tolist():
        grid = None if detail == NONE else getattr(trace.details[detail], "grid", None)
        grid_of[detail] = grids.setdefault(grid, len(grids))
    launched = names * np.int64(len(grids)) + grid_of[details]
    kinds = distinct(launched)
    # A number for each kind of launch in each step; the same kind a step later is so much more.
    rows, counts = np.unique(
        graph.task_step * len(kinds) + np.searchsorted(kinds, launched), return_counts=True
    )
    later = np.minimum(np.searchsorted(rows, rows + len(kinds)), len(rows) - 1)
    is_again = rows[later] == rows + len(kinds)
    same = np.minimum(counts, counts[later])[is_again]
    steps = rows[is_again] // max(len(kinds), 1)
    alike = np.bincount(steps, same, graph.num_steps)[:-1]
    totals = np.bincount(graph.task_step, minlength=graph.num_steps)
    most = np.maximum(np.maximum(totals[1:], totals[:-1]), 1)
    return bool((alike / most >= POLICY.same_share).all())


def _summary(case: Case, graph: Graph) -> str:
    busy = busy_share(graph) * case.step_interval_ns
    return (
        f"The host launches {len(graph) / graph.num_steps:.0f} kernels a step, and the device has "
        f"work for {busy / 1e6:.2f} of {case.step_interval_ns / 1e6:.2f} ms."
    )


def _action(*, steady: bool, waits: bool, is_more: bool) -> str:
    if not steady:
        return (
            "Pad or bucket the shapes so that they hold still, then "
            "torch.compile(mode='reduce-overhead'); it may give less"
        )
    if waits:
        return (
            "Take the waits out of the step, then torch.compile(mode='reduce-overhead'); with "
            "them it may give less"
        )
    if not is_more:
        return "torch.compile(mode='reduce-overhead')"
    return (
        "torch.compile(mode='reduce-overhead'); more with the whole step in a CUDA graph of your "
        "own (optimizer with capturable=True)"
    )


def _evidence(graph: Graph, *, steady: bool, waits: int) -> tuple[str, ...]:
    kernels = tasks_of(graph, np.diff(graph.call_first) == 1)
    middle = median(graph.task_ns[kernels]) if kernels.any() else 0.0
    host = float(graph.call_parts["work"].sum()) / max(len(graph.call_event), 1)
    lines = [
        (
            f"the median kernel takes {middle / 1e3:.1f} us, its launch {host / 1e3:.1f} us of the "
            "host's time"
        )
    ]
    if not steady:
        lines.append(
            "the steps do not launch the same kernels: shapes change, which forbids plain capture"
        )
    if waits:
        lines.append(f"{waits / graph.num_steps:.3g} waits a step split what can be captured")
    return tuple(lines)


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    propose=propose,
    # Compiled in one mode or the other, and capturing fuses too.
    excludes=("unfused-pointwise",),
    includes=unfused_pointwise.RULE.includes,
    sweeping=True,
)
