"""One run of a scaling series: its width, its FLOPs and the size of its gradients."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.analyses.run.width import width_run
from stepscope.core.comms import Buckets, CollectiveRow, CommsFacts
from stepscope.core.facts import Facts
from tests.scenarios import NO_ROOF, rank_facts
from tests.wording import any_mentions


def test_flops_are_known_of_all_ranks_or_not_at_all() -> None:
    known = replace(NO_ROOF, model_flops=4e12)
    ranks = [rank_facts({"compute": 8}, roofline=known), rank_facts({"compute": 8}, rank=1)]
    assert width_run("run", Facts(ranks=tuple(ranks)), 2).flops is None
    ranks[1] = rank_facts({"compute": 8}, rank=1, roofline=replace(NO_ROOF, model_flops=2e12))
    assert width_run("run", Facts(ranks=tuple(ranks)), 2).flops == 3e12
    idle = rank_facts({}, rank=2, num_windows=0)
    assert width_run("run", Facts(ranks=(*ranks, idle)), 3).flops == 3e12
    assert width_run("run", Facts(ranks=(idle,)), 1).flops is None


def test_the_width_is_the_recorded_one_else_the_ranks_found() -> None:
    facts = Facts(ranks=(rank_facts({"compute": 8}),))
    wide, narrow = width_run("run", facts, 8), width_run("run", facts, None)
    assert (wide.width, wide.width_source) == (8, "recorded")
    assert any_mentions(wide.notes, "1 of", "8 ranks")
    assert (narrow.width, narrow.width_source) == (1, "counted")


def scattered(size: int | None, count: float | None, **changes: Any) -> CommsFacts:
    row = CollectiveRow(
        op="reduce_scatter", group="0", num_groups=1, num_ranks=2, dtype="Float", bytes=size,
        num_sizes=1, count_per_step=count, ns_per_step=None, wait_ns_per_step=None,
        exposed_share=None, moving_ns=1, includes_waits=False, algbw_bytes_per_s=None,
        busbw_bytes_per_s=None,
    )  # fmt: skip
    whole = CommsFacts(
        world_size=2,
        rows=(row, replace(row, op="all_gather")),
        num_rows_left_out=0,
        fits=(),
        ranks=(),
        shape=(),
    )
    return replace(whole, **changes)


@pytest.mark.parametrize(
    ("comms", "size"),
    [
        (scattered(10_000, 6), 60_000),
        (scattered(None, 6), None),
        (scattered(10_000, 6, num_rows_left_out=1), None),
        (
            scattered(
                1,
                1,
                buckets=Buckets(group="0", bytes=(5, 7), fired_ns=(0, 1), backward_ns=2, tail_ns=0),
            ),
            12,
        ),
        (
            scattered(
                1,
                1,
                buckets=Buckets(
                    group="0", bytes=(5, None), fired_ns=(0, 1), backward_ns=2, tail_ns=0
                ),
            ),
            None,
        ),
        (None, None),
    ],
)
def test_gradients_are_sized_by_buckets_or_by_what_is_scattered(
    comms: CommsFacts | None, size: int | None
) -> None:
    facts = Facts(ranks=(rank_facts({"compute": 8}),), comms=comms)
    assert width_run("run", facts, 2).gradient_bytes == size
