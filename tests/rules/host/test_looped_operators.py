"""looped-operators: a short body of small operators, many times over; layers and optimizers repeat
too, and are none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import OpInputs
from stepscope.rules.case import Case, case_of
from stepscope.rules.host.looped_operators import propose
from stepscope.rules.shared.host_tasks import home_of
from tests.tracing import Event, mark, op, trace_of
from tests.wording import mentions

US = 1_000
BODY = ("aten::select", "aten::add")


def case(body: Sequence[str], turns: int, *, inside: str | None = None, us: int = 5) -> Case:
    return calls(list(body) * turns, inside=inside, us=us)


def calls(names: Sequence[str], *, inside: str | None = None, us: int = 5) -> Case:
    """Three steps of one large operator and these, with as long between two operators as one
    takes."""
    events: list[Event] = []
    now = 0
    for step in range(3):
        began = now
        events.append(op("aten::mm", now, now + 1_000 * US))
        now += 1_010 * US
        looped = now
        for name in names:
            events.append(op(name, now, now + us * US))
            now += 2 * us * US
        if inside is not None:
            events.append(mark(inside, looped - US, now))
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += US
    return case_of(build_context(trace_of(*events), None), 0, None)


def test_a_loop_is_one_call_of_each_operator() -> None:
    run = case(BODY, 200)
    said = propose(run)
    assert said is not None
    assert mentions(said.summary, "400 operators", "4.00 ms")
    assert mentions(said.evidence[0], "200 turns", "aten::add", "aten::select")
    # A millisecond of mm stays, and of four in the loop a two-hundredth.
    assert run.speedup(said.change(run.graph)) == pytest.approx(5.01 / 1.04, rel=0.03)
    assert said.cautious is not None
    assert run.speedup(said.cautious(run.graph)) == pytest.approx(5.01 / 3.03, rel=0.03)


def test_a_few_turns_are_no_loop() -> None:
    assert propose(case(BODY, 20)) is None


def test_nodes_with_unlike_numbers_of_edges_are_a_loop() -> None:
    body = [BODY * (1 + node * node % 5) for node in range(80)]
    turned = [name for edges in body for name in ("aten::select", *edges)]
    run = calls(turned)
    said = propose(run)
    assert said is not None
    assert mentions(said.summary, f"{len(turned)} operators")
    assert run.speedup(said.change(run.graph)) > 4


def test_layers_are_no_loop_however_many() -> None:
    layer = [f"aten::op{number}" for number in range(20)]
    assert propose(case(layer, 48)) is None
    unlike = [name for number in range(48) for name in (*layer[number % 2 :], *layer[:3])]
    assert propose(calls(unlike)) is None


@pytest.mark.parametrize(
    ("rows", "product", "is_loop"),
    [(4, "aten::amin", True), (4000, "aten::amin", False), (4, "aten::mm", False)],
)
def test_a_long_body_is_a_loop_where_it_reads_few_numbers(
    rows: int, product: str, is_loop: bool
) -> None:
    """The loss of one sample, not a layer."""
    sizes = OpInputs(dims=f"[[{rows}, 8]]", types=None, strides=None, concrete=None)
    body = (*(f"aten::op{number}" for number in range(29)), product)
    events: list[Event] = []
    now = 0
    for step in range(3):
        began = now
        for _ in range(40):
            for name in body:
                events.append(op(name, now, now + 5 * US, detail=sizes))
                now += 10 * US
        events.append(mark(f"ProfilerStep#{step}", began, now))
    run = case_of(build_context(trace_of(*events), None), 0, None)
    assert (propose(run) is not None) is is_loop


@pytest.mark.parametrize(("width", "is_loop"), [(32, True), (256, False)])
def test_a_loop_of_large_products_is_of_work(width: int, is_loop: bool) -> None:
    """As the backward of a deep network is, whose nodes tell no sizes themselves."""
    events: list[Event] = []
    sizes = OpInputs(
        dims=f"[[4, {width}], [{width}, {width}]]", types=None, strides=None, concrete=None
    )
    for step in range(3):
        began = now = step * 10_000 * US
        for _ in range(60):
            events.append(
                op("autograd::engine::evaluate_function: MmBackward0", now, now + 20 * US)
            )
            events.append(op("aten::mm", now + US, now + 19 * US, detail=sizes))
            now += 25 * US
        events.append(mark(f"ProfilerStep#{step}", began, now))
    run = case_of(build_context(trace_of(*events), None), 0, None)
    assert (propose(run) is not None) is is_loop


def test_the_optimizers_loop_is_its_own() -> None:
    assert propose(case(BODY, 200, inside="Optimizer.step#SGD.step")) is None


def recurrent(*, in_python: bool) -> Case:
    """A hundred turns of forward, each an operator of its own or all inside one, and a node of
    backward for each."""
    events: list[Event] = []
    now = 0
    for step in range(3):
        began = now
        for turn in range(100):
            number = 100 * step + turn
            events.append(op("aten::tanh", now, now + 5 * US, sequence=number))
            now += 10 * US
        if not in_python:
            events.append(op("aten::gru", began, now))
        for turn in reversed(range(100)):
            number = 100 * step + turn
            node = "autograd::engine::evaluate_function: TanhBackward0"
            events.append(op(node, now, now + 5 * US, sequence=number, fwd_thread=1))
            now += 10 * US
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += US
    return case_of(build_context(trace_of(*events), None), 0, None)


def test_the_backward_of_one_operator_that_turns_inside_is_no_loop() -> None:
    assert propose(recurrent(in_python=False)) is None
    said = propose(recurrent(in_python=True))
    assert said is not None
    assert mentions(said.summary, "200 operators")


def test_what_backward_needs_nothing_of_is_not_what_its_node_is_of() -> None:
    """Both bear the node's number; the one that made the node came last."""
    events: list[Event] = []
    for step in range(3):
        began = step * 100 * US
        events.append(op("aten::detach", began, began + 5 * US, sequence=step))
        events.append(op("aten::mm", began + 10 * US, began + 30 * US, sequence=step))
        node = "autograd::engine::evaluate_function: MmBackward0"
        events.append(op(node, began + 40 * US, began + 60 * US, sequence=step, fwd_thread=1))
        events.append(mark(f"ProfilerStep#{step}", began, began + 90 * US))
    run = case_of(build_context(trace_of(*events), None), 0, None)
    assert home_of(run, run.graph)[2::3].tolist() == [1, 4, 7][: len(run.graph) // 3]
