"""Matrix products that the tensor cores (matrix cores, MFMA) take no part in, by counters.

What it sees: kernels whose names are those of matrix products, convolutions or attention, and whose
counters show no work of the tensor pipe (Nsight Compute, rocprof); or DCGM's samples with the
multiprocessors at work, and neither tensor cores nor DRAM.

Why it costs: tensor cores multiply eight to sixteen times as fast as the units for single numbers.
Products in fp32 without TF32, in fp64, or of shapes that no such kernel takes, go without them.

Evidence it needs: the tensor pipe's share or its instructions (`SQ_INSTS_MFMA`), of single kernels;
or DCGM's fields 1002, 1004 and 1005.

What to do: `torch.autocast("cuda", dtype=torch.bfloat16)`, or
`torch.set_float32_matmul_precision("high")`; sizes that are multiples of 8. A trace says which, and
what it gives: fp32-matmul, tf32-off, misaligned-shapes.

Example: rocprof counts no MFMA instruction in a Cijk kernel: a product in fp32.
"""

from __future__ import annotations

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.kernel_names import MATRIX_CATEGORIES, category_of
from stepscope.core.recordings.kernels import KernelMetrics
from stepscope.core.recordings.system import DeviceSeries
from stepscope.recordings.ncu.kernel_metrics import POLICY as METRICS
from stepscope.recordings.ncu.kernel_metrics import Fault, Wording, advice_by_cause

CODE = "idle-tensor-cores"
BOUND = "compute"
ACTION = (
    'torch.autocast("cuda", dtype=torch.bfloat16), or torch.set_float32_matmul_precision("high"); '
    "a trace says which, and what it gives"
)


class Policy(Struct, frozen=True, kw_only=True):
    most_pipe: float = 0.01
    """Share of the tensor pipe's peak. A kernel that uses it at all comes to several percent."""
    least_active: float = 0.5
    """Share of the time with a warp on the multiprocessors from which a device is at work."""
    most_sampled: float = 0.05
    """Share of the time that DCGM sees tensor cores at work, at most."""


POLICY = Policy()
IDLE = "idle"
WORDINGS = {
    IDLE: Wording(
        summary="Matrices multiplied without tensor cores (MFMA on AMD): {kernels}.",
        action=ACTION,
    )
}


def advise(auxiliary: Auxiliary) -> list[Advice]:
    devices = () if auxiliary.system is None else auxiliary.system.devices
    by_kernel = advice_by_cause(auxiliary, CODE, BOUND, judge, WORDINGS)
    sampled = [device for device in devices if is_without(device)]
    return [*by_kernel, *([_advice(sampled)] if sampled else [])]


def judge(kernel: KernelMetrics) -> Fault | None:
    pipe = kernel.tensor_pipe
    if pipe is None or pipe > POLICY.most_pipe or category_of(kernel.name) not in MATRIX_CATEGORIES:
        return None
    return Fault(kernel=kernel, cause=IDLE, words=f"tensor cores at {pipe:.0%} of their peak")


def is_without(device: DeviceSeries) -> bool:
    active, tensor, dram = (
        device.sm_active_share,
        device.tensor_active_share,
        device.dram_active_share,
    )
    return (
        active is not None
        and active.median >= POLICY.least_active
        and tensor is not None
        and tensor.median <= POLICY.most_sampled
        and dram is not None
        and dram.median < METRICS.busy
    )


def _advice(devices: list[DeviceSeries]) -> Advice:
    first = devices[0]
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"The multiprocessors of {first.label} are at work and its tensor cores are not.",
        action=ACTION,
        evidence=tuple(_line(device) for device in devices[:8]),
    )


def _line(device: DeviceSeries) -> str:
    shares = {
        "multiprocessors": device.sm_active_share,
        "tensor cores": device.tensor_active_share,
        "DRAM": device.dram_active_share,
    }
    told = [f"{name} {share.median:.0%}" for name, share in shares.items() if share is not None]
    return f"{device.label}: {', '.join(told)} of the time, in the median"


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
