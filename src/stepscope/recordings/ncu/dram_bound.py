"""The device's memory is the limit, by counters: kernels are as fast as their bytes arrive.

What it sees: kernels whose DRAM throughput is at least 60 % of its peak and nearer to it than any
unit that computes (ncu, rocprof-compute); or DCGM's samples with DRAM active as much, and tensor
cores hardly at all.

Why it costs: such kernels do as well as they can with the bytes they move. Only fewer bytes make
them faster: norms, activations and optimizers that each read and write a whole tensor move it many
times over.

Evidence it needs: DRAM throughput and compute throughput of kernels (`ncu --set full`), or DCGM's
fields 1004 and 1005.

What to do: fuse what reads the same tensor (`torch.compile`, a fused optimizer, flash attention),
16-bit types in place of 32-bit ones, channels_last for convolutions. `stepscope run` says which of
these gives how much.

Example: a LayerNorm of separate kernels at 91 % of the DRAM's peak, in fp32: half the bytes in
bf16, a quarter when fused.
"""

from __future__ import annotations

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.kernels import KernelMetrics
from stepscope.core.recordings.system import DeviceSeries
from stepscope.recordings.ncu.kernel_metrics import POLICY as METRICS
from stepscope.recordings.ncu.kernel_metrics import Fault, Wording, advice_by_cause

CODE = "dram-bound"
BOUND = "memory"
ACTION = (
    "fewer bytes: torch.compile fuses what reads the same tensor, bf16 halves it, a fused optimizer"
)

MAX_TENSOR_SHARE = 0.2
"""Share of the time that tensor cores may work: above it the two are near one another."""
DRAM = "dram"
WORDINGS = {
    DRAM: Wording(
        summary="Limited by the device's memory, which is near its peak: {kernels}.", action=ACTION
    )
}


def advise(auxiliary: Auxiliary) -> list[Advice]:
    devices = () if auxiliary.system is None else auxiliary.system.devices
    by_kernel = advice_by_cause(auxiliary, CODE, BOUND, judge, WORDINGS)
    sampled = [device for device in devices if is_bound(device)]
    return [*by_kernel, *([_advice(sampled)] if sampled else [])]


def judge(kernel: KernelMetrics) -> Fault | None:
    dram, roof = kernel.dram_throughput, kernel.roof
    if dram is None or dram < METRICS.busy or roof is None or roof[0] != "DRAM":
        return None
    compute = kernel.compute_throughput
    words = f"DRAM at {dram:.0%} of its peak"
    if compute is not None:
        words += f", compute at {compute:.0%}"
    return Fault(kernel=kernel, cause=DRAM, words=words)


def is_bound(device: DeviceSeries) -> bool:
    dram, tensor = device.dram_active_share, device.tensor_active_share
    return (
        dram is not None
        and dram.median >= METRICS.busy
        and tensor is not None
        and tensor.median <= MAX_TENSOR_SHARE
    )


def _advice(devices: list[DeviceSeries]) -> Advice:
    worst = max(devices, key=_dram)
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"The memory of {worst.label} is active {_dram(worst):.0%} of the time and its "
        f"tensor cores {_tensor(worst):.0%}: bound by memory.",
        action=ACTION,
        evidence=tuple(
            f"{device.label}: DRAM {_dram(device):.0%}, tensor cores {_tensor(device):.0%} of the "
            "time, in the median"
            for device in devices[:8]
        ),
        weight=_dram(worst),
        weight_of="the device's time",
    )


def _dram(device: DeviceSeries) -> float:
    return 0.0 if device.dram_active_share is None else device.dram_active_share.median


def _tensor(device: DeviceSeries) -> float:
    return 0.0 if device.tensor_active_share is None else device.tensor_active_share.median


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
