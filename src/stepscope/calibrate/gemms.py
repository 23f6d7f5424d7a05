"""Matrix products by precision and shape.

Values are drawn at random: a GPU multiplies zeros at less power and so at a higher clock. The
operands are changed from call to call, so that they come from memory where they would in a training
step, and not from the cache that the last call filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

from msgspec.structs import replace

from stepscope.calibrate.device import Device, first_line
from stepscope.calibrate.sweep import Heads, Shape, Sweep
from stepscope.core.calibrated import AttentionPoint, GemmPoint, product_bytes
from stepscope.core.timings import counted

PRECISIONS = {"cuda": ("fp32", "tf32", "fp16", "bf16", "fp8"), "cpu": ("fp32", "bf16")}
MAX_SETS = 64
LARGE = 16
"""A product is large with no less than this part of the largest one's work;
a middling one has no less than it again."""
CLASSES = 2
Note = Callable[[str], None]


def measure_gemms(device: Device, sweep: Sweep, note: Note) -> list[GemmPoint]:
    points: list[GemmPoint] = []
    for precision in PRECISIONS[device.kind]:
        with _arithmetic(device.torch, precision):
            points += _measure(device, sweep, precision, note)
    return points


def sustain_gemms(
    device: Device, sweep: Sweep, points: Sequence[GemmPoint], note: Note
) -> list[GemmPoint]:
    """The best large and the best middling product of each precision, repeated without pause."""
    sustained: list[GemmPoint] = []
    precisions = dict.fromkeys(point.precision for point in points)
    num, each = len(PRECISIONS[device.kind]), CLASSES * sweep.sustained_points
    for precision in counted("sustained products", precisions, num, each=each):
        mine = [point for point in points if point.precision == precision]
        with _arithmetic(device.torch, precision):
            for point in chosen(mine, sweep.sustained_s):
                call = _product(device, precision, (point.m, point.n, point.k))
                try:
                    time = device.timer.sustained(call, sweep.warm_s, sweep.sustained_s)
                except RuntimeError as problem:
                    note(
                        f"sustained products of {precision}: not possible here "
                        f"({first_line(problem)})"
                    )
                    break
                sustained.append(replace(point, time=time))
    return sustained


def chosen(points: Sequence[GemmPoint], longest_s: float) -> list[GemmPoint]:
    """The fastest large one and the fastest middling one, of those short enough to be repeated."""
    short = [point for point in points if 3 * point.time.seconds <= longest_s] or [
        min(points, key=lambda p: p.time.seconds)
    ]
    most = max(point.flops for point in short)
    classes = [
        [point for point in short if most / LARGE <= point.flops],
        [point for point in short if most / LARGE**2 <= point.flops < most / LARGE],
    ]
    return [
        max(members, key=lambda point: point.flops / point.time.seconds)
        for members in classes
        if members
    ]


def _measure(device: Device, sweep: Sweep, precision: str, note: Note) -> Iterator[GemmPoint]:
    best = 0.0
    left_out: list[str] = []
    for m, n, k in counted(f"products of {precision}", sweep.gemms, len(sweep.gemms)):
        work = 2.0 * m * n * k
        if best and work / best > sweep.longest_call_s:
            left_out.append(f"{m} x {n} x {k}")
            continue
        if product_bytes(precision, m, n, k) * 3 > device.free_bytes():
            left_out.append(f"{m} x {n} x {k} (memory)")
            continue
        try:
            time = device.timer.time(_product(device, precision, (m, n, k)), sweep.point_s)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError) as problem:
            note(f"products of {precision}: not supported here ({first_line(problem)})")
            return
        best = max(best, work / time.seconds)
        yield GemmPoint(precision=precision, m=m, n=n, k=k, time=time)
    if left_out:
        note(f"products of {precision} left out, too long for this machine: {', '.join(left_out)}")


def _product(device: Device, precision: str, shape: Shape) -> Callable[[], object]:
    """A call that multiplies the next of several pairs of matrices."""
    torch = device.torch
    room = device.free_bytes() // 4
    size = product_bytes(precision, *shape)
    num_sets = max(min(MAX_SETS, -(-2 * device.cache_bytes // size), room // size), 1)
    if precision == "fp8":
        return _fp8_product(device, shape, num_sets)
    m, n, k = shape
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    sets = cycle(
        [
            (
                torch.randn(m, k, device=device.torch_device, dtype=dtype),
                torch.randn(k, n, device=device.torch_device, dtype=dtype),
                torch.empty(m, n, device=device.torch_device, dtype=dtype),
            )
            for _ in range(num_sets)
        ]
    )

    def call() -> object:
        left, right, out = next(sets)
        return torch.mm(left, right, out=out)

    return call


def _fp8_product(device: Device, shape: Shape, num_sets: int) -> Callable[[], object]:
    """Both in e4m3, scaled as a whole, the right one column after column,
    which is the layout that the hardware takes."""
    torch = device.torch
    m, n, k = shape
    multiply = torch._scaled_mm  # noqa: SLF001 - the one way there is to multiply fp8
    scale = torch.ones((), device=device.torch_device, dtype=torch.float32)

    def matrix(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, device=device.torch_device, dtype=torch.bfloat16).to(
            torch.float8_e4m3fn
        )

    sets = cycle([(matrix(m, k), matrix(n, k).t()) for _ in range(num_sets)])

    def call() -> object:
        left, right = next(sets)
        return multiply(
            left, right, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return call


@contextmanager
def _arithmetic(torch: Any, precision: str) -> Iterator[None]:
    """Whether fp32 products may run as tf32; restored afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


