"""What is written ever more rarely the longer a run lasts: each doubling of its time leaves as
many lines as the time before."""

from __future__ import annotations


class Thinning:
    """Keeps each of the first entries, then every second for twice as long, every fourth, ..."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._num = self._num_kept = 0
        self.every = 1

    def keeps(self) -> bool:
        """Whether the next entry is kept."""
        self._num += 1
        if self._num % self.every:
            return False
        self._num_kept += 1
        if self._num_kept == self._most:
            self._num_kept, self.every = 0, 2 * self.every
        return True
