"""Steps that no optimizer of torch ends: backward passes or replayed graphs do."""

from __future__ import annotations

MIN_INSTEAD = 200
PATIENCE_NS, PATIENT_STEPS = 2_000_000_000, 10
"""Backward passes or replays, and time, without any optimizer step, from which these are taken
for steps: more than a step accumulates, and longer than it takes."""


class WithoutOptimizer:
    """Whether it is so, from what came since the last optimizer step."""

    # Touched by every step: see Session.
    __slots__ = ("_first_ns", "_least", "_usual_ns", "is_so", "num")

    def __init__(self) -> None:
        self.is_so = False
        self.num = 0
        """Graphs replayed, and passes of steps before this one."""
        self._least = MIN_INSTEAD
        self._first_ns = 0
        self._usual_ns: int | None = None
        """A step that an optimizer ended."""

    def begins(self, num: int, now: int, last_ns: int) -> bool:
        """Whether so many passes and replays are steps from now on."""
        if num < self._least:
            return False
        self._first_ns = self._first_ns or now
        since = max(last_ns, self._first_ns)
        self.is_so = now - since >= max(PATIENCE_NS, PATIENT_STEPS * (self._usual_ns or 0))
        return self.is_so

    def is_over(self, num: int, last_dur_ns: int | None) -> bool:
        """An optimizer stepped: whether many passes were one step after all. It takes twice as many
        before they are taken for steps again."""
        was_so, self.is_so = self.is_so, False
        if was_so:
            self._least = 2 * max(num, self._least)
        elif last_dur_ns is not None:
            self._usual_ns = last_dur_ns
        self.forget()
        return was_so

    def forget(self) -> None:
        self.num = self._first_ns = 0
