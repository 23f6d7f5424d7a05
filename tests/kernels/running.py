"""The bench in this process, for tests: what a worker would answer, without one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from stepscope.core.experiments.trials import Value
from stepscope.tune.kernels.bench import KernelBench
from stepscope.tune.kernels.checking import CheckResult, ReferenceResult, SampleResult
from stepscope.tune.kernels.worker import Opening, open_bench
from stepscope.tune.shapes.kernel_tuning import Case, Error

FOLDER = Path(__file__).parent


def bench_of(
    function: str,
    *,
    reference: str | None = None,
    settings: tuple[str, ...] = (),
    gradients: bool | None = None,
) -> KernelBench:
    """A bench for one function of a module in this folder."""
    name, _, _ = function.partition(":")
    sys.modules.pop(name, None)
    opening = Opening(
        target=f"{FOLDER}/{function.replace(':', '.py:')}",
        reference=None if reference is None else f"{FOLDER}/{reference.replace(':', '.py:')}",
        settings=settings,
        device="cpu",
        gradients=gradients,
    )
    before = list(sys.path)
    try:
        return open_bench(opening)
    finally:
        sys.path[:] = before


def case(*shapes: tuple[int, ...], dtype: str = "float32", is_timed: bool = True) -> Case:
    return Case(shapes=shapes, dtype=dtype, is_timed=is_timed)


class Scripted:
    """A bench of made-up answers: times by configuration and call, and outcomes by
    configuration."""

    def __init__(
        self, times: Mapping[str, float], wrong: tuple[str, ...] = (), failing: tuple[str, ...] = ()
    ) -> None:
        self.times = dict(times)
        self.wrong, self.failing = wrong, failing
        self.log: list[str] = []
        self.checked: list[str] = []

    def warm_up(self) -> None:
        self.log.append("warm")

    def refer(self, case: Case) -> ReferenceResult:
        return ReferenceResult(
            problem=None,
            error=Error(worst=1e-7, rms=1e-7),
            truth="float64",
            bytes_moved=1000,
            flops=2000.0,
        )

    def begin(self, settings: Mapping[str, Value]) -> None:
        pass

    def check(
        self, settings: Mapping[str, Value], case: Case, allowed: Error, limit_s: float
    ) -> CheckResult:
        name = str(settings.get("k", "base"))
        self.checked.append(name)
        if name in self.failing:
            return CheckResult(why="RuntimeError: out of resource: shared memory")
        error = 0.5 if name in self.wrong else allowed.worst / 2
        is_right = error <= allowed.worst
        return CheckResult(
            why=None,
            output="output",
            error=error,
            allowed=allowed.worst,
            measure="worst element",
            is_right=is_right,
            num_checks=1,
        )

    def sample(
        self, settings: Mapping[str, Value] | None, case: Case, inner: int, limit_s: float
    ) -> SampleResult:
        name = "reference" if settings is None else str(settings.get("k", "base"))
        self.log.append(name)
        return SampleResult(ns=self.times[name] * self.drift(name))

    def drift(self, name: str) -> float:
        """By what this sample differs from the true time."""
        return 1.0
