from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import pytest
from msgspec.structs import replace

from stepscope.core.experiments.experiment import (
    BASELINE,
    CANDIDATE,
    NO_GAIN,
    PROVEN,
    REFUSED,
    UNSETTLED,
    WORSE,
    Interval,
    Prediction,
    Side,
    SoFar,
    Verified,
)
from stepscope.core.experiments.trials import Change, Setup, Trial
from stepscope.errors import UsageError
from stepscope.experiments.bootstrap import student
from stepscope.experiments.verify.experiment import hold, verify
from stepscope.experiments.verify.schedule import (
    VerifyPolicy,
    looks,
    order,
    paired_interval,
    share_of_errors,
    steps_before,
    verdict_of,
)
from tests.wording import any_mentions, mentions

SETUP = Setup(
    world_size=1,
    batch_size=16,
    num_batches=1.0,
    seed=0,
    data="d",
    num_parameters=10,
    versions={"torch": "2"},
)


def trial(step_ns: Sequence[float], **more: object) -> Trial:
    whole = Trial(
        folder="f",
        change=Change(),
        exit_code=0,
        step_ns=tuple(round(ns) for ns in step_ns),
        wall_s=10.0,
        is_cut=True,
        setup=SETUP,
    )
    return replace(whole, **more)


def test_what_was_measured_is_told_where_no_more_runs_can_be_started() -> None:
    lab = Lab(1, 1.0)

    def measure(side: Side) -> Trial:
        if len(lab.sides) == 10:
            raise UsageError("the trial could not be started: no space left on device")
        return lab.measure(side)

    verified = verify(
        measure,
        VerifyPolicy(max_rounds=4, num_rehearsals=0, precision=1e-9, threshold=1e-9),
        clock=lab.clock,
    )
    assert verified.verdict == UNSETTLED
    assert mentions(verified.because, "could not be started", "no space left on device")
    assert verified.speedup is not None
    assert len(verified.runs) == 10
    with pytest.raises(UsageError):
        verify(_cannot, SHORT)


@pytest.mark.parametrize(
    ("given", "step_s", "wanted"),
    [
        (None, None, 10),
        (None, 0.05, 10),
        (None, 0.3, 7),
        (None, 5.0, 5),
        (20, 5.0, 20),
        (1, 0.1, 5),
    ],
)
def test_fewer_long_steps_come_before_those_that_are_timed(
    given: int | None, step_s: float | None, wanted: int
) -> None:
    assert steps_before(given, step_s) == wanted


@pytest.mark.parametrize(
    ("baseline_ms", "irregular_step_ns", "least", "most"),
    [(900, 0.0, 9, 12), (140, 0.0, 9, 40), (102, 0.0, 400, 10_000_000), (900, 1e6, None, None)],
)
def test_rehearsals_say_how_few_steps_show_a_gain(
    baseline_ms: float, irregular_step_ns: float, least: int | None, most: int | None
) -> None:
    """Before the first run that counts; not where some steps save or evaluate."""
    generator = np.random.default_rng(1)
    sides: list[Side] = []
    told: list[tuple[int, int]] = []

    def measure(side: Side) -> Trial:
        sides.append(side)
        middle = (baseline_ms if side == BASELINE else 100) * 1e6
        return trial(
            (middle * generator.normal(1, 0.05, 50)).tolist(), irregular_step_ns=irregular_step_ns
        )

    policy = VerifyPolicy(max_rounds=2)
    verify(measure, policy, shorten=lambda num: told.append((num, len(sides))))
    if least is None or most is None:
        assert told == []
        return
    ((num_steps, num_runs),) = told
    assert least <= num_steps <= most
    assert num_runs == 2 * policy.num_rehearsals


def _cannot(_side: Side) -> Trial:
    raise UsageError("not a command")


SHORT = VerifyPolicy(max_rounds=4, num_rehearsals=0)
Machine = Callable[[np.random.Generator, int], float]


