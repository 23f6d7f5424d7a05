"""The loss writes and reads the logits over a large vocabulary many times over.

What it sees: a log-softmax over the output of a product that is wider than what went into it, and
every copy, cast, fill and pointwise kernel over tensors of that size, forward and backward.

Why it costs: logits are tokens x vocabulary, often larger than all other activations together.
Eager PyTorch casts them to fp32, writes their log-softmax, fills a gradient with zeros, writes the
softmax's gradient and casts it back: some 40 bytes for each. A fused loss reads the logits once
going forward, and once going back, where it writes their gradient in place: 6 bytes.

Evidence it needs: shapes (`record_shapes=True`).

What to do: `torch.compile` the head and the loss together (one function with the linear layer,
`.float()` and the cross entropy); or a fused linear cross entropy (Liger kernel's
`LigerFusedLinearCrossEntropyLoss`, cut-cross-entropy), which saves the memory too. The products
stay, padded by the compiler where the vocabulary is odd. Sums are rounded in another order.

Example: a one-layer Llama with a vocabulary of 128256 took 30.0 ms a step, 19.9 ms with head and
loss compiled together.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from msgspec import Struct, field

from stepscope.analyses.grouping import distinct
from stepscope.analyses.intervals import union
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Bool, Float64
from stepscope.replay.changes import Change, with_task_ns, without_host_ranges, without_tasks
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.products import padded_by_compiler
from stepscope.rules.shared.rates import stream_ns
from stepscope.rules.shared.unrecorded import ask_for_shapes
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.inputs import Shape
from stepscope.workload.operands import operand, operands

CODE = "wide-logits"
BOUND = "memory"


class Policy(Struct, frozen=True, kw_only=True):
    """Measured on an H200, torch 2.11: compiled cross entropy over (8188, 128256) in bf16, 1.48 ms
    forward, 1.30 ms backward."""

    least_share: float = 0.005
    """Share of the step in such kernels below which nothing is reported."""
    unknown_share: float = 0.1
    """Share of the step in softmax kernels from which shapes are asked for."""
    instructions: int = 45
    """Instructions per logit going forward: a running maximum and a running sum take two
    exponentials each."""
    backward_factor: float = 1.3
    """Times a plain stream over the same bytes, going back."""
    compiled_backward_factor: float = 2.15
    """The same in a model that is compiled whole: the gradient is filled with zeros first
    (recordings of a Qwen and a Llama: 2.1 and 2.4)."""


POLICY = Policy()
FORWARD, BACKWARD = "aten::_log_softmax", "aten::_log_softmax_backward_data"
HEADS = {"aten::mm": (0, 1), "aten::addmm": (1, 2)}
"""Where these products have their input and their weight."""
STREAMING = ("copy", "pointwise", "softmax", "loss", "index")


class Vocabulary(Struct, kw_only=True):
    """One width of logits."""

    size: int
    rows: set[int] = field(default_factory=set)
    """Tokens: of the product, and of the loss, which may leave some out."""
    item_bytes: int = 4
    """Bytes of a logit as the product gives it."""


def propose(case: Case) -> Proposal | Abstention | None:
    """One pass over the logits forward and one backward."""
    graph, roofs = case.graph, case.context.roofs
    if roofs is None:
        return None
    table = case.table
    if not case.context.trace.meta.has_shapes:
        softmax, reason = table.of_category("softmax"), "softmax kernels of unknown size"
        return ask_for_shapes(case, CODE, softmax, POLICY.unknown_share, reason)
    vocabularies = _vocabularies(table)
    mask = _over_logits(table, vocabularies)
    spent_ms = per_step_ms(graph, mask)
    if spent_ms * 1e6 < POLICY.least_share * case.step_interval_ns:
        return None
    widest = max(vocabularies.values(), key=lambda vocabulary: vocabulary.size)
    gigabytes = max(widest.rows) * widest.size * 4 / 1e9
    return Proposal(
        summary=f"{spent_ms:.1f} ms a step move logits over a vocabulary of {widest.size} through "
        "memory.",
        action="torch.compile the head and the loss together, in one function; or a fused linear "
        "cross entropy (liger-kernel's LigerFusedLinearCrossEntropyLoss)",
        evidence=(
            (
                f"{int(mask.sum()) // max(graph.num_steps, 1)} kernels a step over "
                f"{max(widest.rows)} x {widest.size} logits"
            ),
            f"in fp32 these logits are {gigabytes:.1f} GB",
        ),
        events=graph.task_event[mask],
        change=_with_padding(case, vocabularies, _fused(case, table, vocabularies, mask, roofs)),
        cautious=_fused(case, table, vocabularies, mask, roofs, item_bytes=4),
        hopeful=_with_padding(
            case, vocabularies, _fused(case, table, vocabularies, mask, roofs, ideal=True)
        ),
        changes_numerics=True,
    )


def _with_padding(case: Case, vocabularies: dict[int, Vocabulary], fused: Change) -> Change:
    """The head is compiled with the loss: an odd vocabulary's products are padded."""
    padded = padded_by_compiler(case, vocabularies)
    if padded is None:
        return fused
    return lambda graph: padded(fused(graph))


@once_a_case
def fused_by_compiler(case: Case) -> Change | None:
    """What torch.compile makes of a loss inside the model: one pass each way, whatever the runs
    that these kernels are in were fused to. None where there are no such logits."""
    graph, table, roofs = case.graph, case.table, case.context.roofs
    if roofs is None or not case.context.trace.meta.has_shapes:
        return None
    vocabularies = _vocabularies(table)
    mask = _over_logits(table, vocabularies)
    if not mask.any():
        return None
    times, kept = _passes(table, vocabularies, mask, roofs)
    times[kept & table.backward] *= POLICY.compiled_backward_factor / POLICY.backward_factor
    times = np.where(kept, _not_longer(graph, kept, mask, times), 0.0)
    return lambda before: replace(before, task_ns=np.where(mask, times, before.task_ns))


