"""Large matrix products run in 16 bits on a device that multiplies 8-bit floats twice as fast.

What it sees: bf16 and fp16 products of linear layers (`aten::mm`, `aten::addmm`) whose sides are
multiples of 16, on a device with fp8 units (H100, H200, B200, MI300, Ada).

Why it costs: fp8 doubles the peak. But both matrices of each product have to be scaled and cast
first. A compiler does most of it in the kernels that write them; without one each scale and each
cast is a pass of its own, and the step becomes slower. Products with a side under about 2,000 lose
even so, and are left as they are. Products over a vocabulary are left too: their results are the
loss.

Evidence it needs: shapes (`record_shapes=True`), and the device's peaks.

What to do: torchao's `convert_to_float8_training(model)` with `torch.compile`, which fuses the
casts; see that it reports no graph break there (`TORCH_LOGS=graph_breaks`). Or NVIDIA's Transformer
Engine (`fp8_autocast`), which has kernels for them. Both keep weights and sums in 16 or 32 bits.
Compare the loss over some thousand steps. The products are reckoned to keep most of the share of
the peak that they reach in 16 bits.

Example: two gated layers of 4096 x 14336 over 8192 tokens, compiled, took 24.4 ms there and back in
bf16 on an H200 and 16.4 ms in fp8; in fp8 and not compiled 39.5 ms.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.trace import Float64
from stepscope.replay.changes import Change, with_task_ns
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.products import product_sizes
from stepscope.rules.shared.rates import MATRIX_FIXED_NS, fixed_ns, stream_ns
from stepscope.rules.task_table import TaskTable, per_step_ms

CODE = "bf16-matmul"
BOUND = "compute"
HALVES = ("bf16", "fp16")


class Policy(Struct, frozen=True, kw_only=True):
    kept: float = 0.84
    """Fraction of the share of peak reached in 16 bits that a product keeps in fp8: going forward
    0.91 to 0.96 (H200, five shapes), going back less, where sums are kept in more bits."""
    cautious_kept: float = 0.7
    hopeful_kept: float = 0.95
    cast_bytes: float = 3.0
    """Moved for each number of both matrices of a compiled product: its scale is found in the
    kernel that writes it; it is read once more and written in fp8."""
    multiple: int = 16
    """Number that must divide a product's sides for the fp8 kernels."""
    vocabulary: int = 30_000
    """A side from which a product is taken for the logits'."""
    worth: float = 0.9
    """Largest share of its time that a product may take in fp8 to be worth the change."""
    least_share: float = 0.02
    """Share of the step that the products must gain together."""


POLICY = Policy()


def propose(case: Case) -> Proposal | None:
    """Each large product in fp8, with the casts of its matrices."""
    graph, roofs = case.graph, case.context.roofs
    if roofs is None or "fp8" not in roofs.spec.peak_flops:
        return None
    table = case.table
    likely = _in_fp8(graph, table, roofs, POLICY.kept)
    worth = likely < POLICY.worth * graph.task_ns
    now_ms = per_step_ms(graph, worth)
    spared = float((graph.task_ns - likely)[worth].sum()) / max(graph.num_steps, 1)
    if spared < POLICY.least_share * case.step_interval_ns:
        return None
    longest = int(np.flatnonzero(worth)[np.argmax(graph.task_ns[worth])])
    sizes = " x ".join(map(str, product_sizes(table, int(table.op[longest]))))

    def change(kept: float) -> Change:
        times = _in_fp8(graph, table, roofs, kept)
        return lambda before: with_task_ns(before, worth, times)

    return Proposal(
        summary=f"{now_ms:.1f} ms a step are large products in 16 bits, and the device has fp8.",
        action="torchao.float8.convert_to_float8_training(model) with torch.compile, or "
        "Transformer Engine's fp8_autocast",
        evidence=(
            f"{int(worth.sum()) // max(graph.num_steps, 1)} such products a step",
            (
                f"the longest, {sizes} (m x n x k), takes {graph.task_ns[longest] / 1e3:.0f} us; "
                f"in fp8 with its casts about {likely[longest] / 1e3:.0f}"
            ),
        ),
        events=graph.task_event[worth],
        change=change(POLICY.kept),
        cautious=change(POLICY.cautious_kept),
        hopeful=change(POLICY.hopeful_kept),
        changes_numerics=True,
        changes_training=True,
        may_slow=True,
    )


def _in_fp8(graph: Graph, table: TaskTable, roofs: DevicePeaks, kept: float) -> Float64:
    """Time that each task's product takes in fp8, its casts included; infinite where it is none
    that can be."""
    times = np.full(len(graph), np.inf)
    half = np.array([precision in HALVES for precision in table.precision], np.bool_)
    products = table.is_matrix & half & table.of_category("gemm") & ~np.isnan(table.flops)
    for task in np.flatnonzero(products & table.leads).tolist():
        sizes = product_sizes(table, int(table.op[task]))
        if not all(sizes) or any(side % POLICY.multiple for side in sizes):
            continue
        if max(sizes[1:]) >= POLICY.vocabulary:
            continue
        now, precision = float(graph.task_ns[task]), table.precision[task]
        wide = roofs.arithmetic_ns(float(table.flops[task]), precision, matrix=True)
        narrow = roofs.arithmetic_ns(float(table.flops[task]), "fp8", matrix=True)
        start = fixed_ns(roofs, MATRIX_FIXED_NS)
        faster = max(now - start, 0.0) * narrow / (wide * kept)
        times[task] = start + min(faster, now) + _casts_ns(roofs, sizes)
    return times


def _casts_ns(roofs: DevicePeaks, sizes: tuple[int, int, int]) -> float:
    m, n, k = sizes
    return sum(stream_ns(roofs, POLICY.cast_bytes * numbers) for numbers in (m * k, k * n))


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
