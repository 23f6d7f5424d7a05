"""How long a device takes for a matrix product, for attention, for a pass over memory.

By datasheet or by measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.plan.cluster import Cluster
from stepscope.plan.constants import Constants

Floats = npt.NDArray[Any]

TILES = ((256, 128, 1.0), (128, 128, 0.95), (128, 64, 0.80), (64, 64, 0.60))
"""Sizes of the blocks that a product is cut into, and what each reaches of the best one's rate."""
ALIGNED, UNEVEN, UNALIGNED, ODD = 64, 1.10, 1.8, 3.0
"""What sizes cost that are no multiple of 64 (128 bytes), none of 8 (16 bytes), and odd ones.
The last is from nanoGPT, which ran 25 % faster on A100s when its vocabulary went from 50,257 to
50,304: planned with this, 1.26 times."""
USUAL_SMS = 108
FLOOR_S = 4e-6
"""Least time of any kernel."""
NARROW = 64
NARROW_PRECISIONS = ("fp8", "fp4")
BLACKWELL_FLOPS = 2000e12
BLACKWELL_W, BLACKWELL_PEAK = 1000.0, 2250e12
"""Power and peak of the B200, on which the shares were measured."""
CDNA3_W = 750.0
"""Power of the MI300X, likewise."""
HOPPER_FLOPS = 500e12
"""Devices with more than this in 16 bits run into their power limit before their peak."""
AMD = "amd"
EXPOSED_BYTES = 0.4
"""Share of what grouped products read and write that their arithmetic does not hide. *Fitted* on
the 108 that SimuMax published of a B200, of 128 to 9,832 rows a group: 84 are within 25 % with
it."""


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
    adds_apart: bool = False
    """Whether what a product adds its results to costs time beyond the rate of `gemm`."""

    def gemm_s(self, m: Any, n: Any, k: Any, added_bytes: float = 0.0) -> Floats:
        """Seconds of an (m x k) by (k x n) product.

        `added_bytes` are read and written for each result where it is added to what is there. That
        costs time on a B200: of SimuMax's large products those that add up in fp32 reach 0.454 to
        0.469 of the peak, others 0.482 to 0.493. Steps on older devices show nothing of it, and
        the rates of 8 and 4 bits were set on whole steps, which have it.
        """
        m, n, k = (np.asarray(size, dtype=np.float64) for size in (m, n, k))
        moved = (m * k + k * n + m * n) * self.value_bytes
        work_s = np.maximum(self._work_s(1.0, m, n, k), moved / self.stream)
        if self.adds_apart:
            work_s = work_s + EXPOSED_BYTES * m * n * added_bytes / self.stream
        return np.asarray(work_s + FLOOR_S)

    def grouped_s(
        self, num: Any, m: Any, n: Any, k: Any, out_bytes: float, *, is_fused: bool = False
    ) -> Floats:
        """Seconds of so many products of one shape in one kernel, as experts have them.

        They fill waves together, and each reads its own weights; `out_bytes` are read and written
        for each of the m x n results, which is more where gradients are added up in fp32. Fused
        ones hide their reads behind the arithmetic, as a plain product does.
        """
        m, n, k = (np.asarray(size, dtype=np.float64) for size in (m, n, k))
        moved = num * ((m * k + k * n) * self.value_bytes + m * n * out_bytes)
        work_s, moved_s = self._work_s(num, m, n, k), moved / self.stream
        if is_fused:
            return np.asarray(np.maximum(work_s, moved_s) + FLOOR_S)
        return np.asarray(work_s + EXPOSED_BYTES * moved_s + FLOOR_S)

    def _work_s(self, num: Any, m: Any, n: Any, k: Any) -> Floats:
        """The arithmetic alone, of so many products at once."""
        work: Any = np.inf
        for rows, columns, share in TILES:
            tiles = num * np.ceil(m / rows) * np.ceil(n / columns)
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
        return np.asarray(2 * work * (k + self.half_k) / self.gemm)

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
    is_amd, is_blackwell = cluster.device.vendor == AMD, half > BLACKWELL_FLOPS
    measured = cluster.gemms.get(precision)
    share = _product_share(constants, precision, half, is_amd=is_amd)
    flash = _attention_share(constants, attention_generation, half, is_amd=is_amd)
    if attention_generation > 1 and head_dim <= NARROW:
        flash *= constants.narrow_heads
    power_factor = _power_factor(cluster, constants, half)
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
        stream=cluster.bandwidth_bytes_per_s
        * (constants.stream_share_blackwell if is_blackwell else constants.stream_share),
        attention=attention,
        attention_backward=backward,
        value_bytes=value_bytes,
        is_blackwell=is_blackwell and not is_amd,
        adds_apart=is_blackwell and not is_amd and precision not in NARROW_PRECISIONS,
        scalar=constants.scalar_share * peaks.get("fp32", peak / 16),
    )


def _power_factor(cluster: Cluster, constants: Constants, half_flops: float) -> float:
    """What power makes of the share: a device held below its rating clocks lower, and of Blackwell
    boards with one peak the one with more power clocks higher."""
    if half_flops <= HOPPER_FLOPS:
        return 1.0
    power_share = cluster.power_share
    if half_flops > BLACKWELL_FLOPS and cluster.power_w and cluster.device.vendor != AMD:
        # The rating stands beside the B200's; what the cluster says of its boards is in it.
        power_share = cluster.power_w / BLACKWELL_W
        return float(min(power_share**constants.power_exponent * BLACKWELL_PEAK / half_flops, 1.3))
    if half_flops <= BLACKWELL_FLOPS and cluster.power_w and cluster.device.vendor == AMD:
        return float((cluster.power_w / CDNA3_W) ** constants.power_exponent_cdna3)
    return float(power_share**constants.power_exponent)


def _product_share(
    constants: Constants, precision: str, half_flops: float, *, is_amd: bool
) -> float:
    """Share of the peak that large products keep up, by generation and precision."""
    is_hopper, is_blackwell = half_flops > HOPPER_FLOPS, half_flops > BLACKWELL_FLOPS
    if is_amd and is_hopper:
        if precision in NARROW_PRECISIONS:
            return constants.gemm_share_fp8_cdna
        return constants.gemm_share_cdna4 if is_blackwell else constants.gemm_share_cdna3
    if precision == "fp4":
        return constants.gemm_share_fp4
    if precision == "fp8":
        return constants.gemm_share_fp8_blackwell if is_blackwell else constants.gemm_share_fp8
    if is_blackwell:
        return constants.gemm_share_blackwell
    return constants.gemm_share_hopper if is_hopper else constants.gemm_share


def _attention_share(
    constants: Constants, generation: int, half_flops: float, *, is_amd: bool
) -> float:
    """Share of the 16-bit peak that attention in one kernel reaches forward."""
    if half_flops <= HOPPER_FLOPS:
        share = constants.flash_share
    elif is_amd:
        share = constants.flash_share_cdna
    elif half_flops > BLACKWELL_FLOPS:
        # Kernels of older generations do not run on its tensor cores: frameworks take cuDNN's.
        return constants.fused_share_blackwell
    else:
        is_fused = generation >= 3
        share = constants.fused_share_hopper if is_fused else constants.flash_share_hopper
    return share * constants.first_flash if generation == 1 else share