def quiet(generator: np.random.Generator, run: int) -> float:
    return float(generator.normal(0, 0.02))


def heavy(generator: np.random.Generator, run: int) -> float:
    return 0.015 * float(generator.standard_t(2.2))


def bimodal(generator: np.random.Generator, run: int) -> float:
    """Placement: four runs in ten are slower."""
    return float(generator.normal(0, 0.01)) + (0.05 if generator.random() < 0.4 else 0.0)


def warming(generator: np.random.Generator, run: int) -> float:
    return float(generator.normal(0, 0.02)) + 0.004 * run


def swinging(generator: np.random.Generator, run: int) -> float:
    return float(generator.normal(0, 0.015)) + 0.04 * math.sin(run / 2.3)


class Lab:
    """A made-up machine on which the baseline takes `gain` times as long: runs differ, steps within
    one hang together."""

    def __init__(
        self, seed: int, gain: float, machine: Machine = quiet, num_steps: int = 12
    ) -> None:
        self.generator, self.gain, self.machine, self.num_steps = (
            np.random.default_rng(seed),
            gain,
            machine,
            num_steps,
        )
        self.sides: list[Side] = []
        self.now_s = 0.0

    def measure(self, side: Side) -> Trial:
        level = self.machine(self.generator, len(self.sides)) + (
            math.log(self.gain) if side == BASELINE else 0.0
        )
        self.sides.append(side)
        self.now_s += 10
        noise, steps = 0.0, []
        for shock in self.generator.normal(0, 0.02, self.num_steps):
            noise = 0.5 * noise + float(shock)
            steps.append(1e7 * math.exp(level + noise))
        return trial(steps)

    def clock(self) -> float:
        return self.now_s


@lru_cache
def outcomes(num: int, gain: float, machine: Machine, policy: VerifyPolicy) -> tuple[Verified, ...]:
    return tuple(verify(Lab(seed, gain, machine).measure, policy) for seed in range(num))


def test_rounds_are_abba_then_turned_round() -> None:
    letters = [
        "".join("A" if side == BASELINE else "B" for side in order(number)) for number in range(4)
    ]
    assert letters == ["ABBA", "BAAB", "BAAB", "ABBA"]
    drift = [i**2 for i in range(16)]
    totals = dict.fromkeys("AB", 0)
    for value, letter in zip(drift, "".join(letters), strict=True):
        totals[letter] += value
    assert totals["A"] == totals["B"], "a drift in a curve weighs on both sides alike"


def test_the_errors_of_all_looks_sum_to_what_is_allowed() -> None:
    policy = VerifyPolicy(max_rounds=10, level=0.95)
    assert looks(policy) == (2, 3, 4, 6, 9, 10)
    assert sum(
        share_of_errors(policy, at, is_last=at == 10) or 0 for at in range(1, 11)
    ) == pytest.approx(0.05)
    early = sum(share_of_errors(policy, at) or 0 for at in (2, 3)) + (
        share_of_errors(policy, 5, is_last=True) or 0
    )
    assert early == pytest.approx(0.05 - 0.05 / 6), (
        "the look at 4 was passed without being the last"
    )
    assert looks(VerifyPolicy(max_rounds=2)) == (2,)


