"""What ranks have of a job's communication."""

from __future__ import annotations

import pytest

from stepscope.analyses.collectives.job import job_comms, overlap_efficiency
from stepscope.analyses.collectives.lateness import lateness
from stepscope.analyses.collectives.matching import match
from tests.rank_records import MS, Call, collective_records
from tests.scenarios import rank_facts


@pytest.mark.parametrize(
    ("compute_ms", "exposed_ms", "hidden_ms", "efficiency"),
    [
        (40.0, 0.0, 20.0, 1.0),
        (40.0, 20.0, 0.0, 0.0),
        (40.0, 10.0, 10.0, 0.5),
        (5.0, 20.0, 5.0, 1.0),
        (0.0, 20.0, 0.0, 1.0),
        (40.0, 0.0, 0.0, None),
    ],
)
def test_overlap_efficiency_is_what_the_smaller_could_hide(
    compute_ms: float, exposed_ms: float, hidden_ms: float, efficiency: float | None
) -> None:
    parts = {"compute": compute_ms, "comms_transfer": exposed_ms, "idle_launch": 3.0}
    found = overlap_efficiency(rank_facts(parts, num_windows=1, hidden_ms=hidden_ms))
    assert found == (None if efficiency is None else pytest.approx(efficiency))


def test_late_rank_is_a_straggler_and_others_are_not() -> None:
    rank_records = []
    for rank in range(3):
        calls = [
            Call(
                at=10 + 100 * i + (9 if rank == 2 else 0),
                end=30 + 100 * i + i * i,
                ranks=(0, 1, 2),
                bytes=1 << (20 + i),
            )
            for i in range(5)
        ]
        rank_records.append(collective_records(rank, calls, world_size=3))
    matched = match(rank_records)
    facts = [rank_facts({"compute": 40.0, "comms_transfer": 20.0}, rank=rank) for rank in range(3)]
    found = job_comms(facts, rank_records, matched, lateness(rank_records, matched))
    assert [one.is_straggler for one in found.ranks] == [False, False, True]
    assert [one.late_ns for one in found.ranks] == [0, 0, 9 * MS]
    assert [one.offset_ns for one in found.ranks] == [0, 0, 0]
    assert found.world_size == 3
    assert found.clock_noise_ns is not None


def test_a_rank_alone_is_neither_late_nor_early() -> None:
    one = collective_records(0, [Call(at=10, end=20)])
    matched = match([one])
    found = job_comms(
        [rank_facts({"compute": 40.0, "comms_transfer": 20.0})],
        [one],
        matched,
        lateness([one], matched),
    )
    assert [(rank.late_ns, rank.offset_ns, rank.is_straggler) for rank in found.ranks] == [
        (None, None, False)
    ]
    assert found.clock_noise_ns is None
