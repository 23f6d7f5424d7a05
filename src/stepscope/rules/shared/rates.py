"""How long well-made kernels take on a device: its peaks times the share that they reach.

Shares and fixed times were measured on one H200 (132 SMs, torch 2.11, CUDA graphs of ten calls, so
without launches); measured microseconds stand beside what is returned here. On another device the
shares are taken to be the same, its own roofs differ. Where the machine at hand was calibrated
(`stepscope calibrate`), its own shares stand in their place.

    bf16 GEMM m, n, k   measured  here     attention b, h, s, d (bf16, not causal)   measured  here
    1024, 1024, 1024         5.7   5.8     8, 16, 1024, 64   forward                       84    79
    8192, 1024, 1024        25.0  25.3     4, 16, 2048, 64   forward                      154   153
    4096, 4096, 4096       173.6   181     8, 16, 1024, 128  forward                      115   118
    8192, 8192, 8192        1439  1428     backward of each, times             3.0 to 3.5   3.0
"""

from __future__ import annotations

import math
from typing import Literal

from stepscope.analyses.kernels.measured_rates import DevicePeaks

Layout = Literal["nhwc", "turned", "odd"]
"""Layout of a convolution's tensors: as the matrix units take them; in NCHW, and turned for them;
in NCHW, with images whose rows they cannot load."""

MATRIX_SHARE = 0.78
"""Share of the dense peak reached by GEMMs of 2 GFLOP and more in bf16, fp16 and TF32 (0.69 to
0.81)."""
MATRIX_STREAM_SHARE = 0.80
"""Share of the bandwidth reached by GEMMs whose traffic holds them up (0.72 to 0.85)."""
MATRIX_FIXED_NS = 3_000
"""Filling and draining the device: a GEMM of no size takes so long (TF32: 5 us)."""
CONVOLUTION_SHARE = 0.7
"""Share of the dense peak reached by convolutions of many channels, forward. This and what follows
of them is of 575 shapes forward and 585 backward in 16 bits, recorded in 50 runs: half lie within
15 % (forward) and 20 % of it, and as much so when the set of runs that they are of is left out."""
CONVOLUTION_BACKWARD_SHARE = 0.5
"""Backward, both gradients."""
CONVOLUTION_CHANNELS = 80
"""Channels in a group from which the tiles of the matrix units are full: fewer reach their part of
it."""
MIN_CONVOLUTION_CHANNELS = 4
"""Channels to which those of a picture are padded."""
CONVOLUTION_BACKWARD_STREAM_SHARE = 0.6
"""Share of the bandwidth reached by convolutions whose traffic holds them up, backward."""
ODD_STREAM_SHARE = 0.15
"""The same of pointwise ones over NCHW whose images are no multiple of 16 bytes."""
CONVOLUTION_FIXED_NS, CONVOLUTION_BACKWARD_FIXED_NS = 5_000, 14_000
"""Backward it is several kernels."""
TURN_SHARE = 0.44
"""Share of the bandwidth reached by the kernels that turn NCHW into NHWC and back."""
TF32_TURN_SHARE = 0.64
"""The same over fp32 tensors (12 shapes of 3 x 3, 1 x 7 and 5 x 5: 0.55 to 0.7)."""
TURN_FIXED_NS, TURN_BACKWARD_FIXED_NS = 5_000, 11_000
"""Nanoseconds that those kernels take beside their traffic: what goes in, what comes out, and the
weight (14 shapes in bf16)."""
TF32_CONVOLUTION_FACTOR, TF32_CONVOLUTION_BACKWARD_FACTOR = 1.2, 1.4
"""Slowdowns of convolutions in TF32 from its own peak: as of its products, the matrix units take a
tensor along what is summed over alone, which are the channels going forward and the images going
back (16 shapes, the images in NHWC: 1.0 to 1.35 and 1.1 to 1.8)."""
MISALIGNED_FACTOR, BATCHED_MISALIGNED_FACTOR = 4.0, 2.0
"""Slower when a row is no multiple of 16 bytes, which the copy engines of the fast kernels need (54
shapes of 10 us and more: 3.2 to 5 with one weight, 1.5 to 3.3 with one each)."""
TF32_ACROSS_FACTOR = (1.15, 1.45, 2.0)
"""Slowdowns of TF32 products, by how many of their two matrices do not lie along the dimension that
is summed over: the matrix units take them so alone (33 shapes: 1.0 to 1.25, 1.15 to 1.75, 1.8 to
2.4). In 16 bits they take both."""
TF32_GROUPED_BACKWARD_FACTOR = 2.2
"""More of grouped ones, backward (four of 4 to 32 channels in a group: 1.0 to 5.5)."""
RECURRENT_SHARE = {"tf32": 0.16, "bf16": 0.31, "fp16": 0.31}
"""Shares of the dense peak reached by the products of a recurrent layer, a batch high (five LSTMs
and GRUs of 512 to 1536, batches of 64 and 128, both passes: 0.15 to 0.19 and 0.27 to 0.32)."""
STREAM_SHARE = 0.88
"""Share of the bandwidth reached by pointwise kernels over large tensors (0.87 to 0.95)."""
STREAM_FIXED_NS = 3_000
VECTOR_SHARE = 0.52
"""Share of the fp32 peak reached by fused attention over fp32 tensors (0.50 at head size 64, 0.69
at 128). PyTorch's kernels for them split each product in three to keep fp32's precision, whether or
not TF32 is allowed: slower than spelled-out TF32 products."""
ATTENTION_SHARE = 0.9
"""Ratio of the time that products and exponentials need one after the other to the time that fused
attention takes."""
ATTENTION_FIXED_NS = 5_000
ATTENTION_BACKWARD = 3.0
"""Times the forward pass: 2.5 times the products, with less overlap (2.7 to 3.5)."""
ATTENTION_TILE = 128
"""Sequences are worked on in blocks of so many."""
SHORTEST_NS = 1_850
"""The shortest kernel of the device on which the fixed times were measured; they grow with it."""
EXP_PER_FP32_FLOP = 1 / 16
"""An SM does 16 exponentials a cycle and 128 fused multiply-adds: one for 16 FLOPs of the fp32 peak
(CUDA programming guide)."""