def test_the_paired_interval_is_students() -> None:
    pairs = [0.10, 0.12, 0.08, 0.11]
    interval = paired_interval(pairs, 0.05, 0.95)
    half = 3.182446 * np.std(pairs, ddof=1) / 2
    assert math.log(interval.highest) - math.log(interval.value) == pytest.approx(half, rel=1e-5)
    assert math.log(interval.value) == pytest.approx(0.1025)
    wider = paired_interval(pairs, 0.05, 0.95, least_variance=0.01)
    assert math.log(wider.highest / wider.lowest) == pytest.approx(2 * student(0.95, 3) * 0.1 / 2)
    assert not paired_interval([0.1], 0.05, 0.95).is_bounded


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (1.10, 1.02, 1.19, PROVEN),
        (1.005, 1.001, 1.009, NO_GAIN),
        (1.10, 0.99, 1.22, None),
        (1.00, 0.985, 1.015, NO_GAIN),
        (0.90, 0.85, 0.95, WORSE),
        (0.995, 0.992, 0.998, NO_GAIN),
        (1.0, 0.9, 1.1, None),
    ],
)
def test_what_an_interval_settles(
    value: float, low: float, high: float, verdict: str | None
) -> None:
    assert verdict_of(Interval(value=value, low=low, high=high), VerifyPolicy()) == verdict


@pytest.mark.parametrize("machine", [quiet, heavy, bimodal, warming, swinging])
def test_nothing_is_proven_of_two_sides_that_are_the_same(machine: Machine) -> None:
    """80 experiments on each of five machines, stopped as they like: at most one in twenty may
    claim a difference."""
    results = outcomes(80, 1.0, machine, SHORT)
    verdicts = Counter(result.verdict for result in results)
    assert verdicts[PROVEN] + verdicts[WORSE] <= 6, (
        "4 expected at most; 7 or more come by chance once in ten such tests of 5 %"
    )
    covered = sum(
        result.speedup is not None and result.speedup.lowest <= 1 <= result.speedup.highest
        for result in results
    )
    assert covered >= 74


def test_over_all_machines_false_gains_are_rarer_than_one_in_twenty() -> None:
    results = [
        result
        for m in (quiet, heavy, bimodal, warming, swinging)
        for result in outcomes(80, 1.0, m, SHORT)
    ]
    assert sum(result.verdict in (PROVEN, WORSE) for result in results) / len(results) <= 0.05
    assert len({result.verdict for result in results}) > 1


@pytest.mark.parametrize(("gain", "least"), [(1.10, 28), (1.05, 20)])
def test_a_real_gain_is_proven_and_soon(gain: float, least: int) -> None:
    results = outcomes(30, gain, quiet, VerifyPolicy())
    assert sum(result.verdict == PROVEN for result in results) >= least
    assert np.mean([result.num_rounds for result in results]) <= (3.5 if gain == 1.10 else 6)


def test_a_loss_is_called_worse() -> None:
    results = outcomes(20, 1 / 1.15, quiet, VerifyPolicy())
    assert Counter(result.verdict for result in results)[WORSE] >= 18


def test_a_budget_ends_it_and_what_could_have_been_shown_is_said() -> None:
    lab = Lab(1, 1.0, bimodal)
    verified = verify(lab.measure, VerifyPolicy(budget_s=130), clock=lab.clock)
    assert verified.verdict == UNSETTLED
    assert verified.num_rounds == 2, "10 runs take 100 s, a third round would end at 140"
    assert verified.wall_s == 100
    assert verified.smallest is not None
    assert verified.smallest > 1.02
    assert "the budget ended" in verified.because


def so_far_of(verified: Verified) -> list[SoFar]:
    assert verified.so_far is not None
    sides = (verified.so_far.baseline, verified.so_far.candidate)
    return [side for side in sides if side is not None]


def test_a_budget_with_no_room_for_a_round_tells_what_was_measured() -> None:
    lab = Lab(1, 1.5)
    trials: list[Trial] = []

    def measure(side: Side) -> Trial:
        trials.append(lab.measure(side))
        return trials[-1]

    verified = verify(measure, VerifyPolicy(budget_s=55), clock=lab.clock)
    assert (verified.verdict, verified.speedup, verified.num_rounds) == (UNSETTLED, None, 0)
    assert [run.side for run in verified.runs] == [BASELINE, CANDIDATE], (
        "a round of 40 s does not fit in the 35 that are left"
    )
    assert mentions(verified.because, "first round", "4 runs", "10 s", "--budget", "--steps")
    assert mentions(verified.because, "nothing is proven")
    sides = so_far_of(verified)
    assert [(side.num_runs, side.num_steps) for side in sides] == [(1, 12), (1, 12)]
    assert sides[0].median_ms == np.median(trials[0].step_ns) / 1e6
    assert verify(lab.measure, VerifyPolicy(budget_s=70), clock=lab.clock).num_rounds == 1


