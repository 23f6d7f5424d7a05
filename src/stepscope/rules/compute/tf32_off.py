"""fp32 matrix products could use the tensor cores as they are, by one switch.

What it sees: GEMM and convolution kernels whose inputs are fp32 and that use no tensor cores, on a
device that has TF32.

Why it costs: on an H200 the vector units do 67 TFLOP/s, the tensor cores 495 in TF32, which keeps
the range of fp32 and ten of its bits. No cast is added and no tensor changes its type: where the
host is nearly the limit, this gives more than autocast, and elsewhere it is the first half of it.
Grouped convolutions that cuDNN took group by group, a launch for each, mostly become one kernel.
The tensor cores take TF32 along the dimension that is summed over alone: products of the backward
pass, whose matrices lie across it, reach 0.7 (images' gradient) and half (weights') of that rate.

Evidence it needs: shapes (`record_shapes=True`).

What to do: `torch.set_float32_matmul_precision("high")` for products,
`torch.backends.cudnn.allow_tf32 = True` for convolutions. It changes the numbers: check the loss.

Example: resnet50 in fp32 took 77 ms a step, 32 ms in TF32, 29 ms under bf16 autocast.
"""

from __future__ import annotations

from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Bool
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.measured import timed_line
from stepscope.rules.shared.vector_products import (
    at_precision,
    find_products,
    timed_share,
)
from stepscope.rules.task_table import TaskTable

CODE = "tf32-off"
BOUND = "compute"


def propose(case: Case) -> Proposal | Abstention | None:
    """The same products at TF32's rate."""
    graph, roofs = case.graph, case.context.roofs
    if roofs is None:
        return None
    # Elsewhere PyTorch's "high" may change nothing.
    if roofs.spec.vendor != "nvidia" or "tf32" not in roofs.spec.peak_flops:
        return None
    products = find_products(case)
    if products is None:
        return None
    share = timed_share(case, products, "tf32")
    return Proposal(
        summary=products.summary,
        action=_knobs(case.table, products.sized),
        evidence=(
            products.evidence,
            *timed_line(share, "in tf32"),
            f"the device's TF32 peak is {roofs.spec.peak_flops['tf32'].value / 1e12:.0f} TFLOP/s",
        ),
        events=graph.task_event[products.slow],
        change=at_precision(case, roofs, products, "tf32"),
        timed_share=share,
        changes_numerics=True,
    )


def _knobs(table: TaskTable, sized: Bool) -> str:
    """Products and convolutions have a switch each."""
    convolution = table.of_category("convolution")[sized]
    knobs = [] if convolution.all() else ['torch.set_float32_matmul_precision("high")']
    if convolution.any():
        knobs.append("torch.backends.cudnn.allow_tf32 = True")
    return " and ".join(knobs)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose, excludes=("fp32-matmul",))
