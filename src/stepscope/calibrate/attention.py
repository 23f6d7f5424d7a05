"""Causal attention, forward and backward, at several lengths and head sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.calibrate.device import Device, first_line
from stepscope.calibrate.sweep import Heads, Sweep
from stepscope.core.calibrated import AttentionPoint
from stepscope.core.progress import counted

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