@pytest.mark.parametrize(
    ("at", "said"),
    [(2, "it was interrupted, before"), (7, "it was interrupted after one round, before")],
)
def test_an_interruption_before_the_first_look_tells_what_was_measured(at: int, said: str) -> None:
    lab = Lab(1, 1.5)

    def measure(side: Side) -> Trial:
        if len(lab.sides) == at:
            raise KeyboardInterrupt
        return lab.measure(side)

    verified = verify(measure, VerifyPolicy(), clock=lab.clock)
    assert (verified.verdict, verified.speedup, verified.is_interrupted) == (UNSETTLED, None, True)
    assert verified.because.startswith(said)
    assert sum(side.num_runs for side in so_far_of(verified)) == at
    with pytest.raises(KeyboardInterrupt):
        verify(lambda _side: (_ for _ in ()).throw(KeyboardInterrupt), VerifyPolicy())


def test_a_run_that_the_budget_ended_is_no_failure_where_it_timed_steps() -> None:
    lab = Lab(1, 1.0)

    def measure(side: Side) -> Trial:
        made = lab.measure(side)
        lab.now_s += 50
        return replace(made, is_cut=False, exit_code=143, is_timed_out=True)

    verified = verify(measure, VerifyPolicy(budget_s=60), clock=lab.clock)
    assert verified.verdict == UNSETTLED
    assert mentions(verified.because, "budget ended", "the baseline")
    assert mentions(verified.because, "candidate nothing")
    assert verify(measure, VerifyPolicy(budget_s=6000), clock=lab.clock).verdict == REFUSED, (
        "that was --timeout"
    )


def test_rehearsals_come_first_and_do_not_count() -> None:
    slow = iter([9e9])
    lab = Lab(2, 1.3)

    def measure(side: Side) -> Trial:
        made = lab.measure(side)
        return (
            trial([next(slow, None) or ns for ns in made.step_ns]) if len(lab.sides) == 1 else made
        )

    verified = verify(measure, VerifyPolicy())
    assert verified.verdict == PROVEN
    assert verified.speedup is not None
    assert verified.speedup.lowest < 1.3 < verified.speedup.highest
    assert [run.round for run in verified.runs[:3]] == [None, None, 0]
    assert verified.baseline.num_runs == verified.num_rounds * 2


def test_a_failed_run_ends_it_with_its_last_words() -> None:
    broken = trial(
        [], exit_code=1, is_cut=False, tail="ValueError: no such thing", folder="runs/03"
    )
    verified = verify(lambda side: broken if side != BASELINE else trial([1e6] * 9), VerifyPolicy())
    assert verified.verdict == REFUSED
    assert verified.speedup is None
    assert mentions(verified.because, "candidate failed", "exit code 1")
    assert "runs/03" in verified.because
    assert verified.tail == "ValueError: no such thing"
    assert len(verified.runs) == 2


def test_a_run_without_steps_says_what_it_knows_of_that() -> None:
    note = "no process that uses torch let the capture in"
    verified = verify(lambda _: trial([], is_cut=False, notes=(note,), setup=Setup()), SHORT)
    assert verified.verdict == REFUSED
    assert verified.notes == (note,)
    hung = verify(
        lambda _: trial([], is_cut=False, is_timed_out=True, exit_code=143, setup=Setup()), SHORT
    )
    assert mentions(hung.because, "no step", "optimizer")
    # One that trains and is slow is another matter.
    slow = verify(lambda _: trial([], is_cut=False, is_timed_out=True, exit_code=143), SHORT)
    assert mentions(slow.because, "in time (10 s)")


