"""Matrix products run in fp32 on the vector units, with the tensor cores idle.

What it sees: GEMM, convolution and attention kernels whose inputs are fp32 and that use no tensor
cores (sgemm, simt, ffma). Where there are none, convolutions over 16-bit numbers for which cuDNN
took such a kernel, as `implicit_convolve_sgemm`. Products that are in TF32 already are no fault,
but autocast has them in bf16 as well; where they are most, it is listed last: it is another
training of what the job has chosen.

Why it costs: on an H200 the vector units do 67 TFLOP/s, the tensor cores 495 in TF32 and 989 in
bf16. Products that keep the device busy become that much shorter; those that wait for the host do
not, and autocast adds casts, each a kernel and a launch, going forward and back: of every weight
and bias, and of what a layer norm, a sum of residuals or a softmax gives in fp32. What lies between
products is half as wide and its kernels half as long. Where the host is the limit, or what is cast
is larger than what is multiplied, the step becomes slower. Grouped convolutions that cuDNN took
group by group, a launch for each, mostly become one kernel. What recomputation runs again is cast
again, weights and all.
Convolutions of fewer than 80 channels in a group fill a part of the tensor cores' tiles, and those
over NCHW are turned first; the products of a recurrent layer stay a kernel for each step.

Evidence it needs: shapes (`record_shapes=True`), to tell each product's FLOPs and its type.

What to do: `torch.autocast("cuda", torch.bfloat16)` around the forward pass. It changes the
numbers: check the loss. Where the host has no time for the casts, or batch norms over images leave
cuDNN, TF32 alone may give more (`tf32-off`). Convolutions that 16 bits have driven off the tensor
cores are better left in fp32, by themselves or with all others: TF32 has kernels for them, and
without autocast the host has fewer to launch.

Example: a 12-layer GPT in fp32 took 218 ms a step, 32 ms under bf16 autocast. wav2vec2, whose
convolution of 16 groups has no such kernel in bf16: 23.3 ms under autocast, 17.4 ms in TF32.
"""

from __future__ import annotations

from stepscope.core.diagnosis import Abstention
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.measured import timed_line
from stepscope.rules.shared.rates import half_precision
from stepscope.rules.shared.vector_products import (
    ask_for_products,
    at_precision,
    find_half_convolutions,
    find_products,
    tf32_tasks,
    timed_share,
    without_autocast,
)
from stepscope.rules.task_table import per_step_ms

CODE = "fp32-matmul"
BOUND = "compute"
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
SCALED = (
    ", with torch.amp.GradScaler('cuda') around backward and step: small gradients are zero in "
    "fp16 without it, and this device has no bf16"
)
ALONE = (
    "torch.autocast('cuda', enabled=False) around these modules, with their input in fp32: TF32 "
    "has kernels for the tensor cores; or try torch.backends.cudnn.benchmark = True"
)
WHOLE = (
    'torch.set_float32_matmul_precision("high") and no autocast: TF32 has kernels for the tensor '
    "cores, and needs no casts"
)


def propose(case: Case) -> Proposal | Abstention | None:
    """The same products in 16 bits."""
    graph, roofs = case.graph, case.context.roofs
    half = None if roofs is None else half_precision(roofs)
    products = None if half is None else find_products(case)
    if roofs is None or half is None or products is None:
        return _out_of_autocast(case) or ask_for_products(case, CODE)
    change = at_precision(case, roofs, products, half)
    share = timed_share(case, products, half)
    slow_ms = per_step_ms(graph, products.slow)
    tf32_ms = per_step_ms(graph, tf32_tasks(case.table))
    mostly_tf32 = tf32_ms > slow_ms
    return Proposal(
        summary=products.summary
        if not mostly_tf32
        else f"{tf32_ms:.1f} ms of matrix products a step run in TF32, {slow_ms:.1f} ms without "
        "tensor cores.",
        action=f"torch.autocast('cuda', dtype=torch.{DTYPES[half]}) around forward and loss"
        f"{SCALED if half == 'fp16' else ''}",
        evidence=(
            products.evidence,
            *timed_line(share, f"in {half}"),
            f"the device's {half} peak is {roofs.spec.peak_flops[half].value / 1e12:.0f} TFLOP/s",
        ),
        events=graph.task_event[products.slow],
        change=change,
        timed_share=share,
        changes_numerics=True,
        may_slow=True,
        changes_training=mostly_tf32,
    )


def _out_of_autocast(case: Case) -> Proposal | None:
    """16-bit convolutions that multiply in fp32 all the same, in TF32: these alone, or the whole
    step, which spares the casts."""
    graph, roofs = case.graph, case.context.roofs
    if roofs is None or roofs.spec.vendor != "nvidia" or "tf32" not in roofs.spec.peak_flops:
        return None
    convolutions = find_half_convolutions(case)
    if convolutions is None:
        return None
    alone = at_precision(case, roofs, convolutions, "tf32")
    whole = without_autocast(case, roofs, convolutions)
    is_whole = case.speedup(whole(graph)) > case.speedup(alone(graph))
    return Proposal(
        summary=convolutions.summary,
        action=WHOLE if is_whole else ALONE,
        evidence=(
            convolutions.evidence,
            "cuDNN took kernels that turn 16-bit numbers into fp32 before they multiply them",
        ),
        events=graph.task_event[convolutions.slow],
        change=whole if is_whole else alone,
        cautious=alone,
        changes_numerics=True,
        may_slow=True,
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
