"""How far an output is from the reference, and how far it may be.

The truth is the reference in float64. The reference in the case's own precision has an error against it, and that error, or one
rounding where it has less, times a factor is what a configuration may have. Two measures: the worst element, each over its own
size and the output's rms together; and the rms of the difference over the rms of the output, which sees a fault that is small
everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.core.kernel_tuning import Error

FACTOR = 4.0
"""Two bits: another order of sums, and another exp or rsqrt, stay within; a wrong mask does not."""
UNIFORM = 3.0**-0.5
"""The rms of an error that is anywhere between plus and minus one, equally."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One output compared: numbers, or words for what has none."""

    name: str
    error: Error | None
    problem: str | None = None


def rounding(torch: Any, dtype: str) -> Error:
    """What one rounding to this precision does: at most half a unit in the last place."""
    unit = float(torch.finfo(getattr(torch, dtype)).eps) / 2
    return Error(worst=unit, rms=unit * UNIFORM)


def widest(errors: Sequence[Error]) -> Error:
    return Error(worst=max(error.worst for error in errors), rms=max(error.rms for error in errors))


def times(error: Error, factor: float) -> Error:
    return Error(worst=error.worst * factor, rms=error.rms * factor)


def compare(torch: Any, name: str, given: Any, same: Any, truth: Any) -> Found:
    """`same` is the reference's output in the same precision, `truth` the one that is more precise."""
    if not isinstance(given, torch.Tensor):
        return Found(name=name, error=None, problem=f"is {type(given).__name__}, not a tensor")
    if tuple(given.shape) != tuple(same.shape):
        return Found(name=name, error=None, problem=f"has the shape {_shape(given)}, the reference {_shape(same)}")
    if given.dtype != same.dtype:
        return Found(name=name, error=None, problem=f"is {_dtype(given)}, the reference {_dtype(same)}")
    if not given.is_floating_point():
        num = int((given != same).sum())
        problem = f"differs in {num} of {given.numel()} elements" if num else None
        return Found(name=name, error=None if num else Error(worst=0.0, rms=0.0), problem=problem)
    return _floats(torch, name, given.detach(), same.detach(), truth.detach())


def _floats(torch: Any, name: str, given: Any, same: Any, truth: Any) -> Found:
    finite = torch.isfinite(same)
    strange = ~finite & ~((given == same) | (given.isnan() & same.isnan()))
    lost = finite & ~torch.isfinite(given)
    num = int(strange.sum()) + int(lost.sum())
    if num:
        what = "NaN or infinite where the reference is not" if int(lost.sum()) else "finite where the reference is not"
        return Found(name=name, error=None, problem=f"is {what}, in {num} of {given.numel()} elements")
    good = finite & torch.isfinite(truth)
    exact = torch.where(good, truth, 0).double()
    off = (torch.where(good, given, 0).double() - exact).abs()
    count = int(good.sum())
    if not count:
        return Found(name=name, error=Error(worst=0.0, rms=0.0))
    scale = float((exact.square().sum() / count).sqrt())
    if scale == 0:
        # Where all should be zero there is no scale but one.
        return Found(name=name, error=Error(worst=float(off.max()), rms=float((off.square().sum() / count).sqrt())))
    worst = float((off / (exact.abs() + scale)).max())
    return Found(name=name, error=Error(worst=worst, rms=float((off.square().sum() / count).sqrt()) / scale))


def judge(found: Found, allowed: Error) -> tuple[float | None, float | None, str]:
    """The measure that is farther over, or nearer to, what is allowed: its error, its limit and its name."""
    if found.error is None:
        return None, None, found.problem or "cannot be compared"
    shares = (
        (found.error.worst, allowed.worst, "worst element"),
        (found.error.rms, allowed.rms, "rms"),
    )
    return max(shares, key=lambda share: share[0] / share[1])


def _shape(tensor: Any) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
