"""Runs of small operators are asked for as chains, and a measured one takes the model's place."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyses.rank_context import RankContext
from stepscope.core.hardware import MeasuredTime, OperatorCall, ProbeCase, ProbedTimes
from stepscope.pipeline.contexts import RankContexts
from stepscope.readers.inputs import find_sources
from stepscope.rules.case import Case, case_of
from stepscope.rules.memory import unfused_pointwise
from stepscope.rules.shared import chains
from stepscope.rules.shared.chains import CHAIN, timed_runs
from stepscope.rules.shared.fusible_runs import runs_of
from tests.rules.recorder import gain
from tests.shared_data import lab_trace

TRACE = lab_trace("single/elementwise_chain.slow")


def case_with(probed: ProbedTimes) -> Case:
    with find_sources([TRACE]) as found:
        context: RankContext = RankContexts(use_cache=False, probed=lambda _: probed).of(
            found.sources[0]
        )
    return case_of(context, 0, None)


def taking(ns: float) -> MeasuredTime:
    return MeasuredTime(ns=ns, low_ns=ns, high_ns=ns, samples=5)


def timed(share: float, recorded: float = 1.0) -> tuple[Case, ProbedTimes]:
    """The run where every chain was timed: `recorded` times what was recorded, and compiled such a
    share of that."""
    asked = ProbedTimes()
    case = case_with(asked)
    runs = runs_of(case)
    assert runs is not None
    timed_runs(case)
    steps = case.graph.num_steps
    times: dict[ProbeCase, MeasuredTime] = {}
    for each, weight in asked.asked.items():
        alike = [run for run, ns in enumerate(runs.now_ns) if ns * steps <= weight * steps * 1.01]
        ns = recorded * float(np.median(runs.now_ns[alike]))
        times[each] = taking(ns * (share if each.way.endswith("compiled") else 1.0))
    probed = ProbedTimes(times=times)
    return case_with(probed), probed


def test_the_heaviest_chains_are_asked_for_as_they_are_and_compiled() -> None:
    asked = ProbedTimes()
    timed_runs(case_with(asked))
    calls = {each.call for each in asked.asked}
    assert calls
    assert {each.call.op for each in asked.asked} == {CHAIN}
    assert {each.way for each in asked.asked} == {"asis", "asis+compiled"}
    assert len(calls) <= chains.POLICY.most
    for call in calls:
        assert len(call.parts) > 1
        for place, part in enumerate(call.parts):
            made = [text for text in part.concrete if text.startswith("@")]
            assert all(int(text[1:]) < place for text in made), "it is made before it is read"


def test_no_operator_reads_a_tensor_twice() -> None:
    asked = ProbedTimes()
    timed_runs(case_with(asked))
    parts = [part for each in asked.asked for part in each.call.parts]
    given = [[text for text in part.concrete if text.startswith("#")] for part in parts]
    assert all(len(texts) == len(set(texts)) for texts in given)


def test_a_timed_chain_takes_the_models_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "is_reproduced", lambda *_: True)
    quick, slow = timed(0.05)[0], timed(0.9)[0]
    proposals = [unfused_pointwise.propose(case) for case in (quick, slow)]
    assert gain(quick, proposals[0]) > 1.5 * gain(slow, proposals[1])


def test_a_chain_that_took_another_time_than_recorded_is_not_believed() -> None:
    case, _ = timed(0.05, recorded=3.0)
    assert np.isnan(timed_runs(case).ns).all()


def test_a_call_of_one_operator_has_no_parts() -> None:
    call = OperatorCall(op="aten::mm", dims=(), types=(), strides=(), concrete=())
    assert call.parts == ()
