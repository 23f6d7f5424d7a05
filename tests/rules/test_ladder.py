"""All fixes at once: never less than the best of them, never more than they allow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.replay.changes import with_task_ns, without_host_parts
from stepscope.replay.graph import Graph
from stepscope.rules.proposal import Proposal
from tests.rules.judging import ladder
from tests.rules.recorder import Recorder


def proposal(change: object) -> Proposal:
    assert callable(change)
    return Proposal(code="x-y", bound="host", summary="", action="", evidence=(), change=change)


def longer(graph: Graph) -> Graph:
    """A change that does harm once the host is out of the way."""
    return replace(graph, task_ns=graph.task_ns * 3)


def test_a_fix_with_nothing_left_to_give_does_not_spoil_the_rest() -> None:
    run = Recorder()
    for number in range(3):
        start = run.now
        for _ in range(20):
            run.launch("aten::mm", kernel_us=20, host_us=30)
        run.step(number, start)
    case = run.case()
    free = proposal(lambda graph: without_host_parts(graph, "work"))
    short = proposal(
        lambda graph: with_task_ns(
            graph, np.ones(len(graph), np.bool_), np.full(len(graph), 5000.0)
        )
    )
    (alone,) = ladder(case, [free])
    assert alone > 1.1
    assert ladder(case, [free, proposal(longer)]) == (alone, alone)
    first, both = ladder(case, [free, short])
    assert first == alone
    assert both > alone
    first, second, third = ladder(case, [free, proposal(longer), short])
    assert (first, second, third) == (alone, alone, both), (
        "what did harm is left out of what follows"
    )
