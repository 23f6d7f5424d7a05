"""The caching allocator, played again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.memory.allocator import (
    MIDDLE_SEGMENT,
    SMALL_SEGMENT,
    Allocator,
    OutOfRoom,
    reserved_bytes,
)

MB = 1 << 20
SIZES = st.one_of(st.integers(1, 2 * MB), st.integers(1, 200 * MB))


def test_small_and_middle_requests_share_segments() -> None:
    allocator = Allocator(1 << 40)
    allocator.malloc(1000)
    assert allocator.reserved == SMALL_SEGMENT
    allocator.malloc(2 * MB)
    assert allocator.reserved == SMALL_SEGMENT + MIDDLE_SEGMENT
    allocator.malloc(3 * MB)
    assert allocator.reserved == SMALL_SEGMENT + MIDDLE_SEGMENT


def test_a_free_block_is_taken_again_and_neighbours_are_joined() -> None:
    allocator = Allocator(1 << 40)
    blocks = [allocator.malloc(5 * MB) for _ in range(4)]
    assert allocator.reserved == MIDDLE_SEGMENT
    for block in blocks[1:3]:
        allocator.free(block)
    allocator.malloc(9 * MB)
    assert allocator.reserved == MIDDLE_SEGMENT


def test_at_the_limit_what_is_wholly_free_is_given_back() -> None:
    allocator = Allocator(100 * MB)
    allocator.free(allocator.malloc(60 * MB))
    allocator.malloc(80 * MB)
    assert allocator.reserved == 80 * MB


def test_what_is_free_in_pieces_does_not_serve() -> None:
    allocator = Allocator(100 * MB)
    kept = [allocator.malloc(20 * MB) for _ in range(5)]
    for block in kept[::2]:
        allocator.free(block)
    # Each piece is a segment of its own: given back, 60 MB make room for one of 40.
    allocator.malloc(40 * MB)
    with pytest.raises(OutOfRoom):
        allocator.malloc(30 * MB)


@given(st.lists(st.tuples(SIZES, st.integers(0, 30)), max_size=60))
def test_no_less_is_reserved_than_is_held(requests: list[tuple[int, int]]) -> None:
    """Each is freed so many requests later."""
    sizes = [size for size, _ in requests]
    moments = [(2.0 * number, 1, number) for number in range(len(requests))]
    moments += [(2.0 * (at + later) + 1, -1, at) for at, (_, later) in enumerate(requests)]
    changes = [(number, sign) for _, sign, number in sorted(moments)]
    held = most = 0
    for number, sign in changes:
        held += sign * sizes[number]
        most = max(most, held)
    needed = reserved_bytes(changes, sizes, 1 << 50)
    assert needed is not None
    assert needed >= most
    assert reserved_bytes(changes, sizes, needed) == needed
    if most:
        assert reserved_bytes(changes, sizes, most - 1) is None