def half_precision(roofs: DevicePeaks) -> str | None:
    """The 16-bit type that the device multiplies matrices in."""
    return next((name for name in ("bf16", "fp16") if name in roofs.spec.peak_flops), None)


def matrix_ns(
    roofs: DevicePeaks,
    flops: float,
    size: float,
    precision: str,
    *,
    num_across: int = 0,
    slowdown: float = 1.0,
) -> float:
    """A GEMM of so many FLOPs and bytes moved; NaN when the peak is not known. `num_across` of its
    matrices do not lie along the dimension that is summed over."""
    arithmetic = roofs.arithmetic_ns(flops, precision, matrix=True) / roofs.matrix_share(
        precision, MATRIX_SHARE
    )
    if precision == "tf32":
        arithmetic *= TF32_ACROSS_FACTOR[num_across]
    traffic = _matrix_traffic_ns(roofs, size, MATRIX_STREAM_SHARE)
    if math.isnan(arithmetic):
        return math.nan
    return fixed_ns(roofs, MATRIX_FIXED_NS) + max(arithmetic, traffic) * slowdown


def convolution_ns(
    roofs: DevicePeaks,
    flops: float,
    size: float,
    precision: str,
    *,
    backward: bool,
    channels: int,
    layout: Layout = "nhwc",
    grouped: bool = False,
) -> float:
    """A convolution whose groups have so many channels, in and out at least."""
    share = CONVOLUTION_BACKWARD_SHARE if backward else CONVOLUTION_SHARE
    share *= min(max(channels, MIN_CONVOLUTION_CHANNELS) / CONVOLUTION_CHANNELS, 1.0)
    # Convolutions are not calibrated: they are taken to be as far below products as they usually
    # are.
    share *= roofs.matrix_share(precision, MATRIX_SHARE) / MATRIX_SHARE
    arithmetic = roofs.arithmetic_ns(flops, precision, matrix=True) / share
    turn_share = TURN_SHARE
    if precision == "tf32":
        arithmetic *= TF32_CONVOLUTION_BACKWARD_FACTOR if backward else TF32_CONVOLUTION_FACTOR
        turn_share = TF32_TURN_SHARE
    stream_share = CONVOLUTION_BACKWARD_STREAM_SHARE if backward else MATRIX_STREAM_SHARE
    if layout == "odd":
        stream_share = ODD_STREAM_SHARE
    traffic = _matrix_traffic_ns(roofs, size, stream_share)
    turning = 0.0
    if layout == "turned":
        turns = TURN_BACKWARD_FIXED_NS if backward else TURN_FIXED_NS
        turning = fixed_ns(roofs, turns) + _matrix_traffic_ns(roofs, 2 * size, turn_share)
    if math.isnan(arithmetic):
        return math.nan
    fixed = CONVOLUTION_BACKWARD_FIXED_NS if backward else CONVOLUTION_FIXED_NS
    slowdown = TF32_GROUPED_BACKWARD_FACTOR if grouped and backward and precision == "tf32" else 1.0
    return fixed_ns(roofs, fixed) + max(arithmetic, traffic) * slowdown + turning


