"""Memory of the host that grows from step to step, by a run's samples."""

from __future__ import annotations

import pytest

from stepscope.analyses.run.host_growth import host_growth
from stepscope.core.run import HostGrowth

MB = 1_000_000


def grown(*sizes_mb: float) -> HostGrowth | None:
    return host_growth(
        [{"step": 10 * i, "rss_bytes": int(size * MB)} for i, size in enumerate(sizes_mb)]
    )


def test_memory_that_rises_all_the_time_grows() -> None:
    """Ten steps a sample, 50 MB each; the first sample is of what the job makes once."""
    growth = grown(100, *(400 + 50 * i for i in range(10)))
    assert growth is not None
    assert growth.bytes_per_step == pytest.approx(5 * MB)
    assert (growth.first_step, growth.last_step) == (10, 100)


@pytest.mark.parametrize(
    "sizes",
    [
        [400.0] * 12,
        [400 + 50 * min(i, 4) for i in range(12)],
        [400 + 0.5 * i for i in range(12)],
        [400 + 200 * (i % 2) for i in range(12)],
        [400 + 50 * i for i in range(6)],
    ],
    ids=["level", "a cache that fills", "little", "in turns", "few samples"],
)
def test_other_courses_do_not(sizes: list[float]) -> None:
    assert grown(100, *sizes) is None


def test_many_samples_are_joined() -> None:
    growth = grown(100, *(400 + i for i in range(1000)))
    assert growth is not None
    assert growth.bytes_per_step == pytest.approx(MB / 10, rel=0.01)
