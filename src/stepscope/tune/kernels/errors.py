"""How far an output is from the reference, and how far it may be.

The truth is the reference in float64. The reference in the case's own precision has an error
against it, and that error, or one rounding where it has less, times a factor is what a
configuration may have. Two measures: the worst element, each over its own size and the output's rms
together; and the rms of the difference over the rms of the output, which sees a fault that is small
everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from stepscope.tune.shapes.kernel_tuning import Error

FACTOR = 4.0
"""Two bits: another order of sums, and another exp or rsqrt, stay within; a wrong mask does not."""
UNIFORM = 3.0**-0.5
"""The rms of an error that is anywhere between plus and minus one, equally."""


class OutputCheck(Struct, frozen=True):
    """One output compared: numbers, or words for what has none."""

    name: str
    error: Error | None = None
    problem: str | None = None


def rounding(torch: Any, dtype: str) -> Error:
    """What one rounding to this precision does: at most half a unit in the last place."""
    unit = float(torch.finfo(getattr(torch, dtype)).eps) / 2
    return Error(worst=unit, rms=unit * UNIFORM)


def widest(errors: Sequence[Error]) -> Error:
    return Error(worst=max(error.worst for error in errors), rms=max(error.rms for error in errors))


def times(error: Error, factor: float) -> Error:
    return Error(worst=error.worst * factor, rms=error.rms * factor)


def compare(torch: Any, name: str, output: Any, same: Any, truth: Any) -> OutputCheck:
    """`same` is the reference's output in the same precision,
    `truth` the one that is more precise."""
    if not isinstance(output, torch.Tensor):
        return OutputCheck(name, problem=f"is {type(output).__name__}, not a tensor")
    if tuple(output.shape) != tuple(same.shape):
        problem = f"has the shape {_shape(output)}, the reference {_shape(same)}"
        return OutputCheck(name, problem=problem)
    if output.dtype != same.dtype:
        problem = f"is {_dtype(output)}, the reference {_dtype(same)}"
        return OutputCheck(name, problem=problem)
    if not output.is_floating_point():
        if num := int((output != same).sum()):
            problem = f"differs in {num} of {output.numel()} elements"
            return OutputCheck(name, problem=problem)
        return OutputCheck(name, error=Error(worst=0.0, rms=0.0))
    return _floats(torch, name, output.detach(), same.detach(), truth.detach())


def _floats(torch: Any, name: str, output: Any, same: Any, truth: Any) -> OutputCheck:
    finite = torch.isfinite(same)
    strange = ~finite & ~((output == same) | (output.isnan() & same.isnan()))
    lost = finite & ~torch.isfinite(output)
    num = int(strange.sum()) + int(lost.sum())
    if num:
        difference = "finite where the reference is not"
        if int(lost.sum()):
            difference = "NaN or infinite where the reference is not"
        problem = f"is {difference}, in {num} of {output.numel()} elements"
        return OutputCheck(name, problem=problem)
    good = finite & torch.isfinite(truth)
    exact = torch.where(good, truth, 0).double()
    off = (torch.where(good, output, 0).double() - exact).abs()
    count = int(good.sum())
    if not count:
        return OutputCheck(name, error=Error(worst=0.0, rms=0.0))
    scale = float((exact.square().sum() / count).sqrt())
    rms = float((off.square().sum() / count).sqrt())
    if scale == 0:
        # Where all should be zero there is no scale but one.
        return OutputCheck(name, error=Error(worst=float(off.max()), rms=rms))
    worst = float((off / (exact.abs() + scale)).max())
    return OutputCheck(name, error=Error(worst=worst, rms=rms / scale))


def judge(check: OutputCheck, allowed: Error) -> tuple[float | None, float | None, str]:
    """The measure that is farther over, or nearer to, what is allowed.

    Its error, its limit and its name.
    """
    if check.error is None:
        return None, None, check.problem or "cannot be compared"
    shares = (
        (check.error.worst, allowed.worst, "worst element"),
        (check.error.rms, allowed.rms, "rms"),
    )
    return max(shares, key=lambda share: share[0] / share[1])


def _shape(tensor: Any) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