def recurrent_ns(roofs: DevicePeaks, flops: float, precision: str, num_kernels: int) -> float:
    """The products of a recurrent layer, a kernel for each of its steps; NaN when not known."""
    share = RECURRENT_SHARE.get(precision, math.nan)
    arithmetic = roofs.arithmetic_ns(flops, precision, matrix=True) / share
    return num_kernels * fixed_ns(roofs, MATRIX_FIXED_NS) + arithmetic


def stream_ns(roofs: DevicePeaks, size: float) -> float:
    """A kernel that does little but move so many bytes."""
    return fixed_ns(roofs, STREAM_FIXED_NS) + roofs.traffic_ns(size) / roofs.stream_share(
        STREAM_SHARE
    )


def fixed_ns(roofs: DevicePeaks, usual: float) -> float:
    """A kernel's time whatever its size: longer than usual where the shortest kernel is."""
    shortest = roofs.shortest_ns()
    return usual if shortest is None else usual * shortest / SHORTEST_NS


def _matrix_traffic_ns(roofs: DevicePeaks, size: float, usual_share: float) -> float:
    if math.isnan(size):
        return 0.0
    share = usual_share * (roofs.stream_share(STREAM_SHARE) / STREAM_SHARE)
    return roofs.traffic_ns(size) / share


def attention_ns(
    roofs: DevicePeaks,
    *,
    batch: int,
    queries: int,
    keys: int,
    dim: int,
    precision: str,
    causal: bool,
) -> float:
    """Fused attention, forward; NaN when not known. Where it was measured, as much slower as it was
    there."""
    usual = _usual_attention_ns(
        roofs, batch=batch, queries=queries, keys=keys, dim=dim, precision=precision, causal=causal
    )
    return usual * _measured_attention(
        roofs, precision, queries, dim, causal=causal and queries == keys
    )


def _measured_attention(
    roofs: DevicePeaks, precision: str, length: int, dim: int, *, causal: bool
) -> float:
    """Measured over usual time at the nearest head size and length.

    What was measured is causal, and at short lengths loses more to half-empty blocks than is usual.
    Without a mask there are none: then the longest length counts, where they hardly matter.
    """
    points = [] if roofs.measured is None else roofs.measured.attention
    alike = ("fp32", "tf32") if precision in ("fp32", "tf32") else ("bf16", "fp16")
    points = [
        point
        for point in points
        if point.direction == "forward" and point.precision in alike and precision in alike
    ]
    if not points:
        return 1.0
    near = min(abs(math.log(point.head_dim / dim)) for point in points)
    points = [point for point in points if abs(math.log(point.head_dim / dim)) == near]
    point = min(
        points, key=lambda point: abs(math.log(point.length / length)) if causal else -point.length
    )
    usual = _usual_attention_ns(
        roofs,
        batch=point.batch * point.heads,
        queries=point.length,
        keys=point.length,
        dim=point.head_dim,
        precision=point.precision,
        causal=True,
    )
    return point.time.seconds * 1e9 / usual if usual > 0 else 1.0


def _usual_attention_ns(
    roofs: DevicePeaks,
    *,
    batch: int,
    queries: int,
    keys: int,
    dim: int,
    precision: str,
    causal: bool,
) -> float:
    """Products on the matrix units, then exponentials, in whole blocks."""
    blocks = math.ceil(queries / ATTENTION_TILE) * math.ceil(keys / ATTENTION_TILE)
    scores = float(batch) * blocks * ATTENTION_TILE**2
    if causal and queries == keys:
        across = math.ceil(queries / ATTENTION_TILE)
        scores *= (across + 1) / (2 * across)
    vector = roofs.peak_flops("fp32", matrix=False)
    flops = 4.0 * scores * dim
    if vector is None:
        return math.nan
    if precision in ("fp32", "tf32", "fp64"):
        return ATTENTION_FIXED_NS + flops / (vector * VECTOR_SHARE) * 1e9
    products = roofs.arithmetic_ns(flops, precision, matrix=True)
    return (
        ATTENTION_FIXED_NS
        + (products + scores / (vector * EXP_PER_FP32_FLOP) * 1e9) / ATTENTION_SHARE
    )
