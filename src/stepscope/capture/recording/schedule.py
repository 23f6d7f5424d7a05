"""When recordings begin: at a step that was asked for, or at the first good moment. And which
steps are measured on the device's clock."""

from __future__ import annotations

from stepscope.protocol.options import Options


class Schedule:
    """Asked at each step's end that is looked at."""

    def __init__(self, options: Options) -> None:
        self.wanted_step: int | None = options.start_step
        """Where the next recording begins, as far as it is known."""
        self._options = options
        self._windows_left = options.num_windows
        self._moment = options.warm_up_steps
        self._next_moment = -(-4 * options.warm_up_steps // 3)
        """The next steps at which a recording may begin by itself."""

    def is_waiting(self, step: int) -> bool:
        """Whether a recording may begin with this step."""
        if self.wanted_step is None:
            return self._windows_left > 0
        return step >= self.wanted_step

    def is_due(self, step: int, trained_ns: int) -> bool:
        """Whether one begins with this step; it then counts as made.

        `trained_ns` have passed since the first step's end.
        """
        if self.wanted_step is None and not self._is_good_moment(step, trained_ns):
            return False
        self.wanted_step = None
        if self._windows_left > 0:
            self._windows_left -= 1
        if self._windows_left > 0:
            self.wanted_step = step + self._options.every_steps
        return True

    def _is_good_moment(self, step: int, trained_ns: int) -> bool:
        """A step of a row of numbers each a third or a half larger than the one before (15, 20,
        30, 40, 60, ...), so that ranks that are about equally fast choose the same."""
        while step > self._moment:
            self._moment, self._next_moment = self._next_moment, 2 * self._moment
        return step == self._moment and trained_ns >= self._options.warm_up_s * 1e9


ALL_MARKED, MARKED = 500, 10
"""Steps measured: the first ones all, then so many of every few hundred."""
SELDOM = 400
"""Steps from one such burst to the next, before it is known how long a step takes."""
BETWEEN_S = 4.0
"""Seconds from one burst to the next: who watches the run names a slow rank after a few of them."""
MIN_BETWEEN, MAX_BETWEEN = 16, 2048


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

    def adapt(self, steps_per_s: float) -> None:
        """How fast the job steps, now and then."""
        wanted, every = steps_per_s * BETWEEN_S, MIN_BETWEEN
        while 2 * every <= min(wanted, MAX_BETWEEN):
            every *= 2
        self.every = every
