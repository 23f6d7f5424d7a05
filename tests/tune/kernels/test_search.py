"""A hundred and twenty of ten thousand configurations: chosen by what was timed, none twice, and
far better than by chance."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from stepscope.core.experiments.trials import Value
from stepscope.errors import UsageError
from stepscope.tune.kernels.checking import CheckResult, SampleResult
from stepscope.tune.kernels.search import KernelSearch, axes_of
from stepscope.tune.kernels.space import Settings, parse_configs, product
from stepscope.tune.kernels.tuner import MAX_RACED, Plan, SweepPolicy, tune_kernel
from stepscope.tune.kernels.worker import Described
from stepscope.tune.shapes.kernel_tuning import RIGHT, Case, Error
from tests.installed import needs
from tests.kernels.running import Scripted, case
from tests.wording import any_mentions

pytestmark = [needs("optuna"), needs("scipy")]
AXES = {name: tuple(range(10)) for name in "abcd"}
BEST = {"a": 7, "b": 2, "c": 5, "d": 9}
CONFIGS = product(AXES)


def time_of(settings: Mapping[str, Value]) -> float:
    """The farther from the best, the longer; every tenth value of a is wrong."""
    return 100.0 + sum((int(settings[name]) - BEST[name]) ** 2 for name in BEST)


class Made(Scripted):
    """A kernel whose time is by its settings, and wrong where a is 0."""

    def __init__(self) -> None:
        super().__init__({})
        self.tried: list[Settings] = []

    def check(
        self, settings: Mapping[str, Value], case: Case, allowed: Error, limit_s: float
    ) -> CheckResult:
        self.tried.append(settings)
        result = super().check({"k": "x"}, case, allowed, limit_s)
        return CheckResult(why="it failed") if settings.get("a") == 0 else result

    def sample(
        self, settings: Mapping[str, Value] | None, case: Case, inner: int, limit_s: float
    ) -> SampleResult:
        return SampleResult(ns=time_of(settings) if settings else 300.0)


def test_a_search_comes_near_the_best_of_ten_thousand() -> None:
    bench = Made()
    described = Described(
        name="m:f", is_module=False, reference="m:plain", has_reference=True,
        needs_settings=("a",), shapes=None, edges=None, configs=None, autotuned=(),
        default_options=(), device="a device", kind="cpu", cache_bytes=10, spec=None,
        versions={"torch": "2"}, is_interpreted=False, allows_tf32=False,
    )  # fmt: skip
    plan = Plan(
        described=described,
        cases=(case((4, 4)),),
        configs=CONFIGS,
        has_baseline=False,
        by="call",
        cold=False,
        gradients=False,
        roofs=None,
    )
    tuning = tune_kernel(bench, plan, SweepPolicy(trials=120), lambda: 0.0)
    assert len(tuning.tryings) == 120
    assert len({str(settings) for settings in bench.tried}) == 120, "none is tried twice"
    (result,) = tuning.cases
    assert result.winner is not None
    by_chance = random.Random(1).sample(CONFIGS, 120)
    winner = time_of(tuning.tryings[result.winner].settings)
    assert winner <= min(map(time_of, by_chance))
    assert sorted(map(time_of, CONFIGS)).index(winner) < len(CONFIGS) / 100
    assert sum(timing is not None for timing in result.times) <= MAX_RACED + 1
    wrong = [trying for trying in tuning.tryings if trying.outcome != RIGHT]
    assert all(trying.settings["a"] == 0 for trying in wrong)
    assert len(wrong) < 20, "wrong ones are told as slow, and their like is left"
    assert any_mentions(tuning.notes, "10,000", "120 were tried", "--trials")


def test_all_that_is_left_is_asked_for_in_the_end() -> None:
    configs = product({"a": (1, 2, 3), "mode": ("x", "y")})
    search = KernelSearch(configs, 10)
    asked = []
    while (settings := search.ask()) is not None:
        asked.append(settings)
        search.tell(settings, None if len(asked) == 1 else 5.0)
    assert sorted(map(str, asked)) == sorted(map(str, configs))


def test_numbers_are_in_order_and_words_as_they_come() -> None:
    configs = product({"b": (64, 16, 32), "mode": ("y", "x"), "on": (True, False)})
    assert axes_of(configs) == {"b": (16, 32, 64), "mode": ("y", "x"), "on": (True, False)}


def test_a_range_is_its_values() -> None:
    assert parse_configs(["A=0..9", "BLOCK=64..256:step=64"]) == {
        "A": tuple(range(10)),
        "BLOCK": (64, 128, 192, 256),
    }
    with pytest.raises(UsageError, match="step"):
        parse_configs(["A=0.1..0.9"])


def test_more_than_can_be_chosen_from_are_refused() -> None:
    with pytest.raises(UsageError, match="more than"):
        product({name: range(20) for name in "abcd"})
