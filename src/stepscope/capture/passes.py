"""The backward passes of a step: how many they are, and what they take together."""

from __future__ import annotations

MAX_PASSES = 1_000
"""Kept one by one; beyond that those there are are added up."""


class Passes:
    """Backward passes of one step, in the order of their ends."""

    def __init__(self) -> None:
        self._passes: list[tuple[int, int]] = []
        self._folded_ns = self._num_folded = 0

    def __len__(self) -> int:
        return self._num_folded + len(self._passes)

    def add(self, begun: int, ended: int) -> None:
        self._passes.append((begun, ended))
        if len(self._passes) > MAX_PASSES:
            self.fold()

    def fold(self) -> tuple[int, int]:
        """The time of all of them, and their number."""
        if self._passes:
            spent_ns, num = outermost(self._passes)
            self._folded_ns += spent_ns
            self._num_folded += num
            self._passes = []
        return self._folded_ns, self._num_folded

    def drop_since(self, begun: int) -> None:
        """Drop passes that began later: they are inside another kind of call, which has their
        time."""
        while self._passes and self._passes[-1][0] >= begun:
            self._passes.pop()

    def clear(self) -> None:
        self._folded_ns = self._num_folded = 0
        if self._passes:
            self._passes = []


def outermost(passes: list[tuple[int, int]]) -> tuple[int, int]:
    """The time of these backward passes, and how many they are.

    One inside another is a recomputed part's own: it ends first, and the one around it has its time
    too.
    """
    if len(passes) == 1:
        return passes[0][1] - passes[0][0], 1
    outer: list[tuple[int, int]] = []
    for begun, ended in passes:
        while outer and outer[-1][0] >= begun:
            outer.pop()
        outer.append((begun, ended))
    return sum([ended - begun for begun, ended in outer]), len(outer)
