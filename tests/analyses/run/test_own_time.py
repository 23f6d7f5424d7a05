"""Own times: a rank's step less what it waits for the others in backward passes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepscope.analyses.run.own_time import own_times
from stepscope.core.run import OwnTime

MS = 1_000_000
Row = dict[str, int | None]
BACKWARD_MS = 5


def steps(own_ms: Sequence[Sequence[int]], *, state: int = 0) -> dict[int, list[Row]]:
    """Per rank and step what it takes itself, 5 ms of it in the backward pass, in which it waits
    for the slowest."""
    last = [max(times) for times in zip(*own_ms, strict=True)]
    return {
        rank: [
            {
                "step": step,
                "dur_ns": last[step] * MS,
                "wait_ns": 1 * MS,
                "backward_ns": (BACKWARD_MS + last[step] - own) * MS,
                "num_batches": 1,
                "num_backwards": 1,
                "num_evals": 0,
                "save_ns": 0,
                "state": state,
            }
            for step, own in enumerate(times)
        ]
        for rank, times in enumerate(own_ms)
    }


def test_a_rank_that_the_others_wait_for_has_the_longest_own_time() -> None:
    own = own_times(steps([[10] * 20, [40] * 20, [12] * 20]))
    assert [own[rank].own_ns // MS for rank in range(3)] == [10, 40, 12]
    assert [own[rank].share_longest for rank in range(3)] == [0.0, 1.0, 0.0]
    assert own[0].step_ns == 40 * MS


def test_uneven_steps_have_a_spread_and_nobody_late() -> None:
    own = own_times(steps([[10, 30] * 10, [30, 10] * 10]))
    assert own[0].spread == pytest.approx(1 / 3)
    assert {each.share_longest for each in own.values()} == {0.5}


@pytest.mark.parametrize(
    "rows",
    [
        steps([[10] * 20]),
        steps([[10] * 7, [40] * 7]),
        steps([[10] * 20, [40] * 20], state=2),
        {0: steps([[10] * 20])[0], 1: steps([[40] * 20])[0]},
    ],
    ids=["one rank", "few steps", "profiled", "not in step"],
)
def test_nothing_is_told_where_ranks_cannot_be_compared(rows: dict[int, list[Row]]) -> None:
    assert own_times(rows) == {}


def test_own_time_is_no_more_than_the_step() -> None:
    own: dict[int, OwnTime] = own_times(steps([[10, 20, 30, 15] * 5, [12] * 20]))
    assert all(each.own_ns <= each.step_ns for each in own.values())
