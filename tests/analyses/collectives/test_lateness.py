"""Lateness of simulated ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from stepscope.analyses.collectives.lateness import lateness
from stepscope.analyses.collectives.matching import match
from stepscope.core.comms import Collective, CollectiveRecords
from stepscope.core.trace import NONE

MS = 1_000_000
EPOCH_NS = 1_760_000_000_000_000_000
WHAT = Collective(
    op="all_reduce", group="0", group_ranks=(0, 1, 2), dtype="float32", bytes=1024, on_device=True
)


def collective_records(
    rank: int, late_ns: int, shift_ns: int, *, in_window: bool = True
) -> CollectiveRecords:
    """Twenty collectives in four steps, to which this rank comes late."""
    at = EPOCH_NS + np.cumsum(30 * MS + (np.arange(20) * 7919 % 13) * MS)
    none, empty = np.full(20, NONE, np.int64), np.zeros(0, np.int64)
    return CollectiveRecords(
        rank=rank,
        kinds=(WHAT,),
        kind=np.zeros(20, np.int64),
        event=np.arange(20),
        start_ns=at + late_ns + shift_ns,
        end_ns=at + 20 * MS + shift_ns,
        launch_ns=none,
        stream=none,
        sequence=none,
        step=np.arange(20) // 5,
        exposed_start_ns=empty,
        exposed_end_ns=empty,
        exposed_of=empty,
        windows=((int(at[0]) + shift_ns, int(at[-1]) + shift_ns + 50 * MS),) if in_window else (),
    )


@settings(max_examples=10, deadline=None)
@given(shift=st.integers(-50 * MS, 50 * MS), who=st.integers(0, 2))
def test_late_rank_is_last_whatever_its_clock_says(shift: int, who: int) -> None:
    made = [
        collective_records(rank, 10 * MS if rank == who else 0, shift if rank == 1 else 0)
        for rank in range(3)
    ]
    found = lateness(made, match(made))
    assert [round(one.median_ns / MS) for one in found] == [
        10 if rank == who else 0 for rank in range(3)
    ]
    assert [one.share_last for one in found] == [1.0 if rank == who else 0.0 for rank in range(3)]
    assert len(found[who].per_step_ns) == 4


@settings(max_examples=10, deadline=None)
@given(shift=st.integers(-50 * MS, 50 * MS))
def test_clock_offset_makes_no_straggler(shift: int) -> None:
    made = [collective_records(rank, 0, shift if rank == 2 else 0) for rank in range(3)]
    found = lateness(made, match(made))
    assert all(one.share_last == 0.0 for one in found)
    assert max(abs(one.median_ns) for one in found) < MS


@pytest.mark.parametrize("late_ns", [0, 5_000])
def test_tie_has_nobody_last(late_ns: int) -> None:
    made = [collective_records(rank, late_ns * rank, 0) for rank in range(3)]
    assert [one.share_last for one in lateness(made, match(made))] == [0.0, 0.0, 0.0]


def test_collectives_outside_the_windows_do_not_count() -> None:
    made = [collective_records(rank, 10 * MS * rank, 0, in_window=False) for rank in range(3)]
    assert [(one.median_ns, one.per_step_ns) for one in lateness(made, match(made))] == [
        (0, ())
    ] * 3


def test_of_two_ranks_one_is_as_late_as_the_other_waits() -> None:
    pair = structs.replace(WHAT, group_ranks=(0, 1))
    made = [
        structs.replace(collective_records(rank, rank * 10 * MS, 0), kinds=(pair,))
        for rank in range(2)
    ]
    assert [round(one.median_ns / MS) for one in lateness(made, match(made))] == [0, 10]
