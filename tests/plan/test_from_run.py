"""A measured step at other widths, against sums made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.errors import UsageError
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.from_run import (
    BY_FIT,
    BY_LINKS,
    BY_VOLUME,
    COMMS,
    MeasuredCollective,
    MeasuredRun,
    extrapolate,
)

REDUCE = MeasuredCollective(
    op="all_reduce", num_ranks=2, size_bytes=100_000_000, count=2.0, seconds=0.010, is_data=True
)
RUN = MeasuredRun(
    width=2,
    num_data=2,
    parts_s={"compute": 0.080, COMMS: 0.005, "idle_launch": 0.010},
    collectives=(REDUCE,),
)


def test_weak_scaling_keeps_compute_and_moves_more() -> None:
    made = extrapolate(RUN, [4])
    measured, wide = made.steps
    assert (measured.is_measured, wide.is_measured) == (True, False)
    # 8 ranks: 2 * 7/8 over 2 * 1/2 of the volume, 35 ms in all, of which 15 stay hidden as they
    # were.
    assert wide.width == 8
    assert wide.parts_s[COMMS] == pytest.approx(0.035 - 0.015)
    assert wide.parts_s["compute"] == 0.080
    assert wide.step_s == pytest.approx(0.110)
    assert wide.efficiency == pytest.approx(0.095 / 0.110)
    assert wide.speedup == pytest.approx(4 * 0.095 / 0.110)
    assert made.methods == (BY_VOLUME,)


def test_strong_scaling_has_less_to_hide_behind() -> None:
    wide = extrapolate(RUN, [2], is_strong=True).steps[1]
    assert wide.parts_s["compute"] == pytest.approx(0.040)
    # 30 ms of transfers, and what hid 15 is half as long.
    assert wide.parts_s[COMMS] == pytest.approx(0.030 - 0.0075)
    assert wide.parts_s["idle_launch"] == 0.010
    assert wide.speedup == pytest.approx(0.095 / wide.step_s)
    assert wide.efficiency == pytest.approx(wide.speedup / 2)


def test_a_fitted_latency_grows_with_the_ring() -> None:
    fitted = replace(REDUCE, alpha_s=1e-3, beta_bytes_per_s=100e6 / 0.008)
    # 2 steps of 1 ms and 8 ms of volume; at 8 ranks 14 steps and 14 ms.
    wide = extrapolate(replace(RUN, collectives=(fitted,)), [4]).steps[1]
    assert wide.parts_s[COMMS] == pytest.approx(2 * 0.028 - 0.015)
    assert extrapolate(replace(RUN, collectives=(fitted,)), [4]).methods == (BY_FIT,)


def test_slower_links_between_nodes_decide() -> None:
    fast = replace(REDUCE, seconds=0.0005)
    run = replace(RUN, collectives=(fast,), parts_s={"compute": 0.080, COMMS: 0.001})
    alone, linked = extrapolate(run, [8]), extrapolate(run, [8], cluster=parse_cluster("8x2xA100"))
    assert linked.methods == (BY_LINKS,)
    assert linked.steps[1].step_s > alone.steps[1].step_s
    assert any("one node" in note for note in alone.notes)
    assert not any("one node" in note for note in linked.notes)


def test_no_width_is_without_end() -> None:
    with pytest.raises(UsageError, match="more than the 10000000"):
        extrapolate(RUN, [10**7])


def test_groups_that_do_not_grow_are_kept() -> None:
    tensor = replace(REDUCE, is_data=False)
    wide = extrapolate(replace(RUN, collectives=(tensor,)), [16]).steps[1]
    assert wide.step_s == pytest.approx(RUN.step_s)
    assert wide.efficiency == pytest.approx(1.0)
    assert extrapolate(replace(RUN, collectives=(tensor,)), [16]).is_ideal
    assert not extrapolate(RUN, [16]).is_ideal


def test_fewer_ranks_have_less_to_send() -> None:
    run = replace(RUN, width=8, num_data=8, collectives=(replace(REDUCE, num_ranks=8),))
    narrow = extrapolate(run, [1], per_node=4).steps[0]
    assert narrow.width == 4
    assert narrow.parts_s[COMMS] == pytest.approx(0.005 * (3 / 4) / (7 / 8))
    alone = extrapolate(run, [1], per_node=1).steps[0]
    assert alone.parts_s[COMMS] == 0.0


def test_a_width_that_cuts_a_copy_of_the_model_is_refused() -> None:
    run = replace(RUN, width=8, num_data=2)
    with pytest.raises(UsageError, match="4 ranks can"):
        extrapolate(run, [1], per_node=2)
