"""What failures cost: Daly's interval is the best there is, and the goodput what a run loses."""

from __future__ import annotations

import math
import random

import pytest

from stepscope.plan.failures import best_interval_s, goodput


@pytest.mark.parametrize("write_s", [1.0, 30.0, 600.0])
@pytest.mark.parametrize("mtbf_s", [1e4, 1e5, 1e6])
def test_no_other_interval_keeps_more(write_s: float, mtbf_s: float) -> None:
    best = best_interval_s(write_s, mtbf_s)
    kept = goodput(best, write_s, 300.0, mtbf_s)
    assert 0 < kept < 1
    for times in (0.25, 0.5, 0.8, 1.25, 2.0, 4.0):
        assert goodput(times * best, write_s, 300.0, mtbf_s) < kept * (1 + 1e-6)
    # Young's, to first order.
    assert best == pytest.approx(math.sqrt(2 * write_s * mtbf_s), rel=0.4)


def test_the_goodput_is_what_a_run_with_failures_keeps() -> None:
    """Played: work, checkpoints and restarts, with failures at any time."""
    interval, write, restart, mtbf = 600.0, 30.0, 200.0, 5000.0
    chance = random.Random(3)
    spent, parts = 0.0, 4000
    for _ in range(parts):
        while True:
            until = chance.expovariate(1 / mtbf)
            if until >= interval + write:
                spent += interval + write
                break
            spent += until
            # A restart can fail too, and then begins again.
            while (until := chance.expovariate(1 / mtbf)) < restart:
                spent += until
            spent += restart
    assert parts * interval / spent == pytest.approx(
        goodput(interval, write, restart, mtbf), rel=0.01
    )


def test_where_nothing_lives_long_enough_nothing_is_kept() -> None:
    assert goodput(1e6, 10.0, 10.0, 1000.0) == 0.0
    assert best_interval_s(100.0, 10.0) == 10.0
