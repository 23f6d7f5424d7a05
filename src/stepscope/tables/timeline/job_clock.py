"""All ranks of a job on one clock, for a timeline that shows them together."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepscope.analyses.collectives.matching import match, named_ranks
from stepscope.core.comms import CollectiveRecords, Matched


class RankClock(Struct, frozen=True, kw_only=True):
    """One rank's own clock, and the collectives that tie it to the others'."""

    rank: int
    base_ns: int
    first_ns: int
    last_ns: int
    """The last of its events, by its own clock from its base."""
    collective_records: CollectiveRecords | None


class Aligned(Struct, frozen=True, kw_only=True):
    """Where each rank stands on the one clock."""

    shift_ns: tuple[int, ...]
    """Nanoseconds that added to each head's times give nanoseconds from the file's origin."""
    origin_wall_ns: int
    """The wall clock of the reference rank at the origin."""
    matched: Matched | None
    notes: tuple[str, ...]


def align(heads: Sequence[RankClock], room_ns: int = 0) -> Aligned:
    """Align by the ends of the collectives that ranks share, else by their wall clocks. The origin
    lies `room_ns` before all events."""
    assert heads
    reference = min(heads, key=lambda head: head.rank)
    # Without a base on both sides two recordings' times say nothing about each other,
    # and are taken as they are.
    by_wall = {
        head.rank: head.base_ns - reference.base_ns if head.base_ns and reference.base_ns else 0
        for head in heads
    }
    moved = dict(by_wall)
    rank_records = [
        head.collective_records for head in heads if head.collective_records is not None
    ]
    is_one_job = len(by_wall) == len(heads)
    matched = match(rank_records) if len(rank_records) > 1 and is_one_job else None
    if matched is not None:
        from_lowest = by_wall[matched.ranks[0]]
        moved |= {rank: offset + from_lowest for rank, offset in matched.offset_ns.items()}
    shifts = [
        moved[head.rank] if is_one_job else head.base_ns - reference.base_ns for head in heads
    ]
    first = min(head.first_ns + shift for head, shift in zip(heads, shifts, strict=True)) - room_ns
    return Aligned(
        shift_ns=tuple(shift - first for shift in shifts),
        origin_wall_ns=reference.base_ns + first,
        matched=matched,
        notes=_notes(
            heads,
            matched,
            {rank: moved[rank] - by_wall[rank] for rank in moved},
            is_one_job=is_one_job,
        ),
    )


def _notes(
    heads: Sequence[RankClock], matched: Matched | None, moved: dict[int, int], *, is_one_job: bool
) -> tuple[str, ...]:
    if len(heads) < 2:
        return ()
    if not is_one_job:
        return (
            (
                "several traces say that they are the same rank: they stand by their wall clocks, "
                "and were not compared"
            ),
        )
    apart = sorted(
        set(moved) - (set(matched.ranks) - set(matched.unaligned) if matched is not None else set())
    )
    notes = []
    if matched is not None and len(matched.unaligned) < len(matched.ranks) - 1:
        others = [moved[rank] for rank in matched.ranks[1:] if rank not in matched.unaligned]
        far = " to ".join(f"{ns / 1e3:+,.1f}" for ns in sorted({min(others), max(others)}))
        how = "unmoved: the collectives they share say that their clocks are one"
        if any(others):
            how = (
                f"moved by {far} us against their wall clocks so that the collectives they share "
                "end together"
            )
        notes.append(f"clocks: {len(others) + 1} ranks stand on rank {matched.ranks[0]}'s, {how}")
    if apart:
        notes.append(
            f"clocks: nothing ties rank(s) {named_ranks(apart)} to the others; they stand by "
            "their wall clocks"
        )
    return tuple(notes)
