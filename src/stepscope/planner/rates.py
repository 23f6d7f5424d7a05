"""How long a device takes for a matrix product, for attention, for a pass over memory.

By datasheet or by measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.planner.cluster import Cluster
from stepscope.planner.constants import Constants

Floats = npt.NDArray[Any]

TILES = ((256, 128, 1.0), (128, 128, 0.95), (128, 64, 0.80), (64, 64, 0.60))
"""Sizes of the blocks that a product is cut into, and what each reaches of the best one's rate."""
ALIGNED, UNEVEN, UNALIGNED, ODD = 64, 1.10, 1.8, 3.0
"""What sizes cost that are no multiple of 64 (128 bytes), none of 8 (16 bytes), and odd ones.
The last is from nanoGPT, which ran 25 % faster on A100s when its vocabulary went from 50,257 to
50,304: planned with this, 1.26 times."""
USUAL_SMS = 108
FLOOR_S = 4e-6
"""Of any kernel."""
NARROW = 64
BLACKWELL_FLOPS = 2000e12
HOPPER_FLOPS = 500e12
"""Devices with more than this in 16 bits run into their power limit before their peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """One device at one precision."""

    peak: float
    """FLOP/s of the datasheet."""
    gemm: float
    """FLOP/s that a large product reaches."""
    half_k: float
    wave_tail: float
    num_sms: int
    stream: float
    """Bytes/s that a pass over memory reaches."""
    attention: float
    attention_backward: float
    value_bytes: int
    scalar: float
    """FLOP/s of products that go past the tensor cores."""
    is_blackwell: bool = False

    def gemm_s(self, m: Any, n: Any, k: Any) -> Floats:
        """Seconds of an (m x k) by (k x n) product."""
        m, n, k = (np.asarray(size, dtype=np.float64) for size in (m, n, k))
        work: Any = np.inf
        for rows, columns, share in TILES:
            tiles = np.ceil(m / rows) * np.ceil(n / columns)
            waves = tiles / self.num_sms
            waves = waves + self.wave_tail * (np.ceil(waves) - waves)
            work = np.minimum(work, waves * self.num_sms * rows * columns / share)
        # Tensor cores want sizes that fill their tiles: other ones are padded, or take a slower
        # way.
        is_uneven = ((n % ALIGNED != 0) | (k % ALIGNED != 0)) & (np.minimum(n, k) > ALIGNED)
        is_unaligned = (n % 8 != 0) | (k % 8 != 0)
        is_odd = (n % 2 == 1) | (k % 2 == 1)
        work = work * np.where(
            is_odd, ODD, np.where(is_unaligned, UNALIGNED, np.where(is_uneven, UNEVEN, 1.0))
        )
        moved = (m * k + k * n + m * n) * self.value_bytes
        return np.asarray(
            np.maximum(2 * work * (k + self.half_k) / self.gemm, moved / self.stream) + FLOOR_S
        )

    def stream_s(self, moved_bytes: Any) -> Floats:
        return np.asarray(moved_bytes, dtype=np.float64) / self.stream


def rates_of(
    cluster: Cluster,
    precision: str,
    constants: Constants,
    value_bytes: int,
    *,
    head_dim: int = 128,
    attention_generation: int = 2,
) -> Rates | None:
    """None where the device has no unit for this precision."""
    peaks = cluster.peak_flops
    peak = peaks.get(precision)
    if peak is None:
        return None
    half = max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0))
    is_hopper, is_blackwell = half > HOPPER_FLOPS, half > BLACKWELL_FLOPS
    measured = cluster.gemms.get(precision)
    share = constants.gemm_share_hopper if is_hopper else constants.gemm_share
    if precision == "fp8":
        share = constants.gemm_share_fp8_blackwell if is_blackwell else constants.gemm_share_fp8
    if precision == "fp4":
        share = constants.gemm_share_fp4
    flash = constants.flash_share
    if is_hopper:
        is_fused = attention_generation >= 3
        flash = constants.fused_share_hopper if is_fused else constants.flash_share_hopper
    if attention_generation == 1:
        flash *= constants.first_flash
    elif head_dim <= NARROW:
        flash *= constants.narrow_heads
    # A device held below its rating clocks lower: rates go about with the root of its power.
    power_factor = cluster.power_share**0.5 if is_hopper else 1.0
    share, flash = share * power_factor, flash * power_factor
    attention = (
        (half or peak) * flash if precision in ("fp16", "bf16", "fp8", "fp4") else peak * flash
    )
    backward = attention * constants.flash_backward
    if cluster.attention and precision in ("fp16", "bf16", "fp8", "fp4"):
        narrow = constants.narrow_heads if head_dim <= NARROW else 1.0
        attention, backward = (cluster.attention[name] * narrow for name in ("forward", "backward"))
    return Rates(
        peak=peak,
        gemm=measured.peak * measured.efficiency if measured else peak * share,
        half_k=measured.half_k if measured else constants.half_k,
        wave_tail=constants.wave_tail,
        num_sms=cluster.device.num_sms or USUAL_SMS,
        stream=cluster.bandwidth_bytes_per_s * constants.stream_share,
        attention=attention,
        attention_backward=backward,
        value_bytes=value_bytes,
        is_blackwell=is_blackwell,
        scalar=constants.scalar_share * peaks.get("fp32", peak / 16),
    )