def test_unequal_sides_are_refused_before_time_is_spent_unless_allowed() -> None:
    lab = Lab(0, 1.0)

    def measure(side: Side) -> Trial:
        made = lab.measure(side)
        return (
            made
            if side == BASELINE
            else replace(made, setup=replace(SETUP, batch_size=32, data="e"))
        )

    refused = verify(measure, VerifyPolicy())
    assert refused.verdict == REFUSED
    assert mentions(
        refused.refusals[0], "batch size", "16 for the baseline", "32 for the candidate"
    )
    assert len(refused.runs) == 2
    allowed = verify(measure, VerifyPolicy(allowed=frozenset({"batch-size"}), per_sample=True))
    assert allowed.verdict == PROVEN
    assert allowed.speedup is not None
    assert allowed.speedup.lowest < 2.0 < allowed.speedup.highest, (
        "twice the samples in the same time"
    )
    assert any("as allowed: 16" in note for note in allowed.notes)


def test_other_data_are_refused_once_the_baseline_has_repeated_itself() -> None:
    lab = Lab(0, 1.0)

    def measure(side: Side) -> Trial:
        made = lab.measure(side)
        return made if side == BASELINE else replace(made, setup=replace(SETUP, data="shuffled"))

    verified = verify(measure, VerifyPolicy())
    assert verified.verdict == REFUSED
    assert len(verified.runs) == 3
    assert "--allow data" in verified.because


def test_a_knob_that_never_took_hold_is_refused() -> None:
    change = Change(knobs={"num_workers": 4})
    verified = verify(
        lambda side: (
            trial([1e6] * 9)
            if side == BASELINE
            else trial([1e6] * 9, change=change, taken={"num_workers": 0})
        ),
        VerifyPolicy(),
    )
    assert len(verified.refusals) == 1
    assert mentions(verified.refusals[0], "num_workers", "no DataLoader")


def test_rare_long_steps_may_take_a_gain_back() -> None:
    lab = Lab(4, 1.2, num_steps=40)

    def measure(side: Side) -> Trial:
        made = lab.measure(side)
        return made if side == BASELINE else trial([*made.step_ns[:-1], 30 * made.step_ns[-1]])

    verified = verify(measure, VerifyPolicy())
    assert verified.verdict == UNSETTLED
    assert mentions(verified.because, "rare long steps")


def test_rare_long_steps_may_be_where_the_gain_lies() -> None:
    lab = Lab(4, 1.0, num_steps=60)

    def measure(side: Side) -> Trial:
        made = lab.measure(side)
        long = [20 * made.step_ns[0], 20 * made.step_ns[30]]
        return (
            made
            if side == CANDIDATE
            else trial([long[0], *made.step_ns[1:30], long[1], *made.step_ns[31:]])
        )

    verified = verify(measure, VerifyPolicy())
    assert verified.verdict == PROVEN
    assert mentions(verified.because, "rare long")
    assert verified.speedup is not None
    assert verified.speedup.value == pytest.approx((58 + 40) / 60, rel=0.1)


def test_a_gain_of_all_steps_is_not_laid_to_rare_ones_where_usual_steps_have_it_too() -> None:
    """Steps that grow longer all the time vary so much that their pace proves less than their
    mean."""
    runs: list[Side] = []

    def measure(side: Side) -> Trial:
        runs.append(side)
        level = 1e6 * (1 + 0.02 * (len(runs) % 3))
        return trial(
            [level * (8 + step if side == BASELINE else 12 + step / 2) for step in range(6, 26)]
        )

    verified = verify(measure, VerifyPolicy(max_rounds=2))
    assert (verified.verdict, verified.is_by_mean) == (PROVEN, True)
    assert mentions(verified.because, "every step", "above 1", "usual steps", "1.17x")
    assert "rare" not in verified.because


