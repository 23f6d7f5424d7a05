"""Sends and receives in groups of more than two ranks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace

from stepscope.analyses.collectives.matching import match
from stepscope.core.comms import Collective, CollectiveRecords
from stepscope.core.trace import NONE
from tests.analyses.collectives.test_matching import EPOCH_NS, MS, US, collective_records, kind
from tests.wording import mentions

PIPE = (0, 1, 2, 3)


def pipeline(*, told: bool, apart_ns: int = 10 * MS, num: int = 8) -> list[CollectiveRecords]:
    """Each microbatch goes from rank to rank; a barrier before all of it."""
    rows: dict[int, list[tuple[Collective, int, int]]] = {
        rank: [(kind("0", PIPE, 0, "barrier"), 0, MS)] for rank in PIPE
    }
    for batch in range(num):
        for a, b in pairwise(PIPE):
            at = 20 * MS + batch * 40 * MS + batch * batch * 700 * US + a * apart_ns
            rows[a].append(
                (replace(kind("0", PIPE, op="send"), peer=b if told else None), at, at + 2 * MS)
            )
            rows[b].append(
                (
                    replace(kind("0", PIPE, op="recv"), peer=a if told else None),
                    at - MS,
                    at + 2 * MS + 20 * US,
                )
            )
    made = []
    for rank, mine in rows.items():
        mine.sort(key=lambda row: row[1])
        kinds = tuple(dict.fromkeys(row[0] for row in mine))
        start, end = EPOCH_NS + np.array([row[1:] for row in mine], np.int64).T
        made.append(
            collective_records(
                rank,
                kinds,
                [kinds.index(row[0]) for row in mine],
                start,
                end,
                np.zeros(len(mine), np.int64),
            )
        )
    return made


@pytest.mark.parametrize("told", [True, False])
def test_sends_match_the_receives_of_the_next_rank(told: bool) -> None:
    made = pipeline(told=told)
    got = match(made)
    assert got.num == 1 + 3 * 8
    assert got.complete.all()
    for a, b in pairwise(made):
        sends, receives = (
            got.of[one.rank][[kind.op == op for kind in (one.kinds[i] for i in one.kind)]]
            for one, op in ((a, "send"), (b, "recv"))
        )
        assert np.array_equal(sends, receives)
    assert not got.notes


def test_recorded_ranks_match_transfers_that_end_together() -> None:
    assert match(pipeline(told=True, apart_ns=0)).num == 1 + 3 * 8


def test_transfers_that_end_together_without_ranks_stay_alone_and_are_said() -> None:
    got = match(pipeline(told=False, apart_ns=0))
    # Rank 0 may send to rank 1, or around to rank 3.
    assert got.of[0].tolist() == [0] + [NONE] * 8
    assert mentions(got.notes[-1], "sends and receives", "ranks 0, 1, 2, 3", "which")
