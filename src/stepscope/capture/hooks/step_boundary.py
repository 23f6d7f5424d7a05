"""Which optimizer ends a step, where several do."""

from __future__ import annotations

LOST_AFTER = 50
"""Steps of another optimizer without one of ours: ours is not used any more."""
SURE_AFTER = 2
"""Times in a row that another optimizer was seen to step more rarely."""
MAX_KNOWN = 10_000
"""Optimizers remembered: a job that makes new ones all the time does not make us grow."""


class Anchor:
    """One optimizer of the loop marks its turns: the one that steps most rarely.

    A discriminator that steps five times for each step of the generator does not end the loop's
    turn; one of many optimizers that each hold one parameter does, whichever it is.
    """

    def __init__(self) -> None:
        self._anchor: int | None = None
        self._turn = 0
        self._seen: dict[int, int] = {}
        """The turn in which each other optimizer stepped last."""
        self._rarer: dict[int, int] = {}
        self._alone = 0
        """Second and later steps of other optimizers since the anchor's last."""

    def ends_step(self, optimizer: int) -> bool:
        """Whether this optimizer's step ends a turn of the loop."""
        if optimizer == self._anchor or self._anchor is None:
            self._anchor = optimizer
            self._turn += 1
            self._alone = 0
            return True
        return self._another(optimizer)

    @property
    def is_only(self) -> bool:
        """Whether no other optimizer steps beside it."""
        return not self._seen

    def _another(self, optimizer: int) -> bool:
        before = self._seen.get(optimizer)
        is_rarer = before is not None and self._turn - before > 1
        self._rarer[optimizer] = self._rarer.get(optimizer, 0) + 1 if is_rarer else 0
        self._alone += before == self._turn
        self._seen[optimizer] = self._turn
        if len(self._seen) > MAX_KNOWN:
            self._seen.clear()
            self._rarer.clear()
        if self._alone < LOST_AFTER and self._rarer.get(optimizer, 0) < SURE_AFTER:
            return False
        self._anchor, self._alone = optimizer, 0
        self._seen.clear()
        self._rarer.clear()
        return True
