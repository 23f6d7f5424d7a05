"""Exposed communication split into waiting and moving: the split is exact, and the step still adds
up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyses.collectives.matching import match
from stepscope.analyses.collectives.records import collective_records_of
from stepscope.analyses.collectives.waits import waiting, with_waits
from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import build_context
from stepscope.core.facts import RankFacts
from tests.rules.job_cases import Fleet

US = 1_000


def split(fleet: Fleet) -> list[tuple[RankFacts, RankFacts]]:
    """Per rank, its facts before and after."""
    found = [build_context(trace, None) for trace in fleet.traces()]
    rank_records = [collective_records_of(one, rank) for rank, one in enumerate(found)]
    matched = match(rank_records)
    facts = [measure_rank(one, rank, None) for rank, one in enumerate(found)]
    return [
        (fact, with_waits(fact, collective_records, matched))
        for fact, collective_records in zip(facts, rank_records, strict=True)
    ]


def job(late_us: list[float], *, moving_us: float = 100, hidden: bool = False) -> Fleet:
    fleet = Fleet(len(late_us))
    for _ in range(4):
        fleet.host(late_us)
        for _ in range(3):
            fleet.compute(100)
        fleet.collective("all_reduce", 1 << 20, moving_us, needed=not hidden)
        fleet.compute(500)
        fleet.settle()
        fleet.step()
    return fleet


def test_the_one_in_time_waits_and_the_late_one_does_not() -> None:
    (_, early), (_, late) = split(job([10, 3000]))
    assert early.partition is not None
    assert late.partition is not None
    assert early.partition.waits_split
    assert late.partition.waits_split
    assert max(late.partition.parts["comms_wait"]) < 20 * US
    assert all(2000 * US < waited < 3100 * US for waited in early.partition.parts["comms_wait"][1:])
    assert early.partition.parts["comms_transfer"][-1] == pytest.approx(100 * US, abs=10 * US)


def test_one_rank_alone_cannot_tell() -> None:
    ((before, after),) = split(job([10]))
    assert after is before


def test_waiting_lies_inside_the_collectives() -> None:
    fleet = job([10, 1000])
    found = [build_context(trace, None) for trace in fleet.traces()]
    rank_records = [collective_records_of(one, rank) for rank, one in enumerate(found)]
    spans = waiting(rank_records[0], match(rank_records))
    assert len(spans) > 0
    for low, high in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
        assert bool(((rank_records[0].start_ns <= low) & (rank_records[0].end_ns >= high)).any())


@given(st.lists(st.integers(0, 3000), min_size=2, max_size=3), st.integers(5, 2000), st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_partition_still_sums_to_the_step(
    late_us: list[int], moving_us: int, hidden: bool
) -> None:
    for before, after in split(
        job([float(us) for us in late_us], moving_us=moving_us, hidden=hidden)
    ):
        assert before.partition is not None
        assert after.partition is not None
        parts = after.partition.parts
        whole = [high - low for low, high in after.steps.windows]
        assert [sum(step) for step in zip(*parts.values(), strict=True)] == whole
        assert min(min(values) for values in parts.values()) >= 0
        exposed = before.partition.parts["comms_transfer"]
        assert [
            w + t for w, t in zip(parts["comms_wait"], parts["comms_transfer"], strict=True)
        ] == list(exposed)
