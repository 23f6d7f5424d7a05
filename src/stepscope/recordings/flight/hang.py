"""Why a job stands still, from the ranks' flight-recorder dumps: one sentence, and where each rank
is.

Ranks wait for ranks, and those may wait for others in another group. Followed to its end that leads
to a rank that waits for nobody (it is in no collective, or left no dump), to ranks that disagree
about one collective, or round in a circle: groups that were entered in different order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from stepscope.core.recordings.nccl import (
    DEVICE,
    LINK,
    MISSING,
    NO_DUMP,
    PEER,
    STARTED,
    FlightCall,
    FlightDump,
    Hang,
    HangRank,
)
from stepscope.recordings.flight import hang_words as words
from stepscope.recordings.flight.groups import (
    Disagreement,
    Wait,
    disagreements,
    grouped,
    open_ends_of,
    peer_disagreements,
    peer_waits,
    waits,
)


def find_hang(dumps: Sequence[FlightDump]) -> Hang | None:
    """None where no collective is open on any rank."""
    hang = _find(dumps)
    if hang is None:
        return None
    waited = [
        seconds
        for dump in dumps
        if dump.rank in hang.waiting and (seconds := _waited_s(dump, hang)) is not None
    ]
    waited_s = max(waited, default=0.0) or None
    limits = [call.timeout_s for dump in dumps for call in dump.calls[-1:] if call.timeout_s]
    detail = words.waited_words(waited_s, min(limits, default=None))
    return replace(hang, waited_s=waited_s, details=(*hang.details, detail))


def _waited_s(dump: FlightDump, hang: Hang) -> float | None:
    """Seconds from when the rank issued it to the last that its dump knows of."""
    began = [
        call.created_ns
        for call in dump.calls
        if call.op == hang.op and call.sequence == hang.sequence and call.created_ns is not None
    ]
    known = [
        at
        for call in dump.calls
        for at in (call.created_ns, call.started_ns, call.completed_ns)
        if at is not None
    ]
    return max((max(known) - began[-1]) / 1e9, 0.0) if began else None


def _find(dumps: Sequence[FlightDump]) -> Hang | None:
    by_rank = {dump.rank: dump for dump in dumps if dump.calls}
    if not by_rank:
        return None
    groups, open_ends = grouped(list(by_rank.values())), open_ends_of(list(by_rank.values()))
    open_calls = [*waits(groups), *peer_waits(open_ends)]
    blocked = [wait for wait in open_calls if wait.missing]
    every = [*disagreements(groups), *peer_disagreements(open_ends)]
    differing = [each for each in every if _is_first(each, blocked, by_rank)]
    if differing:
        earliest = min(
            differing,
            key=lambda each: min(call.created_ns or 0 for call, _ in each.sides),
        )
        return words.of_disagreement(
            earliest, by_rank, _ranks(by_rank, open_calls, earliest.missing, earliest)
        )
    if blocked:
        return _of_waits(blocked, by_rank, open_calls)
    return _all_there(open_calls, by_rank)


def _is_first(
    disagreement: Disagreement, blocked: Sequence[Wait], by_rank: Mapping[int, FlightDump]
) -> bool:
    """Whether the ranks that disagree are held up by that alone: one that has not come at all, and
    waits for nobody, is the older trouble."""
    waiting = {wait.rank for wait in blocked}
    return all(rank in waiting for rank in disagreement.missing if rank in by_rank)


def _of_waits(
    blocked: Sequence[Wait], by_rank: Mapping[int, FlightDump], open_calls: Sequence[Wait]
) -> Hang:
    waiting = {wait.rank for wait in blocked}
    roots = {rank for wait in blocked for rank in wait.missing if rank not in waiting}
    if not roots:
        circle = _circle(blocked)
        return words.of_circle(circle, _ranks(by_rank, open_calls, ()))
    for_roots = [wait for wait in blocked if roots & set(wait.missing)]
    # Of several, that which most wait in: the others follow from it.
    chosen = max(
        for_roots,
        key=lambda wait: sum(_same(wait, other) for other in for_roots),
    )
    at_fault = tuple(sorted(roots & set(chosen.missing)))
    silent = tuple(rank for rank in at_fault if rank not in by_rank)
    kind = NO_DUMP if silent else PEER if chosen.call.is_p2p else MISSING
    behind = [wait for wait in blocked if not set(wait.missing) & set(at_fault)]
    return words.of_missing(
        kind,
        silent or at_fault,
        [wait for wait in for_roots if _same(wait, chosen)],
        behind,
        by_rank,
        _ranks(by_rank, open_calls, chosen.missing),
    )


def _same(wait: Wait, other: Wait) -> bool:
    """Whether two waits are in one collective."""
    return (wait.group, wait.members, wait.call.sequence, wait.call.is_p2p) == (
        other.group,
        other.members,
        other.call.sequence,
        other.call.is_p2p,
    )


def _circle(blocked: Sequence[Wait]) -> list[Wait]:
    """Ranks of which each waits for the next, and the last for the first."""
    by_rank: dict[int, list[Wait]] = {}
    for wait in blocked:
        by_rank.setdefault(wait.rank, []).append(wait)
    rank, path = blocked[0].rank, list[Wait]()
    while rank not in [wait.rank for wait in path]:
        wait = by_rank[rank][0]
        path.append(wait)
        rank = wait.missing[0]
    return path[[wait.rank for wait in path].index(rank) :]


def _all_there(open_calls: Sequence[Wait], by_rank: Mapping[int, FlightDump]) -> Hang | None:
    """All have come to the same, and it does not end: a device that has not begun it, devices that
    began with different ones, or the link."""
    if not open_calls:
        return None
    on_devices = [replace(wait, missing=_not_begun(wait, open_calls)) for wait in open_calls]
    on_devices = [wait for wait in on_devices if wait.missing]
    begun_by = {wait.rank for wait in on_devices}
    if on_devices and all(begun_by.issuperset(wait.missing) for wait in on_devices):
        return words.of_circle(_circle(on_devices), _ranks(by_rank, open_calls, ()))
    first = min(open_calls, key=lambda wait: wait.call.created_ns or 0)
    same = [wait for wait in open_calls if _same(wait, first)]
    begun = [wait for wait in same if wait.call.state == STARTED]
    not_begun = tuple(sorted(wait.rank for wait in same if wait.call.state != STARTED))
    is_device = bool(begun) and bool(not_begun)
    return words.of_all_there(
        DEVICE if is_device else LINK,
        begun if is_device else same,
        not_begun if is_device else (),
        by_rank,
        _ranks(by_rank, open_calls, ()),
    )


def _not_begun(wait: Wait, open_calls: Sequence[Wait]) -> tuple[int, ...]:
    """Ranks whose device has what this rank's is in still before it."""
    if wait.call.state != STARTED or wait.call.is_p2p:
        return ()
    same = [other for other in open_calls if _same(wait, other)]
    return tuple(sorted(other.rank for other in same if other.call.state != STARTED))


def _ranks(
    by_rank: Mapping[int, FlightDump],
    open_calls: Sequence[Wait],
    missing: Sequence[int],
    disagreement: Disagreement | None = None,
) -> tuple[HangRank, ...]:
    """Every rank that is named, in order."""
    sides = () if disagreement is None else disagreement.sides[1:]
    elsewhere = {rank for _, ranks in sides for rank in ranks}
    waiting = {wait.rank: wait for wait in reversed(open_calls)}
    ranks = []
    for rank in sorted({*by_rank, *missing}):
        dump, wait = by_rank.get(rank), waiting.get(rank)
        if dump is None:
            ranks.append(HangRank(rank=rank, state="no dump"))
            continue
        call: FlightCall = dump.calls[-1] if wait is None else wait.call
        state = "waits" if wait is not None else "through"
        if rank in elsewhere:
            state = "elsewhere"
        elif rank in missing and wait is None:
            state = "not there"
        ranks.append(
            HangRank(
                rank=rank,
                state=state,
                op=call.op,
                sequence=call.sequence,
                group=dump.groups[call.group].label,
                where=call.where_words,
            )
        )
    return tuple(ranks)
