"""Which steps are measured on the device's clock."""

from __future__ import annotations

ALL_MARKED, MARKED = 500, 10
"""Steps measured: the first ones all, then so many of every few hundred."""
SELDOM = 400
"""Steps from one such burst to the next, before it is known how long a step takes."""
BETWEEN_S = 4.0
"""Seconds from one burst to the next: who watches the run names a slow rank after a few of them."""
LEAST_BETWEEN, MOST_BETWEEN = 16, 2048


class Marks:
    """Bursts begin at multiples of a power of two, so that ranks that are about equally fast
    measure the same steps."""

    __slots__ = ("every",)

    def __init__(self) -> None:
        self.every = SELDOM

    def holds(self, step: int) -> bool:
        return step < ALL_MARKED or step % self.every < MARKED

    def next_look(self, step: int) -> int:
        """The next step at which a burst begins."""
        return step - step % self.every + self.every

    def pace(self, steps_per_s: float) -> None:
        """How fast the job steps, now and then."""
        wanted, every = steps_per_s * BETWEEN_S, LEAST_BETWEEN
        while 2 * every <= min(wanted, MOST_BETWEEN):
            every *= 2
        self.every = every
