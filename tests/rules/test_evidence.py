"""A rule that is not asked, for want of evidence, would have had nothing to say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.diagnosis import Abstention
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import diagnose
from stepscope.rules import judge, registry
from stepscope.rules.case import Case
from stepscope.rules.evidence import on_device, on_host
from stepscope.rules.rule import Rule
from tests.rules.job_cases import Fleet
from tests.rules.on_hosts import on_hosts
from tests.shared_data import DEMO, SAMPLES, lab_traces

TRACES = (DEMO, *sorted((SAMPLES / "single").iterdir()), *sorted((SAMPLES / "memory").iterdir()))


def check(case: Case) -> Iterator[Rule | Abstention]:
    for entry in registry.OURS if on_device(case) else ():
        propose = entry.rule.propose
        if propose is not None and entry.evidence is not None and not entry.evidence(case):
            assert propose(case) is None, entry.code
    yield from registry.rank_rules(case)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.partition(".pt")[0])
def test_what_is_not_asked_of_a_rank_would_say_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "rank_rules", check)
    diagnose([path], Options(use_cache=False, jobs=1))


def test_tasks_of_a_host_tied_to_others_are_no_operators() -> None:
    rank = Fleet().job([on_hosts(True)] * 2).cases[0]
    assert rank.graph.on_host
    assert not on_host(rank)


def test_what_is_not_asked_of_exchanging_ranks_would_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judge, "rank_rules", check)
    diagnose(lab_traces("ranks2/ddp_straggler.slow.*"), Options(use_cache=False, jobs=1))


def test_a_rule_is_called_as_its_file() -> None:
    assert [entry.rule.code for entry in registry.OURS] == [entry.code for entry in registry.OURS]
    for entry in registry.OURS:
        assert (entry.rule.propose is None) == (entry.evidence is None), entry.code
        assert (entry.rule.propose_job is None) == (not entry.of_job), entry.code
