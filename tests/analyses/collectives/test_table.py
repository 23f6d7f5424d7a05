"""Bytes, times and bandwidths of collectives: by hand on made-up jobs, and from the raw text of
public traces."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest

from stepscope.analyses.collectives.group_families import Families
from stepscope.analyses.collectives.matching import match
from stepscope.analyses.collectives.records import collective_records_of
from stepscope.analyses.collectives.table import gather_entries, link_fits, table
from stepscope.analyses.rank_context import build_context
from stepscope.core.comms import CollectiveRecords, CollectiveRow
from stepscope.readers.cache import read_trace
from tests.builders import source
from tests.rank_records import MS, Call, collective_records
from tests.shared_data import SHARED, lab_trace, needs_shared, unpacked


def rows_of(*rank_records: CollectiveRecords) -> list[CollectiveRow]:
    for one in rank_records:
        one.self_check()
    matched, families = match(rank_records), Families(rank_records)
    return [
        row for _, row in table(gather_entries(rank_records, matched, families), matched, families)
    ]


def recorded(path: Path) -> CollectiveRecords:
    return collective_records_of(build_context(read_trace(source(path), use_cache=False), None), 0)


def raw_kernels(path: Path, elements: int) -> list[dict[str, Any]]:
    """NCCL kernels with so many elements, as the file has them, by time."""
    events = msgspec.json.decode(unpacked(path))["traceEvents"]
    found = [
        e
        for e in events
        if e.get("cat") == "kernel" and e.get("args", {}).get("In msg nelems") == elements
    ]
    return sorted(found, key=lambda e: e["ts"])


def test_bandwidth_counts_from_the_last_arrival() -> None:
    early = collective_records(0, [Call(at=10, end=40, bytes=100_000_000, exposed=0.5)])
    late = collective_records(1, [Call(at=30, end=40, bytes=100_000_000, exposed=0.5)])
    (row,) = rows_of(early, late)
    assert (row.op, row.num_ranks, row.bytes, row.count_per_step) == (
        "all_reduce",
        2,
        100_000_000,
        1.0,
    )
    assert row.moving_ns == 10 * MS
    assert not row.includes_waits
    assert row.algbw_bytes_per_s == pytest.approx(10e9)
    assert row.busbw_bytes_per_s == pytest.approx(10e9)  # 2 (n - 1) / n is 1 for two ranks
    assert row.wait_ns_per_step == pytest.approx(10 * MS)  # 20 ms on one of two ranks
    assert row.ns_per_step == pytest.approx(20 * MS)
    assert row.exposed_share == pytest.approx(0.5)


def test_one_rank_alone_includes_its_waits() -> None:
    (row,) = rows_of(
        collective_records(
            0, [Call(at=10, end=40, ranks=tuple(range(4)), bytes=30_000_000)], world_size=4
        )
    )
    assert row.includes_waits
    assert row.wait_ns_per_step is None
    assert row.algbw_bytes_per_s == pytest.approx(1e9)
    assert row.busbw_bytes_per_s == pytest.approx(1.5e9)


def test_two_ranks_of_many_are_not_the_whole_group() -> None:
    calls = [Call(at=10, end=40, group="", ranks=(), size=64)]
    (row,) = rows_of(
        collective_records(0, calls, world_size=64), collective_records(1, calls, world_size=64)
    )
    assert row.includes_waits


def test_groups_alike_share_a_row_and_the_slow_one_is_named() -> None:
    fast, slow = (
        Call(at=10, end=20, group="1", ranks=(0, 1)),
        Call(at=10, end=50, group="2", ranks=(2, 3)),
    )
    every = Call(at=60, end=70, group="0", ranks=(0, 1, 2, 3))
    rank_records = [
        collective_records(rank, [fast if rank < 2 else slow, every], world_size=4)
        for rank in range(4)
    ]
    pairs = next(row for row in rows_of(*rank_records) if row.num_ranks == 2)
    assert pairs.num_groups == 2
    assert pairs.slowest_group == "2-3"
    assert pairs.slowest_busbw_bytes_per_s == pytest.approx((1 << 20) / 0.040)


def test_all_to_alls_of_many_sizes_are_one_row() -> None:
    a = [
        Call(at=10, end=20, op="all_to_all", bytes=3_000_000),
        Call(at=30, end=40, op="all_to_all", bytes=1_000_000),
    ]
    b = [
        Call(at=10, end=20, op="all_to_all", bytes=1_000_000),
        Call(at=30, end=40, op="all_to_all", bytes=1_000_000),
    ]
    (row,) = rows_of(collective_records(0, a), collective_records(1, b))
    assert row.count_per_step == 2
    assert row.num_sizes == 2
    assert row.imbalance == pytest.approx((1.5 + 1.0) / 2)
    assert row.algbw_bytes_per_s == pytest.approx(3_000_000 / 0.020)


def test_recorded_splits_tell_the_imbalance() -> None:
    (row,) = rows_of(collective_records(0, [Call(at=10, end=20, op="all_to_all", uneven=1.75)]))
    assert row.imbalance == 1.75


def test_fit_finds_latency_and_bandwidth() -> None:
    sizes = (1_000_000, 4_000_000, 16_000_000)
    # 1 ms a step, 2 GB/s over the bus, two ranks: 2 steps, volume 1.
    calls = [
        Call(at=100 * i, end=100 * i + 2 + size / 2e6, bytes=size)
        for i, size in enumerate(sizes, 1)
    ]
    rank_records = [collective_records(0, calls), collective_records(1, calls)]
    matched, families = match(rank_records), Families(rank_records)
    (found,) = link_fits(table(gather_entries(rank_records, matched, families), matched, families))
    assert found.alpha_ns == pytest.approx(MS, rel=1e-3)
    assert found.beta_bytes_per_s == pytest.approx(2e9, rel=1e-3)
    assert found.goodness > 0.999
    assert found.worst < 1e-3
    assert found.num_sizes == 3


def test_hand_check_of_two_ranks() -> None:
    path = lab_trace("ranks2/ddp_straggler.slow.rank0")
    rows = {row.bytes: row for row in rows_of(recorded(path)) if row.op == "all_reduce"}
    assert set(rows) == {4 * n for n in (20_849_152, 16_384_000, 7_350_272, 7_349_760)}
    measured_us = median(kernel["dur"] for kernel in raw_kernels(path, 20_849_152)[1:])
    assert measured_us == pytest.approx(44_059.663)
    row = rows[83_396_608]
    assert row.moving_ns == pytest.approx(measured_us * 1e3, abs=2)
    assert row.busbw_bytes_per_s == pytest.approx(83_396_608 / 44_059_663e-9, rel=1e-6)
    assert (row.num_ranks, row.count_per_step, row.dtype) == (2, 1.0, "fp32")


@needs_shared
def test_hand_checks_of_public_traces() -> None:
    """A ResNet on eight MI300, and collectives that only the ranges around them name."""
    path = SHARED / "public" / "tracelens" / "mi300.resnet_act_checkpoint.json.gz"
    rows = {row.bytes: row for row in rows_of(recorded(path)) if row.op == "all_reduce"}
    assert set(rows) == {2 * 2_873_320, 2 * 8_816_192}
    measured_us = median(kernel["dur"] for kernel in raw_kernels(path, 8_816_192)[1:])
    row = rows[17_632_384]
    assert row.algbw_bytes_per_s == pytest.approx(17_632_384 / (measured_us * 1e-6), rel=1e-6)
    assert row.busbw_bytes_per_s == pytest.approx(17_632_384 / 8_932_807e-9 * 14 / 8, rel=1e-6)
    path = SHARED / "public" / "hta" / "trace_filter.sampled_rank-0.json.gz"
    named = {(row.op, row.bytes): row for row in rows_of(recorded(path))}
    gather = named[
        "all_gather", 1_073_741_824
    ]  # c10d::_allgather_base_ of 16777216 into 1073741824 signed chars
    assert gather.num_ranks == 64
    assert gather.busbw_bytes_per_s == pytest.approx(1_073_741_824 / 0.063644 * 63 / 64, rel=1e-6)
    exchange = named["all_to_all", 419_430_400]  # the kernel itself is called SendRecv
    assert exchange.algbw_bytes_per_s == pytest.approx(419_430_400 / 0.067827, rel=1e-6)
    assert exchange.busbw_bytes_per_s is None  # how many ranks share it was not recorded
    assert named["all_reduce", 4 * 26_258_430].count_per_step == 1.0
