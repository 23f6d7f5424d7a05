"""Convolutions on tensor cores get their tensors in the wrong layout.

What it sees: kernels that turn NCHW into NHWC and back around convolutions, and batch norms over
NCHW tensors.

Why it costs: tensor-core convolutions work in NHWC. A tensor in NCHW is transposed before and after
each one, and PyTorch's batch norm over NCHW in 16 bits reaches a fraction of the bandwidth.
Pointwise convolutions over NCHW are products whose rows are images: where those are no multiple of
16 bytes (13 x 13, 14 x 14), slower kernels load them number by number. Group norm is the other way
round: twice as slow going forward in NHWC, so a model full of it may gain nothing. Batch norms over
volumes in 16 bits gain half: PyTorch has kernels of its own for NHWC pictures alone. For fp32
without TF32 cuDNN has many of its kernels in NCHW alone: they turn tensors back, which the host
launches, and a host that is nearly the limit becomes it.

Evidence it needs: kernel names for the transposes; shapes and strides (`record_shapes=True`) for
the norms.

What to do: `model.to(memory_format=torch.channels_last)` and the input likewise. Numbers change as
with any other kernel.

Example: a small ConvNet in bf16 took 62 ms a step in NCHW, 25 ms in channels_last.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, is_among, matching
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.replay.changes import Change
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.convolutions import (
    image_and_weight,
    is_convolution,
    is_grouped,
    is_nchw,
    is_picture,
    is_thin,
    is_turned_by_compiler,
    least_channels,
    num_groups,
)
from stepscope.rules.shared.host_ranges import INNER_LAUNCH, with_operators
from stepscope.rules.shared.measured import NHWC, first_tasks, ratio_of, timed, with_also
from stepscope.rules.shared.products import MISALIGNED_NAME, ROW_OF
from stepscope.rules.shared.rates import convolution_ns
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.inputs import ITEM_BYTES
from stepscope.workload.operands import Operand, operand

CODE = "nchw-layout"
BOUND = "memory"

TO_NHWC = re.compile("nchwToNhwc", re.IGNORECASE)


class Policy(Struct, frozen=True, kw_only=True):
    """Measured on an H200, torch 2.11: (64, 64, 112, 112), (64, 256, 56, 56), (64, 2048, 7, 7) and
    (256, 64, 112, 112)."""

    least_share: float = 0.005
    """Share of the step in transposes and such norms below which nothing is reported."""
    norm_passes: int = 3
    """Batch norm forward reads its input for the statistics, reads it again and writes."""
    norm_backward_passes: int = 5
    half_share: float = 0.24
    """Share of the bandwidth reached by batch norm forward in NHWC and 16 bits. This and what
    follows is of 210 norms of 14 recorded runs, which are off by 10 % on average."""
    wide_half_share: float = 0.31
    wide: int = 256
    """Channels from which that is reached."""
    half_backward_share: float = 0.5
    wide_half_backward_share: float = 0.57
    wide_backward: int = 128
    whole_row: int = 64
    """Channels of 16 bits from which a row fills what memory is read by; fewer reach their part."""
    volume_share: float = 0.1
    """Share reached over volumes (NDHWC) in 16 bits, for which PyTorch has no kernels of its own:
    0.05 to 0.16 (r3d_18)."""
    volume_backward_share: float = 0.25
    """Backward, with the copy of the gradient that it takes there."""
    full_share: float = 0.75
    """Forward in fp32: 0.70 to 0.79."""
    full_backward_share: float = 0.82
    """Backward in fp32: 0.80 to 0.87."""
    fixed_ns: int = 10_000
    """Nanoseconds that a batch norm takes beside its traffic, for its two or three kernels."""
    half_fixed_ns: int = 8_000
    group_norm_factor: float = 2.2
    """Group norm forward in NHWC: 2.0 to 2.3 times its time in NCHW; backward alike in both."""
    half_thin_factor: float = 0.3
    """Depthwise convolutions in 16 bits in NHWC: 0.20 to 0.48 of their time in NCHW (kernels of 3
    to 7, both passes)."""
    thin_factor: float = 0.36
    """The same in fp32, kernels of 3 and 5: 0.22 to 0.63, both passes."""
    wide_kernel: int = 7
    wide_thin_factor: float = 0.6
    """The same in fp32 with such a kernel, forward."""
    wide_thin_backward_factor: float = 2.8
    """Backward there is slower in NHWC: 2.3 to 3.5."""
    full_factor: float = 1.2
    """Other convolutions in fp32 without TF32, forward: 1.02 to 1.6, and two of 25 shapes twice as
    long: images are turned to NCHW and back around the kernels that cuDNN has for it alone."""
    full_backward_factor: float = 1.06
    """Backward: 0.8 to 1.5."""
    grouped_factor: float = 1.65
    """Grouped ones among them, forward: 1.4 to 1.8."""
    grouped_backward_factor: float = 1.9
    """Backward: 1.2 to 2.4."""
    rounding_factor: float = 0.62
    """Fraction of a turn to NHWC over fp32 tensors that stays: it rounds them to TF32 as well, and
    in NHWC that pass stays, as a plain copy."""
    full_turns: float = 1.5
    """Turns more of a convolution in fp32 without TF32, forward: for most of them cuDNN has
    kernels for NCHW alone, and turns to it and back (46 for the 31 of a mobilenet). Grouped ones it
    works through group by group, and turns each group's tensors (regnet_y)."""
    full_backward_turns: float = 1.75
    turn_launch: float = 0.29
    """Fraction of the host's time for the model's middle operator that a turn inside a convolution
    takes: 0.21 to 0.44 in 18 of 21 recorded runs (H200 hosts, torch 2.11), in 16 bits and fp32
    alike."""
    thin_backward_launches: float = 2.0
    """More of a depthwise one, whose weight's gradient takes a second pass."""
    norm_launches: float = 1.0
    """More of a batch norm in fp32, each pass: a fill."""
    uncertainty: float = 0.3
    """Fraction of the norms' new time that they may take more or less."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """Propose to drop the transposes, with the norms at NHWC's rate."""
    graph, roofs = case.graph, case.context.roofs
    table = case.table
    around = table.where(partial(is_convolution, table))
    turning = _turning(table)
    norms = table.where(partial(_is_norm, table))
    times = _new_times(graph, table, norms, roofs)
    times[turning] = _left_of_turns(graph, table, turning)
    probed = _probed_times(graph, table, norms, roofs)
    times = np.where(np.isnan(probed), times, probed)
    shorter = around & ~turning & ~np.isnan(times) & (times < graph.task_ns)
    if not around.any() or not (turning | shorter | norms).any():
        return None
    steps = max(graph.num_steps, 1)
    turning_ms, norms_ms = per_step_ms(graph, turning), per_step_ms(graph, norms)
    shorter_ms = per_step_ms(graph, shorter)
    if (turning_ms + norms_ms + shorter_ms) * 1e6 < POLICY.least_share * case.step_interval_ns:
        return None
    batch_norms = norms & table.where(lambda op: "batch_norm" in table.op_name(op))
    launches = _more_launches(table, batch_norms)

    def launched(turned: Change) -> Change:
        return lambda before: with_operators(turned(before), table, launches)

    return Proposal(
        summary=f"{turning_ms:.1f} ms a step turn tensors for the convolutions, "
        f"{norms_ms + shorter_ms:.1f} ms are norms, depthwise and pointwise convolutions in NCHW.",
        action="model.to(memory_format=torch.channels_last), and the input batch too",
        evidence=(
            (
                f"{int(turning.sum()) // steps} transposes a step around "
                f"{len(distinct(table.op[turning])) // steps} convolutions"
            ),
            f"{len(distinct(table.op[norms])) // steps} norms a step over tensors in NCHW",
        ),
        events=graph.task_event[turning],
        change=launched(_turned(graph, turning, times, 1.0)),
        cautious=launched(_turned(graph, turning, times, 1.0 + POLICY.uncertainty)),
        hopeful=launched(_turned(graph, turning, times, 1.0 - POLICY.uncertainty)),
        changes_numerics=True,
        may_slow=True,
    )


