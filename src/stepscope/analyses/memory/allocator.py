"""PyTorch's caching allocator, played again with a batch of another size under a limit of memory.

What tensors hold is not what fits: free blocks that are too small for the next request stay
reserved. The rules are those of c10/cuda/CUDACachingAllocator.cpp, without expandable segments: a
request takes the smallest free block that holds it, and cuts it where enough is left; else a
segment is asked for; at the limit all segments that are wholly free are given back first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

ROUND = 512
SMALL = 1 << 20
"""Bytes up to which a block is from the small pool, in segments of SMALL_SEGMENT."""
SMALL_SEGMENT, MIDDLE_SEGMENT, MIDDLE = 2 << 20, 20 << 20, 10 << 20
"""Requests below MIDDLE share segments of MIDDLE_SEGMENT."""
LARGE_STEP = 2 << 20
"""Larger ones are rounded up to this."""


class OutOfRoom(Exception):  # noqa: N818
    """No segment could be had."""


class _Block:
    __slots__ = ("after", "before", "is_free", "is_small", "number", "size")

    def __init__(self, number: int, size: int, *, is_small: bool) -> None:
        self.number, self.size, self.is_small, self.is_free = number, size, is_small, False
        self.before: _Block | None = None
        self.after: _Block | None = None


class Allocator:
    """One device's."""

    def __init__(self, limit_bytes: float) -> None:
        self.limit_bytes = limit_bytes
        self.reserved = self.most_reserved = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        """Size and number of each free block per pool (small or not), the smallest first."""
        self._blocks: dict[int, _Block] = {}
        self._num = 0

    def malloc(self, requested: int) -> _Block:
        """OutOfRoom where it does not fit."""
        size = max(-(-requested // ROUND) * ROUND, ROUND)
        is_small = size <= SMALL
        free = self._free[is_small]
        at = bisect_left(free, (size, 0))
        if at == len(free):
            block = self._segment(size, is_small=is_small)
        else:
            block = self._blocks[free.pop(at)[1]]
            block.is_free = False
        left = block.size - size
        if left >= ROUND if is_small else left > SMALL:
            self._cut(block, size)
        return block

    def free(self, block: _Block) -> None:
        """Free a block and join its free neighbours with it."""
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                free = self._free[other.is_small]
                del free[bisect_left(free, (other.size, other.number))]
                if other is block.before:
                    block.before = other.before
                    if other.before is not None:
                        other.before.after = block
                else:
                    block.after = other.after
                    if other.after is not None:
                        other.after.before = block
                block.size += other.size
                del self._blocks[other.number]
        block.is_free = True
        insort(self._free[block.is_small], (block.size, block.number))

    def _segment(self, size: int, *, is_small: bool) -> _Block:
        whole = SMALL_SEGMENT if is_small else MIDDLE_SEGMENT
        if not is_small and size >= MIDDLE:
            whole = -(-size // LARGE_STEP) * LARGE_STEP
        if self.reserved + whole > self.limit_bytes:
            self._give_back()
        if self.reserved + whole > self.limit_bytes:
            raise OutOfRoom
        self.reserved += whole
        self.most_reserved = max(self.most_reserved, self.reserved)
        return self._new(whole, is_small=is_small)

    def _new(self, size: int, *, is_small: bool) -> _Block:
        self._num += 1
        block = self._blocks[self._num] = _Block(self._num, size, is_small=is_small)
        return block

    def _cut(self, block: _Block, size: int) -> None:
        rest = self._new(block.size - size, is_small=block.is_small)
        block.size = size
        rest.before, rest.after, rest.is_free = block, block.after, True
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        insort(self._free[rest.is_small], (rest.size, rest.number))

    def _give_back(self) -> None:
        for is_small, free in self._free.items():
            kept = []
            for size, number in free:
                block = self._blocks[number]
                if block.before is None and block.after is None:
                    self.reserved -= size
                    del self._blocks[number]
                else:
                    kept.append((size, number))
            self._free[is_small] = kept


def reserved_bytes(
    changes: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    limit_bytes: float,
) -> int | None:
    """The most that is reserved by allocations (their number, 1) and frees (their number, -1) in
    this order; None where they do not fit."""
    allocator = Allocator(limit_bytes)
    held: dict[int, _Block] = {}
    try:
        for number, sign in changes:
            if sign > 0:
                held[number] = allocator.malloc(sizes[number])
            elif number in held:
                allocator.free(held.pop(number))
    except OutOfRoom:
        return None
    return allocator.most_reserved