@pytest.mark.parametrize("saved", [BASELINE, CANDIDATE])
def test_steps_that_save_are_a_part_of_the_time(saved: Side) -> None:
    """A save a run that takes as long as half of its steps: the pace leaves it out, and a fix may
    lie in it alone."""
    lab = Lab(4, 1.0, num_steps=60)

    def measure(side: Side) -> Trial:
        return replace(lab.measure(side), irregular_step_ns=5e6 if side == saved else 0.0)

    verified = verify(measure, VerifyPolicy())
    if saved == BASELINE:
        assert verified.verdict == PROVEN
        assert verified.is_by_mean
        assert verified.speedup is not None
        assert verified.speedup.value == pytest.approx(1.5, rel=0.1)
        assert mentions(verified.because, "usual steps", "0.98x")
    else:
        assert verified.verdict not in (PROVEN, WORSE)
        assert any_mentions(verified.notes, "mean step times", "0.661")
    assert verified.baseline.mean_ms is not None
    assert verified.candidate.mean_ms is not None
    assert abs(verified.baseline.mean_ms - verified.candidate.mean_ms) == pytest.approx(5, rel=0.2)


def test_a_faster_pace_with_saves_that_take_it_back_is_no_gain() -> None:
    lab = Lab(4, 1.2, num_steps=40)

    def measure(side: Side) -> Trial:
        return replace(lab.measure(side), irregular_step_ns=3e6 if side == CANDIDATE else 0.0)

    verified = verify(measure, VerifyPolicy(max_rounds=3))
    assert verified.verdict == UNSETTLED
    assert mentions(verified.because, "gain back")


def test_no_gain_is_not_said_where_saves_leave_it_open() -> None:
    """Usual steps are the same; the saves of the baseline are longer on the whole, but differ much
    from run to run."""
    lab = Lab(4, 1.0, lambda *_: 0.0, num_steps=40)

    def measure(side: Side) -> Trial:
        made = lab.measure(side)
        is_second = lab.sides.count(side) % 2
        return replace(
            made, irregular_step_ns=6e6 * is_second if side == BASELINE else 2e6 * (1 - is_second)
        )

    verified = verify(measure, VerifyPolicy(max_rounds=4))
    assert verified.verdict == UNSETTLED
    assert mentions(verified.because, "not sure")


def test_a_gain_that_ends_with_the_stock_of_batches_is_none() -> None:
    """Two thirds of the candidate's steps come from a full buffer; then it is as slow as ever."""
    lab = Lab(4, 1.0, num_steps=60)

    def measure(side: Side) -> Trial:
        made = lab.measure(side)
        return (
            made
            if side == BASELINE
            else trial([*(ns // 8 for ns in made.step_ns[:40]), *made.step_ns[40:]])
        )

    verified = verify(measure, VerifyPolicy(max_rounds=4))
    assert verified.verdict == UNSETTLED
    assert "the last third" in verified.because


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (1.5, None, None, "held"),
        (2.0, None, None, "too high"),
        (1.1, None, None, "too low"),
        (2.0, 1.55, 2.2, "held"),
    ],
)
def test_a_prediction_is_held_against_what_it_gave(
    value: float, low: float | None, high: float | None, verdict: str
) -> None:
    prediction = Prediction(value=value, low=low, high=high, source="you")
    assert hold(prediction, Interval(value=1.5, low=1.4, high=1.6)).verdict == verdict
    assert hold(prediction, None).verdict == "open"
    # With an interval in which no gain at all lies, too, a predicted gain is neither here nor
    # there.
    assert hold(prediction, Interval(value=1.5, low=0.5, high=4.0)).verdict == "open"
    little = Prediction(value=1.01, low=0.99, high=1.03, source="you")
    assert hold(little, Interval(value=1.0, low=0.98, high=1.02)).verdict == "held"
