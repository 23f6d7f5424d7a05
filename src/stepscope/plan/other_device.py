"""A recorded step on another device: each kernel's time by what bounds it.

Wave scaling after Habitat (Yu et al. 2021, USENIX ATC, section 4.2): a kernel's time goes with the
memory's rate to a power, and with the arithmetic's to what is left of one; the power is by how far
the kernel's FLOP a byte lie from where the new device turns from one bound to the other. Kernels of
unknown work go with the memory's rate. Rates are those that a plan takes both devices to reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.core.facts import KernelRow
from stepscope.errors import StepscopeError, UsageError
from stepscope.plan.cluster import Cluster
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.constants import DEFAULT
from stepscope.plan.devices import find_device
from stepscope.plan.rates import Rates, rates_of

PRODUCTS = ("gemm", "convolution")
HALF = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDevice:
    """What a run's kernels would take on another device."""

    device: str
    ratio: float
    """Ratio of the time of all kernels, there over here."""
    share_known: float
    """Share of that time in kernels whose work was recorded."""


def on_device(kernels: Sequence[KernelRow], device_name: str | None, word: str) -> OtherDevice:
    """All kernels of a rank on the device of that name."""
    if device_name is None:
        raise UsageError("the recording does not name its device, so nothing can be compared")
    here, there = _cluster(device_name), _cluster(word)
    before = after = known = 0.0
    for kernel in kernels:
        if kernel.category in ("comms", "copy"):
            continue
        before += kernel.total_ns
        after += kernel.total_ns * ratio_of(kernel, here, there)
        known += kernel.total_ns if kernel.flops and kernel.bytes else 0.0
    if before <= 0:
        raise UsageError("no kernel was recorded, so there is nothing to carry to another device")
    return OtherDevice(device=there.device.name, ratio=after / before, share_known=known / before)


def ratio_of(kernel: KernelRow, here: Cluster, there: Cluster) -> float:
    """One kernel's time there, over its time here."""
    precision = kernel.precision or "fp32"
    old, new = _rates(here, precision), _rates(there, precision)
    memory = old.stream / new.stream
    if not kernel.flops or not kernel.bytes:
        return memory
    slower, faster = _arithmetic(kernel, old), _arithmetic(kernel, new)
    intensity, ridge = kernel.flops / kernel.bytes, faster / new.stream
    power = 1 - 0.5 * intensity / ridge if intensity < ridge else 0.5 * ridge / intensity
    return float(memory**power * (slower / faster) ** (1 - power))


def _arithmetic(kernel: KernelRow, rates: Rates) -> float:
    if kernel.category == "attention":
        return rates.attention
    return rates.gemm if kernel.category in PRODUCTS else rates.scalar


def _cluster(word: str) -> Cluster:
    """One of these devices."""
    try:
        return parse_cluster(f"1x{word}")
    except StepscopeError:
        return parse_cluster(f"1x{find_device(word).spec.key}")


def _rates(cluster: Cluster, precision: str) -> Rates:
    """Rates of a precision, or of the nearest that the device has."""
    names = (precision, "bf16", "fp16") if precision in HALF else (precision, "fp32")
    for name in names:
        if (rates := rates_of(cluster, name, DEFAULT, 2, attention_generation=3)) is not None:
            return rates
    raise UsageError(f"{cluster.device.name} has no unit for {precision}")
