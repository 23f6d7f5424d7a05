"""Matrix products run with the kernels that a library guessed, well below what their size allows.

What it sees: products on the matrix units that take longer than well-made kernels of the same size,
and no kernel that a search chose.

Why it costs: cuBLAS and hipBLASLt choose a kernel by rules of thumb. For sizes that are odd, flat
or rare the choice is often not the fastest; a search over tiles finds it, and fuses what follows.

Evidence it needs: shapes (`record_shapes=True`), the peaks of the device.

What to do: `torch.compile(model, mode="max-autotune")`: it times Triton's kernels against the
library's for each product and keeps the fastest. It compiles for minutes, which a training of hours
pays back and a run of minutes does not; where sizes change it searches again for each. Not worth it
where the host is the limit (`reduce-overhead` is), on devices of few multiprocessors, or for
products that are near the roof. What it gives is not known before it was tried:
`stepscope tune --knob compile_mode=default,max-autotune -- python train.py`.

Example: products of 96 rows that reach a third of what well-made ones do.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.trace import Bool, Float64
from stepscope.rules.case import Case
from stepscope.rules.proposal import Remark
from stepscope.rules.rule import Rule
from stepscope.rules.shared.compiled_host import is_compiled
from stepscope.rules.shared.products import is_misaligned
from stepscope.rules.shared.rates import matrix_ns
from stepscope.rules.task_table import TaskTable, per_step_ms

CODE = "untuned-matmul"
BOUND = "compute"
SEARCHED = "triton_"
"""How the names of Inductor's own products begin: a search chose them."""
PRECISIONS = ("bf16", "fp16")
"""TF32's rate depends on how the matrices lie, which no search changes."""


class Policy(Struct, frozen=True, kw_only=True):
    least_lost: float = 0.05
    """Share of the step above what well-made kernels take: less is within what these are known
    to."""
    least_slower: float = 1.25
    """Times as long as a well-made kernel: half of the products that were measured lie closer."""


POLICY = Policy()


def propose(case: Case) -> Remark | None:
    """What the products lose in a step; no gain is promised, for the search may find nothing."""
    roofs, table, graph = case.context.roofs, case.table, case.graph
    products = table.of_category("gemm") & table.is_matrix & ~np.isnan(table.flops)
    if roofs is None or not products.any() or _is_searched(case, products):
        return None
    reach = _reach_ns(table, roofs, products)
    # Rows of odd lengths are padded, not searched for: misaligned-shapes.
    slow = products & ~is_misaligned(case) & (graph.task_ns > POLICY.least_slower * reach)
    lost_ns = float((graph.task_ns - reach)[slow].sum()) / max(graph.num_steps, 1)
    if lost_ns < POLICY.least_lost * case.step_interval_ns:
        return None
    mode = "torch.compile(mode='max-autotune')"
    now = " in place of its present mode" if is_compiled(case) else ""
    return Remark(
        code=CODE,
        text=f"{per_step_ms(graph, slow):.1f} ms of matrix products a step take "
        f"{lost_ns / 1e6:.1f} ms more than well-made kernels of their size: {mode}{now} "
        "searches for faster ones, for minutes, which a long training pays back. `stepscope tune "
        "--knob compile_mode=default,max-autotune -- python train.py` says what it gives",
    )


def _is_searched(case: Case, products: Bool) -> bool:
    names = case.replayed.names
    kernels = case.replayed.name[case.graph.task_event[products]]
    return any(names[name].startswith(SEARCHED) for name in np.unique(kernels).tolist())


def _reach_ns(table: TaskTable, roofs: DevicePeaks, products: Bool) -> Float64:
    """Time that a well-made product takes, by task; infinite where it is not known."""
    reach = np.full(len(table.op), np.inf)
    for task in np.flatnonzero(products).tolist():
        precision = table.precision[task]
        if precision in PRECISIONS:
            time_ns = matrix_ns(
                roofs, float(table.flops[task]), float(table.bytes[task]), precision
            )
            reach[task] = np.inf if np.isnan(time_ns) else time_ns
    return reach


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
