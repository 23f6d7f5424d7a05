"""A chain of small operations sends the same tensors through memory again and again.

What it sees: runs of pointwise, norm, softmax, reduction, cast and copy kernels with no matrix
product between them, each taking up a tensor that the run has just written.

Why it costs: such kernels do little arithmetic and are as long as their traffic. Fused into one
they read what comes in once, write what goes out once, and keep the rest in registers. What comes
in is not known exactly (a trace has sizes, not addresses): a tensor of a size already seen in the
run may be the same one or another, hence a range. Backward may compute the forward's values again
from its inputs rather than read them, as torch.compile does. Transcendental functions cost
arithmetic that the traffic hid: they set a floor. Rows picked by index are picked by the operators
that read them, and gradients are added to rows without sorting them first. The compiler also lays
the images of most models with convolutions out with their channels innermost, and the kernels that
turned them go. Products whose rows are no multiple of 16 bytes it pads where that is faster. Of a
loss over a vocabulary it writes neither the logits in fp32 nor their log-softmax. The host launches
fewer kernels, each for a little less than before, and pays for entering the compiled model, for
each parameter and for what each batch norm keeps (the number of batches takes a kernel of its own):
where it is the limit, that is the gain; where it launched few, a compiled step may be slower.
Python from one module to the next goes with it; the training loop around the model is not compiled.

Evidence it needs: shapes (`record_shapes=True`).

What to do: `torch.compile(model)`, or of the module where the run is. Fused kernels round
differently in 16 bits.

Example: a chain of 40 operations over 67 million numbers took 6.3 ms a step, 0.98 ms compiled.
"""

from __future__ import annotations

import numpy as np

from stepscope.core.diagnosis import Abstention
from stepscope.replay.changes import Change
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.memory.nchw_layout import turned_by_compiler
from stepscope.rules.memory.wide_logits import fused_by_compiler
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.compiled_host import (
    OPEN_SHARE,
    compiled_work,
    is_compiled,
    model_kernels,
    num_left,
    without_checks,
)
from stepscope.rules.shared.fused_times import fused_tasks, timed_share
from stepscope.rules.shared.fusible_runs import FUSIBLE, runs_of
from stepscope.rules.shared.host_costs import host_costs, timed_words
from stepscope.rules.shared.measured import timed_line
from stepscope.rules.shared.products import padded_by_compiler
from stepscope.rules.task_table import per_step_ms

CODE = "unfused-pointwise"
BOUND = "memory"


def propose(case: Case) -> Proposal | Abstention | None:
    """Each run becomes one kernel."""
    graph, roofs = case.graph, case.context.roofs
    table = case.table
    fusible = table.of_category(*FUSIBLE)
    if not case.context.trace.meta.has_shapes or roofs is None:
        large = per_step_ms(graph, fusible) * 1e6 > 0.1 * case.step_interval_ns
        if not large:
            return None
        return Abstention(
            code=CODE,
            reason="small kernels whose reads and writes are not known",
            needs="record_shapes=True",
        )
    runs = runs_of(case)
    if runs is None or not runs.several.any():
        return None
    num_runs = int(runs.several.sum())
    mask = np.zeros(len(graph), np.bool_)
    mask[runs.tasks_of(runs.several)] = True
    spent_ms = per_step_ms(graph, mask)
    longest = np.where(runs.several, runs.now_ns, -1.0).argmax()
    longest_ops = table.op[runs.task[(runs.run == longest) & runs.begins_op][:8]].tolist()
    return Proposal(
        summary=f"{spent_ms:.1f} ms a step of small operations in runs "
        "that could each be one kernel.",
        action="model = torch.compile(model), or compile the module with these runs alone",
        evidence=(
            _launches(case),
            (
                f"{num_runs // max(graph.num_steps, 1)} runs a step of "
                f"{int(mask.sum()) // num_runs} kernels on average"
            ),
            (
                "the longest: "
                f"{', '.join(table.op_name(op).removeprefix('aten::') for op in longest_ops)}"
            ),
            *timed_line(timed_share(case), "compiled"),
            *timed_words(host_costs(case)),
        ),
        events=graph.task_event[mask],
        change=_compiled(case, 0.5),
        cautious=_cautious(case),
        hopeful=_compiled(case, 0.0, 1.0 - OPEN_SHARE),
        changes_numerics=True,
        may_slow=True,
    )


def _launches(case: Case) -> str:
    now = int(model_kernels(case).sum()) / max(case.graph.num_steps, 1)
    left = num_left(case)
    return f"the host launches {now:.0f} kernels a step for the model, {left:.0f} when compiled"


def turned_and_fused(case: Case, share: float) -> Change:
    """The device's part of compiling: runs fused, and the convolutions' layout as the compiler
    chooses it. `share` is of what may come into a run that does."""
    changes = (
        *(fused_tasks(case, share), turned_by_compiler(case), fused_by_compiler(case)),
        padded_by_compiler(case),
    )

    def change(graph: Graph) -> Graph:
        for each in changes:
            graph = graph if each is None else each(graph)
        return graph

    return change


def _compiled(case: Case, share: float, slowdown: float = 1.0) -> Change:
    if is_compiled(case):
        return fused_tasks(case, share)  # What else compiling gives it has given.
    on_device = turned_and_fused(case, share)
    on_host, unchecked = compiled_work(case, slowdown), without_checks(case)
    return lambda graph: unchecked(on_host(on_device(graph)))


def _cautious(case: Case) -> Change:
    """The layout, the checks, misaligned products and what is written of a loss stay."""
    on_device = fused_tasks(case, 1.0)
    if is_compiled(case):
        return on_device
    on_host = compiled_work(case, 1.0 + OPEN_SHARE)
    return lambda graph: on_host(on_device(graph))


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    propose=propose,
    includes=("misaligned-shapes", "nchw-layout", "wide-logits"),
    sweeping=True,
)