@once_a_case
def turned_by_compiler(case: Case) -> Change | None:
    """What torch.compile does to the convolutions themselves; None where it leaves their layout, or
    none of them gains by it."""
    graph, table = case.graph, case.table
    if not is_turned_by_compiler(table):
        return None

    def is_flat(op: int) -> bool:
        pair = image_and_weight(table, op)
        return pair is not None and is_picture(pair[0])

    # Signals and volumes are left as they are.
    flat = table.where(is_flat)
    turning = _turning(table) & flat
    times = _new_times(graph, table, np.zeros(len(graph), np.bool_), case.context.roofs)
    times[turning] = _left_of_turns(graph, table, turning)
    probed = _probed_times(graph, table, np.zeros(len(graph), np.bool_), case.context.roofs)
    times = np.where(np.isnan(probed), times, probed)
    if not (flat & (times < graph.task_ns)).any():
        return None
    turned = _turned(graph, turning, np.where(flat, times, np.nan), 1.0)
    launches = np.where(flat, _more_launches(table, np.zeros(len(graph), np.bool_)), 0.0)
    return lambda before: with_operators(turned(before), table, launches)


def _more_launches(table: TaskTable, norms: Bool) -> Float64:
    """Launches that NHWC adds in fp32, by task: on the first kernel of each operator. They are
    further kernels of one that is entered anyway, and each is a part of it."""
    first = np.diff(table.op, prepend=NONE - 1) != 0
    on_tensor_cores = is_among(table.op, table.op[table.tensor_core == 1])
    convolutions = table.where(partial(_is_full, table)) & ~on_tensor_cores
    thin = table.where(partial(is_thin, table))
    back = table.backward
    groups = np.array([num_groups(table, op) for op in table.example.tolist()])[table.alike]
    turns = groups * np.where(back, POLICY.full_backward_turns, POLICY.full_turns)
    turns = np.where(convolutions & ~thin, turns, 0.0)
    full = np.array([precision == "fp32" for precision in table.precision], np.bool_)
    inner = np.where(norms & full, POLICY.norm_launches, 0.0)
    inner = np.where(convolutions & thin & back, POLICY.thin_backward_launches, inner)
    return np.where(first, turns * POLICY.turn_launch + inner * INNER_LAUNCH, 0.0)


