"""When recordings begin: at a step that was asked for, or at the first good moment."""

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
