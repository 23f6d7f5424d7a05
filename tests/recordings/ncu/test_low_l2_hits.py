"""low-l2-hits: data that are used again and come from DRAM again; passes that read once are left
alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.memory import MemoryRecord
from stepscope.recordings.ncu.low_l2_hits import advise
from tests.recording_texts import memory_report
from tests.rules.kernels import beside, healthy_gemm, kernel, recorded
from tests.wording import mentions

GATHER: dict[str, Any] = {
    "dram_throughput": 0.8832,
    "l2_throughput": 0.962,
    "l2_served": 0.5514,
    "l1_throughput": 0.1879,
    "compute_throughput": 0.3169,
    "l2_hits": 0.1767,
    "l2_size_bytes": 62_914_560,
    "l2_read_bytes": 1_256_535_552.0,
    "dram_read_bytes": 937_089_536.0,
    "dram_write_bytes": 2_697_216.0,
}
"""Recorded on an H200: random rows of a buffer of 157 MB, each read 8 times."""
COPY: dict[str, Any] = GATHER | {
    "dram_throughput": 0.8621,
    "l2_throughput": 0.9233,
    "l2_served": 0.4328,
    "l2_read_bytes": 268_435_456.0,
    "dram_read_bytes": 268_444_416.0,
    "dram_write_bytes": 244_693_504.0,
}
"""Recorded on the same: a copy in order."""
ROW_BY_ROW: dict[str, Any] = GATHER | {
    "l1_throughput": 0.211,
    "compute_throughput": 0.1367,
    "dram_throughput": 0.9419,
    "l2_throughput": 0.9631,
    "l2_served": 0.5646,
    "l2_hits": 0.1584,
    "l2_read_bytes": 3_019_898_880.0,
    "dram_read_bytes": 2_013_952_512.0,
    "dram_write_bytes": 2_487_040.0,
}
"""Recorded on the same: blocks that share a strip of one operand and sweep the other, four times
the L2, 8 times. 445 us."""
COLUMN_BY_COLUMN: dict[str, Any] = ROW_BY_ROW | {
    "l1_throughput": 0.3606,
    "compute_throughput": 0.2367,
    "dram_throughput": 0.2048,
    "l2_throughput": 0.8744,
    "l2_served": 0.8656,
    "l2_hits": 0.8063,
    "dram_read_bytes": 252_189_184.0,
    "dram_write_bytes": 2_411_520.0,
}
"""The same reads in the other order: 258 us."""


def held(gigabytes: float, *kernels: Any) -> Auxiliary:
    record = MemoryRecord(format="memory-stats", label="s", peak_bytes=round(gigabytes * 1e9))
    return replace(beside(*kernels), memory=memory_report(record))


def test_recorded_gather_may_read_again() -> None:
    (advice,) = advise(beside(kernel(**GATHER)))
    assert advice.code == "low-l2-hits"
    assert mentions(advice.summary, "same data")
    assert advice.action.startswith("if ")
    (why,) = advice.evidence
    assert mentions(why, "k (100%)", "0.94 GB read", "88% of its peak", "1.3 times that")


def test_a_product_in_a_bad_order_speaks_though_two_thirds_of_its_reads_hit() -> None:
    """One operand shared by the blocks of a row, the other, twice as wide a tile, different for
    each."""
    bad = GATHER | {
        "l2_hits": 0.66,
        "l2_read_bytes": 2.9e9,
        "dram_read_bytes": 1e9,
        "dram_throughput": 0.9,
    }
    assert len(advise(beside(kernel(**bad)))) == 1


def test_recorded_blocks_in_a_bad_order_speak_and_in_a_good_one_do_not() -> None:
    (advice,) = advise(beside(kernel(**ROW_BY_ROW)))
    (why,) = advice.evidence
    assert mentions(why, "k (100%)", "2.01 GB read", "94% of its peak", "1.5 times that")
    assert advise(beside(kernel(**COLUMN_BY_COLUMN))) == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"l2_read_bytes": 1.03 * 937_089_536},  # Every byte once.
        {"dram_throughput": 0.4},  # DRAM has room.
        {"tensor_pipe": 0.7},
        {"l2_served": 0.8},  # The L2 has none.
        {"compute_throughput": 0.85},
        {
            "dram_read_bytes": 50e6,
            "l2_read_bytes": 200e6,
        },  # It fits the L2: whatever came, came for the first time.
        {"dram_write_bytes": 500e6},  # A pass with a small operand beside.
        {"dram_throughput": None},
        {"dram_read_bytes": None},
        {"dram_write_bytes": None},
        {"l2_read_bytes": None},
        {"l2_served": None},
        {"l2_size_bytes": None},
    ],
)
def test_silent_for_a_pass_a_roof_elsewhere_and_what_was_not_measured(
    fields: dict[str, object],
) -> None:
    assert advise(beside(kernel(**(GATHER | fields)))) == ()


def test_recorded_copy_and_healthy_gemm() -> None:
    assert advise(beside(kernel(**COPY))) == ()
    assert advise(beside(healthy_gemm())) == ()


def test_reading_more_than_there_is_proves_it() -> None:
    """Several passes over a large buffer: nothing is ever found in the L2, and the memory recording
    tells how large it can be."""
    passes = kernel(
        **(COPY | {"dram_read_bytes": 8e9, "l2_read_bytes": 8e9, "dram_write_bytes": 1e9})
    )
    (advice,) = advise(held(2.0, passes))
    assert mentions(advice.summary, "DRAM several times")
    (why,) = advice.evidence
    assert mentions(why, "k (100%)", "8.00 GB read", "86% of its peak", "held 2.00 GB")
    assert advise(held(8.0, passes)) == ()
    assert advise(beside(passes)) == ()


def test_recorded_step_has_none() -> None:
    assert advise(recorded()) == ()
