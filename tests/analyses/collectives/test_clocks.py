"""What settles how far two ranks' clocks are apart, and what does not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stepscope.analyses.collectives.lateness import lateness
from stepscope.analyses.collectives.matching import match
from stepscope.core.comms import CollectiveRecords
from stepscope.core.trace import NONE
from tests.analyses.collectives.test_matching import (
    EPOCH_NS,
    MS,
    RANKS,
    SEEDS,
    US,
    Job,
    assert_true,
    collective_records,
    kind,
    offsets,
)
from tests.wording import mentions


def even(
    shift_ns: int, *, num_steps: int = 4, noise_ns: int = 150 * US, skip: Sequence[int] = ()
) -> list[CollectiveRecords]:
    """Two ranks with a collective every 5 ms for ever: nothing in the times tells one from the
    next."""
    draw, made = random.Random(3), []
    for rank, shift in ((0, 0), (1, shift_ns)):
        numbers = [i for i in range(num_steps * 10) if rank == 0 or i not in skip]
        end = (
            np.array([EPOCH_NS + i * 5 * MS + draw.randrange(noise_ns) for i in numbers], np.int64)
            + shift
        )
        none = np.full(len(numbers), NONE, np.int64)
        what = (kind("0", (0, 1)),)
        one = collective_records(rank, what, [0] * len(numbers), end - MS, end, none)
        made.append(replace(one, step_number=np.array(numbers, np.int64) // 10 + 2))
    return made


def without_numbers(rank_records: Sequence[CollectiveRecords]) -> list[CollectiveRecords]:
    return [replace(one, step_number=np.full(len(one), NONE)) for one in rank_records]


@pytest.mark.parametrize("shift_ns", [0, 2 * MS, 37 * MS, -400 * MS])
def test_step_numbers_tell_even_collectives_apart(shift_ns: int) -> None:
    got = match(even(shift_ns))
    assert got.num == 40
    assert np.array_equal(got.of[0], got.of[1])
    assert abs(got.offset_ns[1] + shift_ns) < 100 * US


def test_even_collectives_without_numbers_are_not_matched_and_said_so() -> None:
    made = without_numbers(even(37 * MS))
    got = match(made)
    assert got.num == 0
    assert got.unaligned == (1,)
    assert mentions(got.notes[0], "ranks 1 repeat")
    assert [one.share_last for one in lateness(made, got)] == [0.0, 0.0]


def test_even_collectives_of_one_machine_are_matched_by_its_clock() -> None:
    made = [replace(one, node="host") for one in without_numbers(even(300 * US, skip=(0, 1, 17)))]
    got = match(made)
    assert got.num == 37
    assert np.array_equal(got.of[1], got.of[0][[i for i in range(40) if i not in (0, 1, 17)]])


@settings(max_examples=10, deadline=None)
@given(data=st.data(), seed=SEEDS, num_ranks=RANKS, numbered=st.booleans())
def test_losses_on_all_ranks_and_apart_clocks_match_nothing_wrong(
    data: st.DataObject, seed: int, num_ranks: int, numbered: bool
) -> None:
    assert_nothing_wrong(seed, num_ranks, data.draw(offsets(num_ranks, 50 * MS)), numbered=numbered)


@pytest.mark.parametrize("seed", [31, 414, 820, 941, 1599, 483119])
def test_equally_many_losses_of_different_ones_match_nothing_wrong(seed: int) -> None:
    """In one step each rank has lost another collective: a few apart in the last, next to each
    other in the rest."""
    assert_nothing_wrong(seed, 2, {0: 0, 1: 0}, numbered=True)


def test_one_collective_lost_on_all_but_one_rank_is_not_the_next_one() -> None:
    """The one rank lost the next one instead: in order they would be a pair, a third of the way to
    their neighbours apart."""
    assert_nothing_wrong(121, 3, {0: 0, 1: 0, 2: 0}, numbered=True)


def assert_nothing_wrong(
    seed: int, num_ranks: int, shift: dict[int, int], *, numbered: bool
) -> None:
    job, draw = Job(seed, num_ranks, sizes=1), random.Random(seed)
    lost = {
        (rank, number) for rank in range(num_ranks) for number in range(100) if draw.random() < 0.04
    }
    made, truth = job.rank_records(shift, keep=lambda rank, _, number: (rank, number) not in lost)
    if numbered:
        made = [replace(one, step_number=one.step + 2) for one in made]
    got = match(made)
    seen: dict[int, int] = {}
    for rank, numbers in truth.items():
        for number, found in zip(numbers.tolist(), got.of[rank].tolist(), strict=True):
            assert found == NONE or seen.setdefault(found, number) == number


@settings(max_examples=10, deadline=None)
@given(data=st.data(), seed=SEEDS, num_ranks=RANKS)
def test_steps_recorded_on_some_ranks_only_shift_nothing(
    data: st.DataObject, seed: int, num_ranks: int
) -> None:
    job = Job(seed, num_ranks, sizes=1)
    begins = data.draw(st.lists(st.integers(0, 2), min_size=num_ranks, max_size=num_ranks))
    shift = data.draw(offsets(num_ranks, 50 * MS))
    made, truth = job.rank_records(
        shift, keep=lambda rank, step, _: begins[rank] <= step < begins[rank] + 3
    )
    assert_true(
        match(
            [replace(one, step_number=one.step + 7, step=one.step - one.step.min()) for one in made]
        ),
        truth,
    )


@settings(max_examples=10, deadline=None)
@given(data=st.data(), seed=SEEDS, num_ranks=st.integers(3, 8), late=st.booleans())
def test_apart_clocks_make_no_wrong_straggler(
    data: st.DataObject, seed: int, num_ranks: int, late: bool
) -> None:
    who = data.draw(st.integers(0, num_ranks - 1))
    job = Job(seed, num_ranks, sizes=1, late={who: 8 * MS} if late else None)
    lost = data.draw(st.integers(0, len(job.rows[who]) - 1))
    shift = data.draw(offsets(num_ranks, 50 * MS))
    made, _ = job.rank_records(shift, keep=lambda rank, step, number: (rank, number) != (0, lost))
    found = lateness(made, match(made))
    assert [one.rank for one in found if one.share_last > 0.5] == ([who] if late else [])


def test_ranks_that_count_steps_apart_are_matched_by_their_ends() -> None:
    made, truth = Job(5, 2).rank_records(
        {1: 20 * MS}, keep=lambda rank, step, _: rank <= step < rank + 4
    )
    made = [replace(one, step_number=one.step - one.step.min()) for one in made]
    assert_true(match(made), truth)
