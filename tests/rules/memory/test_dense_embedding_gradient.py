"""dense-embedding-gradient: a table of which a batch touches few rows; not one that it touches
whole, that a product reads too, or that an optimizer without sparse updates trains."""

from __future__ import annotations

import pytest

from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import TraceMeta
from stepscope.rules.case import Case, case_of
from stepscope.rules.memory.dense_embedding_gradient import propose
from stepscope.rules.proposal import Proposal
from tests.rules.recorder import Recorder, gain
from tests.tracing import Event, inputs, mark, op, trace_of
from tests.wording import mentions

ROWS, WIDTH = 1_000_001, 64
MS = 1_000_000


def training(
    *, looked_up: int = 4096, optimizer: str = "SGD", tied: bool = False, ranks: int | None = None
) -> Case:
    """Steps of 1 ms of model, 2 ms that make the gradient of a table, and 4 ms of update; the table
    is four fifths of the weights."""
    run = Recorder()
    rest = inputs("[[250000, 64]]", '["float"]')
    for number in range(3):
        start = run.now
        read = f"[[8, {WIDTH}], [{WIDTH}, {ROWS if tied else 8}]]"
        run.launch("aten::mm", kernel_us=1000, detail=inputs(read, '["float", "float"]'))
        for weight, us in ((f"[[{ROWS}, {WIDTH}]]", 2000), (None, 0)):
            began = run.now
            if weight is not None:
                run.launch(
                    "aten::embedding_dense_backward",
                    kernel_us=us,
                    detail=inputs(
                        f"[[{looked_up}, {WIDTH}], [{looked_up}], [], [], []]",
                        '["float", "long int", "Scalar", "Scalar", "Scalar"]',
                        concrete=f'["", "", "{ROWS}", "-1", "False"]',
                    ),
                )
            run.work(2)
            detail = rest if weight is None else inputs(weight, '["float"]')
            name = "torch::autograd::AccumulateGrad"
            run.events.append(op(name, run.now, run.now + 1000, detail=detail))
            run.work(2)
            run.span("autograd::engine::evaluate_function: EmbeddingBackward0", began, kind=op)
        began = run.now
        run.launch("aten::_foreach_add_", kernel_us=4000)
        run.span(f"Optimizer.step#{optimizer}.step", began)
        run.step(number, start)
    meta = TraceMeta(path="built", has_shapes=True, world_size=ranks)
    return case_of(build_context(trace_of(*run.events, meta=meta), None), 0, None)


def test_a_table_of_which_few_rows_are_touched_costs_its_gradient_and_its_update() -> None:
    case = training()
    said = propose(case)
    assert isinstance(said, Proposal)
    assert mentions(said.summary, "1 embeddings", "256 MB", "0.0041")
    assert mentions(said.action, "sparse=True", "SGD")
    assert not said.changes_training
    # Of 4 ms of update a fifth stays.
    assert gain(case, said) == pytest.approx(7.0 / 1.8, rel=0.05)


def test_rows_that_rest_are_another_training() -> None:
    said = propose(training(optimizer="AdamW"))
    assert isinstance(said, Proposal)
    assert said.changes_training
    assert mentions(said.action, "SparseAdam")


def test_a_table_that_a_batch_touches_is_left_alone() -> None:
    assert propose(training(looked_up=ROWS // 2)) is None


def test_a_tied_table_has_a_dense_gradient_anyway() -> None:
    assert propose(training(tied=True)) is None


def test_what_sparse_updates_cost_is_known_of_few_optimizers_and_of_one_rank() -> None:
    assert propose(training(optimizer="Lion")) is None
    assert propose(training(ranks=2)) is None


def on_host(*, tied: bool = False) -> Case:
    """Steps without a device: 1 ms of model, 3 ms that make the gradient of a table, and 4 ms that
    apply it."""
    events: list[Event] = []
    now, table = 0, f"[{ROWS}, {WIDTH}]"
    read = f"[[8, {WIDTH}], [{WIDTH}, {ROWS if tied else 8}]]"
    made = inputs(
        f"[[256, {WIDTH}], [256], [], [], []]",
        '["float", "long int", "Scalar", "Scalar", "Scalar"]',
        concrete=f'["", "", "{ROWS}", "-1", "False"]',
    )
    applied = inputs(f"[{table}, {table}]", '["float", "float"]')
    for step in range(3):
        began = now
        events += [
            op("aten::mm", now, now + MS, detail=inputs(read, '["float", "float"]')),
            op("aten::embedding_dense_backward", now + MS, now + 4 * MS, detail=made),
            op("aten::add_", now + 4 * MS, now + 8 * MS, detail=applied),
            mark("Optimizer.step#SGD.step", now + 4 * MS, now + 8 * MS),
        ]
        now += 8 * MS
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 1_000
    meta = TraceMeta(path="built", has_shapes=True)
    return case_of(build_context(trace_of(*events, meta=meta), None), 0, None)


def test_a_host_that_passes_over_whole_tables_gains_the_passes() -> None:
    case = on_host()
    assert gain(case, propose(case)) == pytest.approx(8, rel=0.02)
    assert propose(on_host(tied=True)) is None
