"""Losses, memory and clocks, planted."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from stepscope.live.alarms.clock import RankClock
from stepscope.live.alarms.episodes import Episodes, Trouble
from stepscope.live.alarms.loss import LossSpikes, RankLoss, losses_of
from stepscope.live.alarms.memory import NUM_SAMPLES, WARM_UP_S, RankMemory
from stepscope.live.shapes.alert import OVER, RAISED
from tests.wording import mentions

GIB, MIB = 1 << 30, 1 << 20


class Losses:
    """Of several ranks, eight a second."""

    def __init__(self, num_ranks: int = 4, spread: float = 0.3) -> None:
        self.ranks = [RankLoss(rank) for rank in range(num_ranks)]
        self.spikes, self.rng, self.spread = LossSpikes(), random.Random(5), spread
        self.at_s = 0.0

    def go(self, seconds: int, *levels: float) -> list[Trouble]:
        troubles = []
        for _ in range(seconds):
            for number, rank in enumerate(self.ranks):
                level = levels[min(number, len(levels) - 1)]
                losses = [
                    (self.at_s + i / 8, level * math.exp(self.rng.gauss(0, self.spread)))
                    for i in range(8)
                ]
                troubles += rank.add(losses, 7)
            self.at_s += 1
            troubles += self.spikes.look(self.ranks, self.at_s, 7)
        return troubles


def test_a_spike_is_told_of_the_ranks_that_have_it_and_ends() -> None:
    losses = Losses()
    assert losses.go(60, 2.0) == []
    (trouble,) = losses.go(12, 8.0)
    assert (trouble.kind, trouble.ranks) == ("loss-spike", (0, 1, 2, 3))
    assert trouble.since_s is not None
    assert abs(trouble.since_s - 60) <= 1
    assert [each.ended_s is not None for each in losses.go(20, 2.0)] == [True]
    (trouble,) = losses.go(12, 2.0, 2.0, 9.0, 2.0)
    assert trouble.ranks == (2,)


def test_a_loss_that_falls_or_only_wanders_is_no_spike() -> None:
    losses = Losses(2)
    for level in (80.0, 30.0, 10.0, 4.0, 2.0, 1.5, 1.2):
        assert losses.go(20, level) == []
    assert losses.go(20, 1.5) == [], "a quarter more"
    assert Losses(1, 0.4).go(900, 1.0) == []


def test_a_loss_below_zero_may_rise() -> None:
    losses = Losses(1, 0.01)
    assert losses.go(30, -2.0) == []
    assert [trouble.kind for trouble in losses.go(12, -0.5)] == ["loss-spike"]


def test_nan_needs_two_in_a_row_and_a_number_ends_it() -> None:
    rank = RankLoss(3)
    assert rank.add([(0.0, 1.0), (1.0, math.nan), (2.0, 1.0)], 5) == []
    (trouble,) = rank.add([(3.0, math.inf), (4.0, math.nan), (5.0, math.nan)], 9)
    assert (trouble.kind, trouble.ranks, trouble.since_s) == ("loss-nan", (3,), 3.0)
    (over,) = rank.add([(6.0, 1.0)], 10)
    assert over.ended_s == 6.0


def test_losses_are_read_from_strangers_lines() -> None:
    pairs: list[Any] = [
        [1, 0.5],
        [2, "nan"],
        [3, "-inf"],
        [4, "rm"],
        [5],
        "x",
        [None, 1],
        [6, True],
    ]
    read = losses_of({"losses": pairs})
    assert [at_ns for at_ns, _ in read] == [1, 2, 3]
    assert math.isnan(read[1][1])
    assert losses_of({"losses": "x"}) == losses_of({}) == []


def host(size: int, **left: int) -> dict[str, Any]:
    return {"rss_bytes": size, **left}


def test_memory_that_is_full_in_minutes_is_told_with_its_limit() -> None:
    memory, troubles = RankMemory(1), []
    for second in range(60):
        grown = max(0, second - 40) * 30 * MIB
        left = {"address_space_left_bytes": 6 * GIB - grown, "memory_available_bytes": 20 * GIB}
        troubles += [(second, each) for each in memory.add(second, host(GIB + grown, **left))]
    ((second, trouble),) = troubles
    assert (trouble.kind, trouble.ranks) == ("host-memory", (1,))
    assert second <= 40 + NUM_SAMPLES + 1
    assert mentions(trouble.words, "address space", "full")


@pytest.mark.parametrize(
    "size_of",
    [
        lambda second: GIB,
        lambda second: GIB + (300 * MIB if second > 40 else 0),
        lambda second: GIB + second * MIB // 4,
        lambda second: GIB + second % 10 * 30 * MIB,
    ],
    ids=["even", "once", "too slow to matter", "a saw-tooth"],
)
def test_memory_that_does_not_run_out_is_no_trouble(size_of: Any) -> None:
    memory = RankMemory(0)
    for second in range(200):
        size = size_of(second)
        left = 6 * GIB - size
        assert memory.add(second, host(size, cgroup_memory_left_bytes=left)) == []


def test_what_a_job_takes_when_it_begins_is_no_leak() -> None:
    memory = RankMemory(0)
    for second in range(int(WARM_UP_S)):
        size = GIB + second * 200 * MIB
        assert memory.add(second, host(size, memory_available_bytes=8 * GIB - size)) == []


def device(reserved: int, used: int | None = None, retries: int = 0) -> dict[str, Any]:
    driver = {"device": 0, "gpu_memory_total_bytes": 80 * GIB}
    if used is not None:
        driver["gpu_memory_used_bytes"] = used
    allocator = {"device": 0, "reserved_bytes": reserved, "num_alloc_retries": retries}
    return {"devices": [driver], "allocators": [allocator]}


def test_device_memory_counts_what_other_processes_hold() -> None:
    memory, troubles = RankMemory(0), []
    for second in range(50):
        reserved = 10 * GIB + max(0, second - 30) * 256 * MIB
        used = reserved + 60 * GIB if second % 10 == 0 else None
        troubles += memory.add(second, device(reserved, used))
    assert [trouble.kind for trouble in troubles] == ["device-memory"]
    assert mentions(troubles[0].words, "device's memory", "full")


def test_an_allocator_that_asks_again_is_full() -> None:
    memory = RankMemory(0)
    assert memory.add(0, device(70 * GIB, retries=2)) == []
    (trouble,) = memory.add(1, device(70 * GIB, retries=5))
    assert mentions(trouble.words, "cache", "3 times")


def clock(mhz: float, util: float = 98, *reasons: str) -> dict[str, Any]:
    each = {"device": 0, "sm_clock_mhz": mhz, "gpu_util_percent": util}
    return {"devices": [each | {"throttle_reasons": list(reasons)}]}


def test_a_clock_that_falls_at_work_is_told_and_its_recovery() -> None:
    ranks, troubles = RankClock(2), []
    for second in range(120):
        mhz = 1500 if 40 <= second < 80 else 1980 - 15 * (second % 3)
        troubles += [(second, each) for each in ranks.add(second, clock(mhz))]
    (first, trouble), (last, _) = troubles
    assert (trouble.kind, trouble.ranks) == ("clock", (2,))
    assert "runs at 1500 MHz, 1965 before" in trouble.words
    assert first <= 46
    assert last <= 87


def test_an_idle_device_has_no_clock_to_judge() -> None:
    ranks = RankClock(0)
    for second in range(100):
        sample = clock(1980) if second < 50 else clock(345, 3, "gpu_idle")
        assert ranks.add(second, sample) == []


def test_what_the_driver_says_is_told_after_three_samples() -> None:
    ranks, troubles = RankClock(0), []
    for second in range(10):
        reasons = ["hw_thermal_slowdown"] if second >= 5 else ["sw_power_cap"]
        troubles += [(second, each) for each in ranks.add(second, clock(1900, 90, *reasons))]
    ((second, trouble),) = troubles
    assert second == 7
    assert "hw_thermal_slowdown" in trouble.words


def test_ranks_with_one_fault_are_one_alert_and_the_first_is_named() -> None:
    episodes = Episodes()

    def nan(rank: int, since_s: float, ended_s: float | None = None) -> Trouble:
        return Trouble(
            kind="loss-nan", ranks=(rank,), words="nan", since_s=since_s, ended_s=ended_s
        )

    assert episodes.add([nan(1, 10.3)], 11) == ()
    assert episodes.add([nan(2, 10.1)], 12) == ()
    (alert,) = episodes.add([], 13)
    assert (alert.state, alert.ranks) == (RAISED, (1, 2))
    assert alert.words == "ranks 1-2, first rank 2: nan"
    assert alert.action
    assert episodes.add([nan(1, 10.3, 20.0)], 20) == (), "rank 2 has it still"
    (over,) = episodes.add([nan(2, 10.1, 21.0)], 21)
    assert (over.state, over.number) == (OVER, alert.number)
    assert over.words.startswith("over after 11 s. ")


def test_a_fault_that_comes_again_and_again_is_told_ever_more_rarely() -> None:
    episodes, num = Episodes(), 0
    for second in range(0, 3600, 10):
        trouble = Trouble(kind="clock", ranks=(0,), words="slow", since_s=float(second))
        num += len(episodes.add([trouble], second))
        ended = Trouble(
            kind="clock", ranks=(0,), words="slow", since_s=float(second), ended_s=second + 5.0
        )
        episodes.add([ended], second + 5)
    assert 4 <= num <= 8
