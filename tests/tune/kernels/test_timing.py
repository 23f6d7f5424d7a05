"""Who wins, on made-up clocks: drift does not choose, luck is not a gain, and what fails drops
out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

import pytest

from stepscope.core.experiments.trials import Value
from stepscope.tune.kernels.checking import CheckResult, SampleResult
from stepscope.tune.kernels.timing import Race, RaceResult, paired_gain, timed
from stepscope.tune.kernels.tuner import Plan, SweepPolicy, tune_kernel
from stepscope.tune.kernels.worker import Described
from stepscope.tune.shapes.kernel_tuning import (
    FAILED,
    NOT_TRIED,
    RIGHT,
    WRONG,
    Case,
    Error,
    KernelTuning,
)
from tests.followed_loops import followed_loops
from tests.kernels.running import Scripted, case
from tests.wording import mentions


def raced(bench: Scripted, names: list[str], *, has_reference: bool = False) -> RaceResult:
    settings: dict[int, dict[str, Value]] = {
        at: {} if name == "base" else {"k": name} for at, name in enumerate(names)
    }
    race = Race(
        bench=bench,
        case=case((4, 4)),
        settings=dict(settings),
        baseline=0,
        has_reference=has_reference,
        sample_s=1e-3,
        limit_s=1.0,
        now=lambda: 0.0,
        deadline=10.0,
    )
    return race.run()


def test_the_fastest_wins_with_its_gain_over_the_baseline() -> None:
    race = raced(
        Scripted({"base": 200.0, "a": 150.0, "b": 100.0, "reference": 120.0}),
        ["base", "a", "b"],
        has_reference=True,
    )
    assert race.winner == 2
    assert race.gain is not None
    assert race.gain.value == pytest.approx(2.0)
    assert race.times[-1].ns == 120.0
    assert race.ties == ()


def test_no_sample_is_beyond_those_that_are_counted() -> None:
    """The longest race: more than the finalists, the baseline and the reference the slowest."""
    names = ["base", *(f"c{at}" for at in range(9))]
    times = {"base": 200.0, **{name: 100.0 + at for at, name in enumerate(names[1:])}}
    bench = Scripted({**times, "reference": 300.0})
    with followed_loops() as loops:
        raced(bench, names, has_reference=True)
    (loop,) = loops
    assert loop.done == [*range(1, loop.total + 1)]
    assert len(bench.log) == loop.total


class Drifting(Scripted):
    """A device that slows down all the while, by half in the end."""

    def drift(self, name: str) -> float:
        return 1 + len(self.log) / 200


def test_a_device_that_slows_down_does_not_choose_the_winner() -> None:
    names = [f"c{at}" for at in range(12)]
    times = {"base": 110.0, **{name: 110.0 - at for at, name in enumerate(names)}}
    for order in (["base", *names], ["base", *reversed(names)]):
        race = raced(Drifting(times), order)
        assert race.winner is not None
        assert order[race.winner] in ("c11", "c10")


class Noisy(Scripted):
    def __init__(self, times: dict[str, float], seed: int) -> None:
        super().__init__(times)
        self._random = random.Random(seed)

    def drift(self, name: str) -> float:
        return math.exp(self._random.gauss(0, 0.2))


def test_of_equal_configurations_the_baseline_stands() -> None:
    """Twenty alike: the luckiest is rarely named a gain. One interval in forty may be above 1 by
    chance."""
    names = ["base", *(f"c{at}" for at in range(19))]
    claims = sum(
        raced(Noisy(dict.fromkeys(names, 100.0), seed), names).gain is not None
        for seed in range(100)
    )
    assert claims <= 7


def test_a_real_gain_is_shown_through_the_same_noise() -> None:
    times = {"base": 200.0, "a": 200.0, "b": 100.0}
    assert all(raced(Noisy(times, seed), ["base", "a", "b"]).winner == 2 for seed in range(20))


class Breaking(Scripted):
    """One that fails after some samples."""

    def sample(self, settings, case, inner, limit_s):  # type: ignore[no-untyped-def]
        sample = super().sample(settings, case, inner, limit_s)
        return (
            SampleResult(ns=None, why="its process ended")
            if self.log.count("b") > 5 and settings == {"k": "b"}
            else sample
        )


def test_one_that_fails_while_it_is_timed_cannot_win() -> None:
    race = raced(Breaking({"base": 200.0, "a": 150.0, "b": 100.0}), ["base", "a", "b"])
    assert race.winner == 1
    assert race.failed == {2: "its process ended"}


def test_intervals_of_a_gain_are_order_statistics() -> None:
    """Of six pairs the least and the largest ratio are a 96.9 % interval; five have none."""
    ratios = [1.1, 1.3, 1.2, 1.6, 1.4, 1.5]
    interval = paired_gain([ratio * 10 for ratio in ratios], [10.0] * 6)
    assert (interval.low, interval.value, interval.high) == pytest.approx((1.1, 1.35, 1.6))
    assert paired_gain([11.0] * 5, [10.0] * 5).low == 0
    time = timed([float(ns) for ns in range(1, 12)])
    assert time is not None
    assert (time.low_ns, time.ns, time.high_ns) == (2.0, 6.0, 10.0)


def swept(
    bench: Scripted,
    names: list[str],
    *,
    now: Callable[[], float] | None = None,
    budget_s: float = 100.0,
) -> KernelTuning:
    described = Described(
        name="m:f", is_module=False, reference="m:plain", has_reference=True,
        needs_settings=(), shapes=None,
        edges=None, configs=None, autotuned=(), default_options=(), device="a device", kind="cpu",
        cache_bytes=10, spec=None,
        versions={"torch": "2"}, is_interpreted=False, allows_tf32=False,
    )  # fmt: skip
    plan = Plan(
        described=described,
        cases=(case((1, 1), is_timed=False), case((4, 4)), case((8, 8))),
        configs=tuple({} if name == "base" else {"k": name} for name in names),
        has_baseline=True,
        by="call",
        cold=False,
        gradients=False,
        roofs=None,
    )
    policy = SweepPolicy(budget_s=budget_s)
    return tune_kernel(bench, plan, policy, now or (lambda: 0.0))


def test_what_is_wrong_is_never_timed_and_never_wins() -> None:
    bench = Scripted(
        {"base": 200.0, "fast": 1.0, "good": 150.0, "broken": 1.0, "reference": 120.0},
        ("fast",),
        ("broken",),
    )
    tuning = swept(bench, ["base", "fast", "good", "broken"])
    assert [trying.outcome for trying in tuning.tryings] == [RIGHT, WRONG, RIGHT, FAILED]
    assert "fast" not in bench.log
    assert "broken" not in bench.log
    assert [result.winner for result in tuning.cases] == [2, 2]
    assert tuning.overall == 2
    wrong = tuning.tryings[1].worst
    assert wrong is not None
    assert (wrong.error, wrong.case.words) == (0.5, "1x1 float32")
    assert bench.checked.count("fast") == 3
    assert bench.checked.count("broken") == 1


def test_each_part_of_a_sweep_says_how_far_it_is() -> None:
    names = ["base", "a"]
    with followed_loops() as loops:
        swept(Scripted(dict.fromkeys([*names, "reference"], 5.0)), names)
    reference, check, *timed = [loop.what for loop in loops]
    assert mentions(reference, "reference")
    assert mentions(check, "to check")
    assert timed == ["timing 4x4 float32", "timing 8x8 float32"]
    assert loops[0].done == [1, 2, 3]
    assert loops[1].done == [1, 2]


def test_a_spent_budget_leaves_the_rest_untried_and_says_so() -> None:
    seconds = iter(range(100_000))
    names = ["base", "a", "b", "c"]
    bench = Scripted(dict.fromkeys([*names, "reference"], 5.0))
    tuning = swept(bench, names, now=lambda: float(next(seconds)), budget_s=14.0)
    outcomes = [trying.outcome for trying in tuning.tryings]
    assert outcomes[0] == RIGHT
    assert outcomes[-1] == NOT_TRIED
    assert any("not tried" in note for note in tuning.notes)
    assert tuning.cases[0].winner == 0


def test_a_sweep_in_which_all_are_wrong_has_no_winner() -> None:
    tuning = swept(
        Scripted({"base": 1.0, "a": 2.0, "reference": 3.0}, wrong=("base", "a")), ["base", "a"]
    )
    assert [result.winner for result in tuning.cases] == [None, None]
    assert tuning.overall is None


class Restarted(Scripted):
    """Its process takes longer to start than a configuration may take, and `broken` ends it."""

    def __init__(self) -> None:
        super().__init__({"base": 5.0, "good": 4.0, "reference": 5.0}, failing=("broken",))
        self.now_s, self.is_running = 0.0, False
        self.limits: dict[str, list[float]] = {}

    def begin(self, settings: Mapping[str, Value]) -> None:
        if not self.is_running:
            self.now_s += SweepPolicy().config_s + 1
        self.is_running = True

    def check(
        self, settings: Mapping[str, Value], case: Case, allowed: Error, limit_s: float
    ) -> CheckResult:
        self.begin(settings)
        result = super().check(settings, case, allowed, limit_s)
        self.limits.setdefault(self.checked[-1], []).append(limit_s)
        self.is_running = result.why is None
        return result


def test_the_start_of_a_process_is_in_no_configurations_time() -> None:
    bench = Restarted()
    tuning = swept(bench, ["base", "broken", "good"], now=lambda: bench.now_s, budget_s=1e6)
    assert [trying.outcome for trying in tuning.tryings] == [RIGHT, FAILED, RIGHT]
    assert bench.limits["good"] == [SweepPolicy().config_s] * 3
