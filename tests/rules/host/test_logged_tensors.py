"""logged-tensors: numbers of many tensors in every step; a loss, numbers that a model reads between
its own operators and an evaluation's are none."""

from __future__ import annotations

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.rules.case import Case, case_of
from stepscope.rules.host import looped_operators
from stepscope.rules.host.logged_tensors import propose
from tests.tracing import Event, mark, op, trace_of
from tests.wording import mentions

US = 1_000


def logging(
    num: int, *, is_needed: bool = False, before: str | None = None, within: str | None = None
) -> Case:
    """Three steps of a millisecond of model and `num` norms that are read, 40 us each; backward
    needs the norms, or an operator comes before each, or they lie in a range."""
    events: list[Event] = []
    now = 0
    for step in range(3):
        began = now
        events.append(op("aten::linear", now, now + 1_000 * US))
        now += 1_010 * US
        logged = now
        for turn in range(num):
            if before is not None:
                events.append(op(before, now, now + 5 * US))
                now += 10 * US
            number = 1000 * step + turn
            events.append(op("aten::linalg_vector_norm", now, now + 15 * US, sequence=number))
            events.append(op("aten::item", now + 20 * US, now + 25 * US))
            now += 40 * US
        if within is not None:
            events.append(mark(within, logged - US, now))
        for turn in range(num if is_needed else 0):
            node = "autograd::engine::evaluate_function: LinalgVectorNormBackward0"
            number = 1000 * step + turn
            events.append(op(node, now, now + US, sequence=number, fwd_thread=1))
            now += 2 * US
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += US
    return case_of(build_context(trace_of(*events), None), 0, None)


def test_numbers_of_many_tensors_are_read_in_one_step_of_fifty() -> None:
    run = logging(100)
    said = propose(run)
    assert said is not None
    assert mentions(said.summary, "100 numbers")
    assert mentions(said.evidence[0], "200 operators", "linalg_vector_norm")
    assert run.speedup(said.change(run.graph)) == pytest.approx(5.01 / 1.1, rel=0.05)
    assert said.cautious is not None
    assert run.speedup(said.cautious(run.graph)) == pytest.approx(5.01 / 3.03, rel=0.05)


def test_what_is_logged_is_no_loop_besides() -> None:
    assert looped_operators.propose(logging(100)) is None


def test_a_loss_and_some_metrics_are_right() -> None:
    assert propose(logging(8)) is None


def test_numbers_that_backward_needs_are_the_models() -> None:
    assert propose(logging(100, is_needed=True)) is None


def test_an_evaluation_is_another_finding() -> None:
    assert propose(logging(100, before="aten::linear")) is None


def test_what_the_optimizer_reads_is_its_own() -> None:
    assert propose(logging(100, within="Optimizer.step#LBFGS.step")) is None