def _is_full(table: TaskTable, op: int) -> bool:
    """A convolution over pictures of fp32 in NCHW."""
    pair = image_and_weight(table, op)
    if pair is None or pair[0].dtype != "fp32":
        return False
    return is_picture(pair[0]) and is_nchw(table, op)


def _turning(table: TaskTable) -> Bool:
    """Tasks that only turn tensors for a convolution."""
    result: Bool = table.of_category("layout") & table.where(partial(is_convolution, table))
    return result


def _is_norm(table: TaskTable, op: int) -> bool:
    """A batch or group norm over images whose channels are not innermost."""
    name = table.op_name(op)
    return ("batch_norm" in name or "group_norm" in name) and is_nchw(table, op)


def _new_times(graph: Graph, table: TaskTable, norms: Bool, roofs: DevicePeaks | None) -> Float64:
    """Time of each task in NHWC, NaN where it stays: an operator's whole time on its longest
    kernel, nothing on the others."""
    times = np.full(len(graph), np.nan)
    of_norms = np.flatnonzero(norms)
    of_norms = of_norms[np.argsort(table.op[of_norms], kind="stable")]
    for tasks in np.split(of_norms, np.flatnonzero(np.diff(table.op[of_norms])) + 1):
        if len(tasks):
            now_ns = float(graph.task_ns[tasks].sum())
            times[tasks] = 0.0
            longest = tasks[np.argmax(graph.task_ns[tasks])]
            times[longest] = _norm_ns(table, int(table.op[tasks[0]]), now_ns, roofs)
    nchw = table.of_category("convolution") & table.where(partial(is_nchw, table))
    for task in np.flatnonzero(nchw & (table.op != NONE)).tolist():
        factor = _convolution_factor(table, task, int(table.op[task]))
        times[task] = graph.task_ns[task] * factor
    aligned = _aligned_times(graph, table, roofs, nchw)
    return np.where(np.isnan(aligned), times, aligned)


def _probed_times(
    graph: Graph, table: TaskTable, norms: Bool, roofs: DevicePeaks | None
) -> Float64:
    """Time of each task in NHWC, by what its operator was measured to take; NaN elsewhere."""
    around = table.where(partial(is_convolution, table)) & table.where(partial(is_nchw, table))
    leads = first_tasks(table, norms | (around & table.is_matrix))
    probed = timed(graph, table, roofs, leads, lambda _, now: with_also(now, NHWC))
    return ratio_of(graph, table, probed) * graph.task_ns


def _aligned_times(
    graph: Graph, table: TaskTable, roofs: DevicePeaks | None, nchw: Bool
) -> Float64:
    """A pointwise convolution over NCHW is a product whose rows are images: of 13 x 13 or 14 x 14
    numbers they are no multiple of 16 bytes. In NHWC its rows are the channels (resnet50 in bf16,
    14 x 14: 3.4 and 3.8 times as fast going forward). NaN elsewhere."""
    times = np.full(len(graph), np.nan)
    misaligned = nchw & matching(table.trace, MISALIGNED_NAME)[graph.task_event]
    for op in distinct(table.op[misaligned]).tolist():
        kernels = nchw & (table.op == op)
        best_ns = None if roofs is None else _aligned_ns(table, roofs, op)
        if best_ns is not None:
            chosen = kernels & misaligned
            times[chosen] = graph.task_ns[chosen] * min(best_ns / graph.task_ns[kernels].sum(), 1.0)
    return times


