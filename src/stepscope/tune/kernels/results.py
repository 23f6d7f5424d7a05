"""What the bench answers: of the reference, of a check, of a sample."""

from __future__ import annotations

from msgspec import Struct

from stepscope.tune.kernels.call import CallResult
from stepscope.tune.shapes.kernel_tuning import Error


class ReferenceResult(Struct, frozen=True, kw_only=True):
    """What the reference is in one case."""

    problem: str | None
    """Why the reference cannot be had there."""
    error: Error | None = None
    """Of the reference in the case's precision against the more precise one;
    one rounding at least."""
    truth: str = ""
    """The precision of the truth."""
    is_differentiable: bool = False
    bytes_moved: int = 0
    flops: float | None = None


class CheckResult(Struct, frozen=True, kw_only=True):
    """One configuration in one case."""

    why: str | None
    """What was raised, if anything."""
    is_broken: bool = False
    """Whether the device was left unusable: this process must end."""
    output: str = ""
    error: float | None = None
    allowed: float | None = None
    measure: str = ""
    is_right: bool = False
    num_checks: int = 0
    has_gradients: bool = False


class SampleResult(Struct, frozen=True, kw_only=True):
    ns: float | None
    why: str | None = None
    is_broken: bool = False


class ReferenceOutputs(Struct, frozen=True, kw_only=True):
    """What the reference computes in one case: in its precision, and more precisely."""

    same: CallResult
    truth: CallResult
    size_bytes: int
