"""fp32-matmul: what totals of kernels show."""

from __future__ import annotations

from stepscope.api import Advice, Auxiliary
from stepscope.core.kernel_names import MATRIX_CATEGORIES, category_of, uses_tensor_cores
from stepscope.core.recordings.kernels import NAME_CHARS
from stepscope.recordings.nsys.totals import kernel_totals

CODE = "fp32-matmul"
BOUND = "compute"
MIN_TOTAL_SHARE = 0.05
"""Share of the kernels' time, by totals alone; chosen without recordings."""


def advise(auxiliary: Auxiliary) -> Advice | None:
    """Advise by totals of kernels alone, from the names of products that no tensor core
    computes."""
    rows = kernel_totals(auxiliary)
    total_ns = sum(row.total_ns for row in rows)
    slow = [
        row
        for row in rows
        if category_of(row.name) in MATRIX_CATEGORIES and uses_tensor_cores(row.name) is False
    ]
    slow_ns = sum(row.total_ns for row in slow)
    if not total_ns or slow_ns < MIN_TOTAL_SHARE * total_ns:
        return None
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{slow_ns / total_ns:.0%} of the kernels' time is in matrix products that no "
        "tensor core computes.",
        action='torch.autocast("cuda", dtype=torch.bfloat16), or '
        'torch.set_float32_matmul_precision("high"); a trace says what it gives',
        evidence=tuple(
            f"{row.name[:NAME_CHARS]}: {row.count:,} launches, {row.total_ns / total_ns:.0%}"
            for row in sorted(slow, key=lambda row: -row.total_ns)[:3]
        ),
        weight=slow_ns / total_ns,
        weight_of="the kernels' time",
    )