def _aligned_ns(table: TaskTable, roofs: DevicePeaks, op: int) -> float | None:
    """Time of a convolution in NHWC whose channels are whole rows; None where they are not, or its
    work is not known."""
    pair, work = image_and_weight(table, op), table.work(op)
    if pair is None or work is None or work.flops is None or work.bytes is None:
        return None
    image, weight = pair
    row = ROW_OF.get(image.dtype)
    if row is None or any(channels % row for channels in weight.dims[:2]):
        return None
    backward = "backward" in table.op_name(op)
    return convolution_ns(
        roofs,
        work.flops,
        work.bytes,
        image.dtype,
        backward=backward,
        channels=least_channels(table, op),
    )


def _left_of_turns(graph: Graph, table: TaskTable, turning: Bool) -> Float64:
    """Time that stays of each turn in NHWC."""
    tasks = np.flatnonzero(turning)
    to_nhwc = matching(table.trace, TO_NHWC)[graph.task_event[tasks]]

    def is_full(op: int) -> bool:
        pair = image_and_weight(table, op)
        return pair is not None and pair[0].dtype == "fp32"

    full = table.where(is_full)[tasks]
    left: Float64 = np.where(to_nhwc & full, graph.task_ns[tasks] * POLICY.rounding_factor, 0.0)
    return left


def _convolution_factor(table: TaskTable, task: int, op: int) -> float:
    """How much longer a kernel of the convolution takes in NHWC; 1 where the turning around it is
    all that goes."""
    half, backward = table.precision[task] in ("bf16", "fp16"), "backward" in table.op_name(op)
    if is_thin(table, op):
        pair = image_and_weight(table, op)
        wide = pair is not None and max(pair[1].dims[2:]) >= POLICY.wide_kernel
        if half or not wide:
            return POLICY.half_thin_factor if half else POLICY.thin_factor
        return POLICY.wide_thin_backward_factor if backward else POLICY.wide_thin_factor
    if half or table.tensor_core[task] != 0:
        return 1.0
    if is_grouped(table, op):
        return POLICY.grouped_backward_factor if backward else POLICY.grouped_factor
    return POLICY.full_backward_factor if backward else POLICY.full_factor


def _norm_ns(table: TaskTable, op: int, now_ns: float, roofs: DevicePeaks | None) -> float:
    name, inputs = table.op_name(op), table.inputs(op)
    backward = "backward" in name
    if "group_norm" in name:
        return now_ns if backward else now_ns * POLICY.group_norm_factor
    tensor = None if inputs is None else operand(inputs, 0)
    if tensor is None or roofs is None or tensor.dtype not in ITEM_BYTES:
        return now_ns
    is_half = tensor.dtype in ("bf16", "fp16")
    share = POLICY.full_backward_share if backward else POLICY.full_share
    fixed = POLICY.half_fixed_ns if is_half else POLICY.fixed_ns
    if is_half:
        share = _half_share(tensor, backward=backward)
    passes = POLICY.norm_backward_passes if backward else POLICY.norm_passes
    size = float(tensor.numel * ITEM_BYTES[tensor.dtype] * passes)
    return min(now_ns, fixed + roofs.traffic_ns(size) / share)


def _half_share(image: Operand, *, backward: bool) -> float:
    """Share of the bandwidth reached by a batch norm in NHWC and 16 bits."""
    channels = image.dims[1]
    if len(image.dims) > 4:
        return POLICY.volume_backward_share if backward else POLICY.volume_share
    share, wide_share, wide = POLICY.half_share, POLICY.wide_half_share, POLICY.wide
    if backward:
        share, wide_share = POLICY.half_backward_share, POLICY.wide_half_backward_share
        wide = POLICY.wide_backward
    if channels >= wide:
        return wide_share
    return share * min(channels / POLICY.whole_row, 1.0)


def _turned(graph: Graph, turning: Bool, times: Float64, factor: float) -> Change:
    """Each task by as much shorter or longer as it is there. One that another fix has changed, as
    by fusing it, is not what it was and stays; what turned its tensors goes."""
    ratio = np.where(
        np.isnan(times) | (graph.task_ns <= 0), 1.0, times / np.maximum(graph.task_ns, 1.0)
    )
    ratio = np.where(ratio < 1, np.minimum(ratio * factor, 1.0), ratio)

    def change(before: Graph) -> Graph:
        is_as_recorded = (before.task_ns == graph.task_ns) | turning
        lengths = np.where(is_as_recorded, before.task_ns * ratio, before.task_ns)
        return replace(
            before, task_ns=lengths, task_gap_ns=np.where(turning, 0.0, before.task_gap_ns)
        )

    return change


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
