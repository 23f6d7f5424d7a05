"""python-overhead: Python of its own between operators, not the way from one to the next."""

from __future__ import annotations

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.core.run import RankMetadata
from stepscope.rules.case import Case, case_of
from stepscope.rules.host import python_overhead
from stepscope.rules.proposal import Proposal
from tests.rules.judging import finding_of
from tests.rules.recorder import Recorder, gain
from tests.tracing import Event, mark, op, python, trace_of
from tests.wording import any_mentions

MS = 1_000_000


def computing(
    *, between_us: float, kernel_us: float = 10, frame: str | None = None, around: str | None = None
) -> Recorder:
    """Twenty operators a step with Python after each."""
    run = Recorder()
    for number in range(4):
        start = run.now
        for _ in range(20):
            run.launch("aten::mm", kernel_us=kernel_us)
            began = run.now
            run.work(between_us)
            if frame is not None:
                run.span(frame, began, kind=python)
            if around is not None:
                run.span(around, began, kind=mark)
        run.step(number, start)
    return run


def test_python_between_operators_is_named_with_its_line() -> None:
    case = computing(between_us=300, frame="model.py(41): build_mask").case()
    said = python_overhead.propose(case)
    assert isinstance(said, Proposal)
    assert gain(case, said) > 3
    finding = finding_of(case, said)
    assert finding.action.endswith("model.py:41 in build_mask")
    assert any_mentions(finding.evidence, "100%", "model.py:41 in build_mask")
    assert "launch-overhead" in said.action


def test_without_stacks_it_says_how_to_find_the_line() -> None:
    said = python_overhead.propose(computing(between_us=300).case())
    assert isinstance(said, Proposal)
    assert "with_stack" in said.action


def test_the_way_from_one_operator_to_the_next_belongs_to_launching() -> None:
    assert python_overhead.propose(computing(between_us=15).case()) is None


def test_python_the_device_does_not_wait_for_gives_nothing() -> None:
    case = computing(between_us=300, kernel_us=500).case()
    assert gain(case, python_overhead.propose(case)) < 1.02


def test_loader_optimizer_and_collector_are_not_python_overhead() -> None:
    for name in (
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "Optimizer.step#AdamW.step",
    ):
        assert python_overhead.propose(computing(between_us=300, around=name).case()) is None
    assert (
        python_overhead.propose(
            computing(between_us=300, frame="<built-in function collect>").case()
        )
        is None
    )


def test_one_long_pause_a_step_is_named_however_busy_the_host_is() -> None:
    """A pause of 3 ms among operators that keep the host busy for 20."""
    run = Recorder()
    for number in range(4):
        start = run.now
        for _ in range(400):
            run.launch("aten::mm", kernel_us=5)
            run.work(40)
        run.work(3_000)
        run.step(number, start)
    case = run.case()
    said = python_overhead.propose(case)
    assert isinstance(said, Proposal)
    assert 1.02 < gain(case, said) < 1.3
    # The pause at the end of the last step counts like the others.
    assert said.evidence[0].startswith("1 gap a step")


def held_up(
    *,
    recurring_ms: float,
    taken_ms: float,
    inside_ms: float = 0.0,
    before_ms: float = 0.0,
    cores_used: float | None = None,
) -> Case:
    """Steps of 20 operators on a host that had no core for half of the time: it stands still before
    one operator in each step, and in each step before another one as well, or inside one; or before
    each step's first."""
    events: list[Event] = []
    now = 0
    for step in range(4):
        began = now
        now += round(before_ms * MS)
        for number in range(20):
            if number == 3:
                now += round(recurring_ms * MS)
            if number == 5 + 3 * step:
                now += round(taken_ms * MS)
            took = MS // 2 + (round(inside_ms * MS) if number == 5 + 3 * step else 0)
            events.append(op(f"aten::op{number}", now, now + took))
            now += took + 5_000
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 1_000
    busy = RankMetadata(rank=0, queued_share=0.5, cores_used=cores_used)
    return case_of(build_context(trace_of(*events), None), 0, None, busy)


def test_what_others_take_on_a_busy_machine_is_not_the_hosts() -> None:
    assert python_overhead.propose(held_up(recurring_ms=0.0, taken_ms=8)) is None


def test_what_recurs_is_the_hosts_on_a_busy_machine_too() -> None:
    case = held_up(recurring_ms=20, taken_ms=8)
    assert gain(case, python_overhead.propose(case)) == pytest.approx(30 / 10, rel=0.1)


def test_an_operator_that_stood_still_in_one_step_is_no_part_of_all() -> None:
    case = held_up(recurring_ms=20, taken_ms=0, inside_ms=40)
    assert gain(case, python_overhead.propose(case)) == pytest.approx(30 / 10, rel=0.1)


def test_what_comes_before_each_steps_first_operator_recurs_on_a_busy_machine() -> None:
    case = held_up(recurring_ms=0, taken_ms=8, before_ms=20)
    assert gain(case, python_overhead.propose(case)) == pytest.approx(30 / 10, rel=0.1)


def test_a_host_that_never_sleeps_is_held_up_outside_operators_too() -> None:
    """Half of the time on a core and half in wait for one: of 20 ms it works 10. With less on a
    core it may have slept."""
    awake = held_up(recurring_ms=20, taken_ms=0, cores_used=0.5)
    assert gain(awake, python_overhead.propose(awake)) == pytest.approx(20 / 10, rel=0.1)
    asleep = held_up(recurring_ms=20, taken_ms=0, cores_used=0.2)
    assert gain(asleep, python_overhead.propose(asleep)) == pytest.approx(30 / 10, rel=0.1)
