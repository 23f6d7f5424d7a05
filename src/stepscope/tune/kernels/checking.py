"""Whether a call computed what the reference computes: outputs, gradients, inputs left alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from stepscope.tune.kernels.call import CallResult
from stepscope.tune.kernels.errors import OutputCheck, compare, judge
from stepscope.tune.shapes.kernel_tuning import Error


class ReferenceResult(Struct, frozen=True, kw_only=True):
    """What the reference is in one case."""

    problem: str | None
    """Why the reference cannot be had there."""
    error: Error | None = None
    """Error of the reference in the case's precision against the more precise one; one rounding at
    least."""
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


def check_outputs(
    torch: Any,
    reference: ReferenceOutputs,
    called: CallResult,
    before: Mapping[str, Any],
    allowed: Error,
) -> CheckResult:
    """The worst of all checks; `before` are the inputs as they were."""
    checks = _outputs(torch, reference, called)
    if called.is_differentiable:
        checks += _gradients(torch, reference, called)
    checks += _inputs(torch, reference, called, before)
    if not checks:
        return CheckResult(
            why="nothing came back and no input changed: there is nothing to compare"
        )
    judged = [(check, judge(check, allowed)) for check in checks]
    worst, (error, limit, measure) = max(judged, key=lambda pair: _share(pair[1]))
    return CheckResult(
        why=None,
        output=worst.name,
        error=error,
        allowed=limit,
        measure=measure,
        is_right=_share((error, limit, measure)) <= 1,
        num_checks=len(checks),
        has_gradients=called.is_differentiable and bool(reference.same.gradients),
    )


def _outputs(torch: Any, reference: ReferenceOutputs, called: CallResult) -> list[OutputCheck]:
    same, truth = reference.same.outputs, reference.truth.outputs
    if set(called.outputs) != set(same):
        counts = f"{len(called.outputs)} tensors came back, {len(same)} from the reference"
        return [OutputCheck("output", error=None, problem=counts)]
    return [
        compare(torch, name, called.outputs[name], output, truth[name])
        for name, output in same.items()
    ]


def _gradients(torch: Any, reference: ReferenceOutputs, called: CallResult) -> list[OutputCheck]:
    checks = []
    for name, gradient in reference.same.gradients.items():
        if name in called.gradients:
            truth = reference.truth.gradients[name]
            checks.append(compare(torch, name, called.gradients[name], gradient, truth))
        else:
            checks.append(OutputCheck(name, error=None, problem="is missing"))
    return checks


def _inputs(
    torch: Any, reference: ReferenceOutputs, called: CallResult, before: Mapping[str, Any]
) -> list[OutputCheck]:
    """Inputs that were written to: by both, they are outputs; by one alone, that is a fault."""
    checks = []
    for name, original in before.items():
        mine, theirs = called.inputs.get(name), reference.same.inputs.get(name)
        if mine is None or theirs is None:
            continue
        if not _equal(theirs, original):
            truth = reference.truth.inputs[name]
            checks.append(compare(torch, f"{name}, afterwards", mine, theirs, truth))
        elif not _equal(mine, original):
            problem = "was written to; the reference leaves it as it is"
            checks.append(OutputCheck(name, error=None, problem=problem))
    return checks


def _share(judged: tuple[float | None, float | None, str]) -> float:
    error, allowed, _ = judged
    return math.inf if error is None or not allowed else error / allowed


def _equal(left: Any, right: Any) -> bool:
    return bool(((left == right) | ((left != left) & (right != right))).all())