def _vocabularies(table: TaskTable) -> dict[int, Vocabulary]:
    """Widths of a log-softmax over the output of a product that widens."""
    losses: dict[int, set[int]] = {}
    ops = table.examples(~table.backward)
    for op in ops:
        shape = _logits(table, op) if table.op_name(op) == FORWARD else None
        if shape is not None:
            losses.setdefault(shape[1], set()).add(shape[0])
    vocabularies: dict[int, Vocabulary] = {}
    for op in ops:
        positions, inputs = HEADS.get(table.op_name(op)), table.inputs(op)
        if positions is None or inputs is None:
            continue
        entered, weight = (operand(inputs, position) for position in positions)
        if entered is None or weight is None or len(entered.dims) != 2 or len(weight.dims) != 2:
            continue
        (rows, depth), width = entered.dims, weight.dims[1]
        if width > depth and any(of_loss <= rows for of_loss in losses.get(width, ())):
            vocabulary = vocabularies.setdefault(
                width, Vocabulary(size=width, rows=set(losses[width]))
            )
            vocabulary.rows.add(rows)
            vocabulary.item_bytes = 2 if entered.dtype in ("bf16", "fp16") else 4
    return vocabularies


def _logits(table: TaskTable, op: int) -> tuple[int, int] | None:
    """Rows and width of the first tensor."""
    inputs = table.inputs(op)
    tensor = None if inputs is None else operand(inputs, 0)
    return _rows_and_width(tensor.dims) if tensor is not None else None


def _rows_and_width(dims: Shape) -> tuple[int, int] | None:
    return (prod(dims[:-1]), dims[-1]) if len(dims) > 1 else None


def _over_logits(table: TaskTable, vocabularies: dict[int, Vocabulary]) -> Bool:
    """Kernels that stream over tensors of the logits' size."""
    mask: Bool = table.of_category(*STREAMING) & ~table.is_matrix & ~table.optimizer
    return mask & table.where(lambda op: _is_over_logits(table, op, vocabularies))


def _is_over_logits(table: TaskTable, op: int, vocabularies: dict[int, Vocabulary]) -> bool:
    inputs, work = table.inputs(op), table.work(op)
    if (
        not vocabularies
        or inputs is None
        or (work is not None and work.is_matrix)
        or not table.op_name(op).startswith("aten::")
    ):
        return False
    shapes = (_rows_and_width(tensor.dims) for tensor in operands(inputs, range(len(inputs.dims))))
    return any(
        shape is not None and shape[1] in vocabularies and shape[0] in vocabularies[shape[1]].rows
        for shape in shapes
    )


def _fused(
    case: Case,
    table: TaskTable,
    vocabularies: dict[int, Vocabulary],
    mask: Bool,
    roofs: DevicePeaks,
    *,
    item_bytes: int | None = None,
    ideal: bool = False,
) -> Change:
    """The softmaxes take one pass each, what is around them nothing; ideal ones hide their
    arithmetic, and their launches go."""
    trace = case.context.trace
    times, kept = _passes(table, vocabularies, mask, roofs, item_bytes=item_bytes, ideal=ideal)
    ops = distinct(table.op[mask & ~kept])
    host = union(trace.start_ns[ops], trace.end_ns[ops])

    def change(graph: Graph) -> Graph:
        after = without_tasks(
            with_task_ns(graph, kept, _not_longer(graph, kept, mask, times)), mask & ~kept
        )
        return without_host_ranges(after, host) if ideal else after

    return change


def _passes(
    table: TaskTable,
    vocabularies: dict[int, Vocabulary],
    mask: Bool,
    roofs: DevicePeaks,
    *,
    item_bytes: int | None = None,
    ideal: bool = False,
) -> tuple[Float64, Bool]:
    """Time of a fused loss's pass, by task, and which tasks stand for one."""
    times, kept = np.zeros(len(mask)), np.zeros(len(mask), np.bool_)
    for task in np.flatnonzero(mask & table.leads).tolist():
        op = int(table.op[task])
        name, shape = table.op_name(op), _logits(table, op)
        if name in (FORWARD, BACKWARD) and shape is not None:
            kept[task] = True
            logit_bytes = item_bytes or vocabularies[shape[1]].item_bytes
            times[task] = _pass_ns(
                roofs,
                float(shape[0] * shape[1]),
                logit_bytes,
                backward=name == BACKWARD,
                ideal=ideal,
            )
    return times, kept


def _pass_ns(
    roofs: DevicePeaks, logits: float, logit_bytes: int, *, backward: bool, ideal: bool
) -> float:
    stream = stream_ns(roofs, (2 if backward else 1) * logits * logit_bytes)
    if backward or ideal:
        return stream if ideal else stream * POLICY.backward_factor
    vector = roofs.peak_flops("fp32", matrix=False) or float("inf")
    return max(stream, POLICY.instructions * logits / (vector / 2) * 1e9)


def _not_longer(graph: Graph, kept: Bool, mask: Bool, times: Float64) -> Float64:
    """The passes' times, no more altogether than all the kernels take now."""
    now_ns, new_ns = float(graph.task_ns[mask].sum()), float(times[kept].sum())
    return times * min(1.0, now_ns / new_ns) if new_ns > 0 else times


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose, includes=("misaligned-shapes",))
