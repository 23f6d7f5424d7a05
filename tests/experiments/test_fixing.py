"""The loop over findings, with looks and proofs made up: what is kept, what is reverted, and in
which order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from stepscope.core.diagnosis import Finding
from stepscope.core.experiments.experiment import (
    NO_GAIN,
    PROVEN,
    UNSETTLED,
    WORSE,
    Gap,
    Interval,
    NumericsCheck,
    Prediction,
    SideSummary,
    Verified,
)
from stepscope.core.experiments.fixed import BY_HAND, KEPT, NOT_TRIED, REVERTED, Fixed
from stepscope.core.experiments.trials import Change
from stepscope.core.run import LoaderKnobs
from stepscope.experiments.fixing import FixPolicy, fix, propose, settings_for
from stepscope.experiments.verify.numerics_check import DIFFERS, IDENTICAL
from stepscope.report.fix.view import head_words
from tests.wording import mentions


def finding(
    code: str, gain: float = 1.5, action: str = "do it", *, changes_numerics: bool = False
) -> Finding:
    return Finding(
        code=code,
        bound="host",
        summary=f"{code} is there.",
        action=action,
        evidence=(),
        ranks=(0,),
        predicted_speedup=gain,
        predicted_low=gain,
        predicted_high=gain,
        predicted_step_ms=1.0,
        changes_numerics=changes_numerics,
    )


def proof(verdict: str, value: float = 1.0, numerics: str | None = None) -> Verified:
    side = SideSummary(num_runs=4, ms=1.0, run_spread=0.01, mean_ms=1.0)
    gap = Gap(num=3, largest=0.5, at_step=1, first_step=1)
    check = None
    if numerics is not None:
        check = NumericsCheck(
            verdict=numerics,
            because="losses part",
            tolerance=1e-4,
            loss=gap,
            grad_norm=gap,
            parameter_norm=gap,
            loss_floor=gap,
            grad_norm_floor=gap,
            parameter_norm_floor=gap,
            is_deterministic=True,
            num_parameters_equal=0,
        )
    return Verified(
        verdict=verdict,
        because="so it is",
        speedup=Interval(value=value, low=value, high=value),
        runs=(),
        baseline=side,
        candidate=side,
        num_rounds=2,
        num_looks=1,
        smallest=1.01,
        check=check,
    )


class Clock:
    """A run whose step is the product of what each setting gives."""

    def __init__(
        self, gains: dict[str, float], findings: Sequence[Finding], numerics: str = IDENTICAL
    ) -> None:
        self.gains, self.findings, self.numerics = gains, findings, numerics
        self.proofs: list[tuple[dict[str, object], dict[str, object]]] = []
        self.looks: list[dict[str, object]] = []

    def look(self, change: Change) -> Sequence[Finding]:
        self.looks.append(dict(change.knobs))
        return [
            finding
            for finding in self.findings
            if not set(settings_for(finding) or {"?": 0}) <= set(change.knobs)
        ]

    def prove(self, before: Change, after: Change, _: Prediction | None) -> Verified:
        self.proofs.append((dict(before.knobs), dict(after.knobs)))
        value = 1.0
        for name in set(after.knobs) - set(before.knobs):
            value *= self.gains.get(name, 1.0)
        return proof(
            PROVEN if value > 1.01 else WORSE if value < 0.99 else NO_GAIN, value, self.numerics
        )


def test_what_is_proven_stays_and_what_is_not_is_reverted() -> None:
    clock = Clock(
        {"num_workers": 2.0, "fused_optimizer": 0.8, "cudnn_benchmark": 1.3},
        [
            finding("serial-loader"),
            finding("looped-optimizer"),
            finding("device-sync"),
            finding("untuned-convolution"),
        ],
    )
    attempts, kept, whole, left, _ = fix(clock.look, clock.prove)
    assert [(attempt.code, attempt.outcome) for attempt in attempts] == [
        ("serial-loader", KEPT),
        ("looped-optimizer", REVERTED),
        ("device-sync", BY_HAND),
        ("untuned-convolution", KEPT),
    ]
    assert set(kept.knobs) == {"num_workers", "persistent_workers", "cudnn_benchmark"}
    assert attempts[1].why == "worse: so it is"
    # The third was tried on top of the first, without what was reverted.
    before, after = clock.proofs[2]
    assert set(after) - set(before) == {"cudnn_benchmark"}
    assert "fused_optimizer" not in before
    # At the end, everything against nothing.
    assert clock.proofs[-1] == ({}, dict(kept.knobs))
    assert whole is not None
    assert whole.speedup is not None
    assert whole.speedup.value == pytest.approx(2.6)
    # Looked at once at first, and once after each fix that stayed.
    assert len(clock.looks) == 3
    assert left == ()


def test_one_fix_alone_is_not_proven_twice() -> None:
    clock = Clock({"cudnn_benchmark": 1.3}, [finding("untuned-convolution")])
    attempts, _, whole, _, _ = fix(clock.look, clock.prove)
    assert len(clock.proofs) == 1
    assert whole is attempts[0].verified


def test_findings_that_a_fix_brings_to_light_are_tried_too() -> None:
    clock = Clock({"num_workers": 2.0, "cudnn_benchmark": 1.3}, [])

    def look(change: Change) -> Sequence[Finding]:
        return (
            [finding("untuned-convolution")]
            if "num_workers" in change.knobs
            else [finding("serial-loader")]
        )

    attempts, *_ = fix(look, clock.prove)
    assert [attempt.code for attempt in attempts] == ["serial-loader", "untuned-convolution"]


def test_a_faster_run_that_computes_something_else_is_reverted() -> None:
    clock = Clock({"cudnn_benchmark": 1.3}, [finding("untuned-convolution")], numerics=DIFFERS)
    attempts, kept, whole, _, _ = fix(clock.look, clock.prove)
    assert attempts[0].outcome == REVERTED
    assert "losses part" in attempts[0].why
    assert kept.is_none
    assert whole is None
    allowed, *_ = fix(clock.look, clock.prove, policy=FixPolicy(allows_numerics=True))
    assert allowed[0].outcome == KEPT


def test_a_fix_known_to_change_numbers_is_not_tried_unasked() -> None:
    clock = Clock({"tf32": 2.0}, [finding("tf32-off", changes_numerics=True)])
    attempts, *_ = fix(clock.look, clock.prove)
    assert attempts[0].outcome == BY_HAND
    assert "--allow-numerics" in attempts[0].why
    assert clock.proofs == []
    attempts, *_ = fix(clock.look, clock.prove, policy=FixPolicy(allows_numerics=True))
    assert attempts[0].outcome == KEPT


def test_little_promised_and_too_many_are_not_tried() -> None:
    clock = Clock(
        {}, [finding("serial-loader", gain=1.001), finding("looped-optimizer"), finding("gc-pause")]
    )
    attempts, *_ = fix(clock.look, clock.prove, policy=FixPolicy(most=1))
    assert [attempt.outcome for attempt in attempts] == [NOT_TRIED, REVERTED, NOT_TRIED]
    assert mentions(attempts[0].why, "no run")
    assert "the most" in attempts[2].why


def test_ctrl_c_ends_the_loop_with_what_was_kept() -> None:
    clock = Clock(
        {"num_workers": 2.0},
        [finding("serial-loader"), finding("looped-optimizer"), finding("untuned-convolution")],
    )

    def prove(before: Change, after: Change, prediction: Prediction | None) -> Verified:
        if "fused_optimizer" in after.knobs:
            raise KeyboardInterrupt
        return clock.prove(before, after, prediction)

    done = fix(clock.look, prove)
    assert done.is_interrupted
    assert [(attempt.code, attempt.outcome) for attempt in done.attempts] == [
        ("serial-loader", KEPT)
    ]
    assert done.left == ("looped-optimizer", "untuned-convolution")
    assert done.whole is done.attempts[0].verified, "one that was tried alone is the whole"


def test_a_proof_that_was_interrupted_is_the_last() -> None:
    clock = Clock(
        {"num_workers": 2.0},
        [finding("serial-loader"), finding("looped-optimizer"), finding("untuned-convolution")],
    )

    def prove(before: Change, after: Change, prediction: Prediction | None) -> Verified:
        verified = clock.prove(before, after, prediction)
        return (
            replace(verified, is_interrupted=True) if "fused_optimizer" in after.knobs else verified
        )

    done = fix(clock.look, prove)
    assert done.is_interrupted
    assert [attempt.outcome for attempt in done.attempts] == [KEPT, REVERTED]
    assert len(clock.proofs) == 2
    # Two were tried: the one that stayed was not measured afresh.
    assert done.whole is None
    text = head_words(
        Fixed(
            command=("x",),
            attempts=done.attempts,
            kept=done.kept.knobs,
            whole=None,
            is_interrupted=True,
        )
    )
    assert mentions(text, "1 of 2 findings")
    assert mentions(text, "afresh", "interrupted")


def test_what_is_kept_and_not_proven_together_is_not_called_faster() -> None:
    clock = Clock({"num_workers": 2.0}, [finding("serial-loader")])
    attempts, kept, *_ = fix(clock.look, clock.prove)
    text = head_words(
        Fixed(command=("x",), attempts=attempts, kept=kept.knobs, whole=proof(NO_GAIN, 1.001))
    )
    afresh = ("proven when it was tried", "measured afresh", "not proven to be faster")
    assert mentions(text, *afresh, "no gain")
    assert "1.00x" not in text
    open_ = head_words(
        Fixed(command=("x",), attempts=attempts, kept=kept.knobs, whole=proof(UNSETTLED, 1.2))
    )
    assert mentions(open_, *afresh, "not settled", "--steps", "--max-rounds")
    both = Fixed(
        command=("x",), attempts=attempts * 2, kept=kept.knobs, whole=proof(NO_GAIN, 1.001)
    )
    assert mentions(head_words(both), "each proven", "together", "not proven", "no gain")
    assert mentions(head_words(replace(both, whole=None)), "not proven")


def test_an_action_says_which_value_to_try() -> None:
    said = finding(
        "serial-loader",
        action="DataLoader(num_workers=3, persistent_workers=True, pin_memory=True); 5 keep up",
    )
    assert settings_for(said) == {"num_workers": 3, "persistent_workers": True}
    # Words that are no value, a setting that fixes something else, and a finding that nothing
    # fixes.
    odd = settings_for(finding("serial-loader", action="num_workers=many, tf32=true"))
    assert odd is not None
    assert isinstance(odd["num_workers"], int)
    assert "tf32" not in odd
    assert settings_for(finding("device-sync")) is None


def test_a_plan_runs_nothing() -> None:
    plan = propose([finding("serial-loader"), finding("device-sync")])
    assert [attempt.outcome for attempt in plan] == [NOT_TRIED, BY_HAND]
    assert all(one.verified is None for one in plan)


def test_a_fix_that_cannot_take_effect_here_is_told_and_not_tried() -> None:
    policy = FixPolicy(allows_numerics=True, unable={"tf32": "this machine has no CUDA device"})
    (attempt,) = propose([finding("tf32-off", changes_numerics=True)], policy=policy)
    assert attempt.outcome == BY_HAND
    assert mentions(attempt.why, "tf32", "this machine has no CUDA device")
    (other,) = propose(
        [finding("allocator-churn")], policy=FixPolicy(unable={"allocator": "no device"})
    )
    assert other.outcome == NOT_TRIED, "a part of it can"


def test_workers_that_an_iterable_dataset_cannot_have_are_not_tried() -> None:
    loader = LoaderKnobs(num_workers=0, is_iterable=True)
    serial = replace(finding("serial-loader"), action="DataLoader(num_workers=4)")

    def prove(*_: object) -> Verified:
        raise AssertionError

    loop = fix(lambda _: [serial], prove, policy=FixPolicy(loader=loader))
    assert [attempt.outcome for attempt in loop.attempts] == [BY_HAND]
    assert mentions(loop.attempts[0].why, "num_workers", "persistent_workers", "iterable")
    one = replace(serial, action="DataLoader(num_workers=1)")
    assert propose([one], policy=FixPolicy(loader=loader))[0].outcome == NOT_TRIED