DIRECTIONS = ("forward", "backward")


def measure_attention(
    device: Device, sweep: Sweep, note: Callable[[str], None]
) -> list[AttentionPoint]:
    """bf16 on a GPU, fp32 on a CPU."""
    points: list[AttentionPoint] = []
    precision = "bf16" if device.kind == "cuda" else "fp32"
    best = 0.0
    shapes = sorted(sweep.attention, key=_work)
    for shape in counted("attention", shapes, len(shapes), each=len(DIRECTIONS)):
        if best and 2 * _work(shape) / best > sweep.longest_call_s:
            note(
                f"attention of length {shape[2]} with heads of {shape[3]} left out, too long for "
                "this machine"
            )
            continue
        for direction in DIRECTIONS:
            try:
                time = device.timer.time(_call(device, direction, shape), sweep.point_s)
            except RuntimeError as problem:
                note(
                    f"attention {direction} of length {shape[2]} with heads of {shape[3]}: "
                    f"not supported here ({first_line(problem)})"
                )
                continue
            batch, heads, length, head_dim = shape
            point = AttentionPoint(
                precision=precision,
                direction=direction,
                batch=batch,
                heads=heads,
                length=length,
                head_dim=head_dim,
                time=time,
            )
            points.append(point)
            best = max(best, point.flops / time.seconds)
    return points


def _work(shape: Heads) -> float:
    batch, heads, length, head_dim = shape
    return 2.0 * batch * heads * length**2 * head_dim


def _call(device: Device, direction: str, shape: Heads) -> Callable[[], object]:
    torch = device.torch
    dtype = torch.bfloat16 if device.kind == "cuda" else torch.float32
    attend = torch.nn.functional.scaled_dot_product_attention

    def tensor(needs_grad: bool) -> Any:
        return torch.randn(
            *shape, device=device.torch_device, dtype=dtype, requires_grad=needs_grad
        )

    inputs = tuple(tensor(direction == "backward") for _ in range(3))
    if direction == "forward":
        return lambda: attend(*inputs, is_causal=True)
    out, change = attend(*inputs, is_causal=True), tensor(False)
    return lambda: torch.autograd.grad(out, inputs, change, retain_graph=True)
