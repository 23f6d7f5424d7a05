"""Ranks' flight-recorder dumps matched: which collective of a group is which on every rank, what
each rank waits for, and where they disagree.

Collectives of a group are matched by their number in it, as the library itself matches them: it has
no other mark. A receive belongs to the first open send of its peer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TypeAlias

from msgspec import Struct, field

from stepscope.core.recordings.nccl import COMPLETED, FlightCall, FlightDump, FlightGroup

UNEVEN = ("all_to_all", "gather", "scatter", "split", "new_window")
"""Collectives in which the ranks' sizes may differ by right: a root has what the others have not,
and parts may be uneven."""
EVEN = ("all_gather", "allgather", "reduce_scatter")
"""Collectives without a root: uneven tensors are sent by broadcasts in their place."""
RAGGED, COALESCED = "_v", "coalesced"
"""Parts of a name: sizes are each rank's own; or there are several in one, which are not told
apart."""

SEND, RECEIVE = "send", "recv"
OTHER = {SEND: RECEIVE, RECEIVE: SEND}
OpenEnds: TypeAlias = "dict[tuple[int, int, str], list[tuple[int, str, FlightCall]]]"
"""Calls by sender, receiver and which of the two it is: the ranks, their groups and calls."""


class GroupCalls(Struct, kw_only=True):
    """The collectives of one process group, by rank and number."""

    group: FlightGroup
    members: tuple[int, ...]
    """Where no dump says who is in it, the ranks that used it."""
    calls: dict[int, dict[int, FlightCall]] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def common_from(self) -> int:
        """The first number that no rank's buffer has lost."""
        return max((min(of_rank) for of_rank in self.calls.values() if of_rank), default=0)


class Wait(Struct, frozen=True, kw_only=True):
    """A rank in a collective that cannot end."""

    rank: int
    group: str
    call: FlightCall
    missing: tuple[int, ...]
    """Ranks that it waits for; empty where all have come."""
    members: tuple[int, ...] = ()
    """Ranks of the group: those of a mesh have one label, and are told apart by them."""


class Disagreement(Struct, frozen=True, kw_only=True):
    """One number of a group under which ranks issued different things."""

    group: str
    sequence: int
    kind: str
    """different, sizes or types."""
    sides: tuple[tuple[FlightCall, tuple[int, ...]], ...]
    """What was issued, and by which ranks; the most ranks first."""
    missing: tuple[int, ...]
    """Ranks of the group that have not come to it, or left no dump."""


def grouped(dumps: Sequence[FlightDump]) -> list[GroupCalls]:
    """The groups of all dumps, the largest first."""
    world = _world(dumps)
    groups: dict[tuple[str, str, tuple[int, ...] | None], GroupCalls] = {}
    for dump in dumps:
        keys = [(group.name, group.desc, group.ranks) for group in dump.groups]
        for key, group in zip(keys, dump.groups, strict=True):
            groups.setdefault(key, GroupCalls(group=group, members=()))
            groups[key].calls.setdefault(dump.rank, {})
        for call in dump.calls:
            if not call.is_p2p:
                # Several share a number inside a coalesced one, whose own entry comes last.
                groups[keys[call.group]].calls[dump.rank][call.sequence] = call
    for each in groups.values():
        ranks = each.group.ranks
        each.members = ranks or (world if _is_world(each.group) else tuple(sorted(each.calls)))
        each.last = {rank: max(calls, default=-1) for rank, calls in each.calls.items()}
    return sorted(groups.values(), key=lambda each: -len(each.members))


def _is_world(group: FlightGroup) -> bool:
    return group.name in ("", "0") or group.desc == "default_pg"


def _world(dumps: Sequence[FlightDump]) -> tuple[int, ...]:
    """Every rank that is named anywhere, and those between: a rank that died left nothing."""
    named = {rank for dump in dumps for group in dump.groups for rank in group.ranks or ()}
    highest = max(named | {dump.rank for dump in dumps})
    return tuple(range(highest + 1)) if highest < 200_000 else tuple(sorted(named))


def is_over(group: GroupCalls, rank: int, call: FlightCall) -> bool:
    """Whether the rank is past it. Gloo calls one that failed retired too: such is over only where
    the rank went on in the group."""
    if call.state == COMPLETED:
        return True
    is_last = call.sequence >= group.last.get(rank, -1)
    return call.is_retired and (not is_last or _all_alike(group, call))


def _all_alike(group: GroupCalls, call: FlightCall) -> bool:
    """Every member has come to it, with the same."""
    others = [group.calls.get(rank, {}).get(call.sequence) for rank in group.members]
    return all(other is not None and difference(call, other) is None for other in others)


def difference(call: FlightCall, other: FlightCall) -> str | None:
    """Kind of difference between two ranks' calls of one number: different, sizes, types; None
    where they go together."""
    if _family(call.op) != _family(other.op):
        return "different"
    if _may_differ(call.op):
        return None
    if num_elements(call) != num_elements(other):
        return "sizes"
    return "types" if call.input_types != other.input_types else None


def _may_differ(op: str) -> bool:
    """Whether sizes may differ from rank to rank."""
    if COALESCED in op or op.endswith(RAGGED):
        return True
    return any(word in op for word in UNEVEN) and not op.lstrip("_").startswith(EVEN)


def _family(op: str) -> str:
    """NCCL makes a barrier of an all_reduce, and says so; a leading underscore is a variant."""
    return "barrier" if "barrier" in op else op.lstrip("_").lower()


def num_elements(call: FlightCall) -> int:
    """A shape may differ, the number of elements may not."""
    return sum(prod(size) for size in call.input_sizes)


def disagreements(groups: Sequence[GroupCalls]) -> list[Disagreement]:
    """First number of each group that is not over and that ranks disagree on."""
    every = (_first_disagreement(group) for group in groups)
    return [each for each in every if each is not None]


def _first_disagreement(group: GroupCalls) -> Disagreement | None:
    present = [rank for rank in group.members if group.calls.get(rank)]
    if len(present) < 2:
        return None
    for sequence in range(group.common_from, max(group.last.values()) + 1):
        calls = {rank: group.calls[rank].get(sequence) for rank in present}
        there = {rank: call for rank, call in calls.items() if call is not None}
        sides = _sides(there)
        if len(sides) < 2 or all(_went_on(group, rank, call) for rank, call in there.items()):
            continue
        kinds = {difference(sides[0][0], call) for call, _ in sides[1:]}
        kind = next(each for each in ("different", "sizes", "types") if each in kinds)
        return Disagreement(
            group=group.label,
            sequence=sequence,
            kind=kind,
            sides=tuple(sides),
            missing=tuple(rank for rank in group.members if rank not in there),
        )
    return None


def _went_on(group: GroupCalls, rank: int, call: FlightCall) -> bool:
    """The rank got through it. One that broadcasts where others reduce may; where all do, it is no
    hang, whatever they passed in."""
    return call.state == COMPLETED or (call.is_retired and call.sequence < group.last[rank])


def _sides(calls: dict[int, FlightCall]) -> list[tuple[FlightCall, tuple[int, ...]]]:
    sides: list[tuple[FlightCall, list[int]]] = []
    for rank, call in sorted(calls.items()):
        side = next((ranks for other, ranks in sides if difference(other, call) is None), None)
        if side is None:
            sides.append((call, [rank]))
        else:
            side.append(rank)
    return [
        (call, tuple(ranks))
        for call, ranks in sorted(sides, key=lambda side: (-len(side[1]), side[1]))
    ]


def waits(groups: Sequence[GroupCalls]) -> list[Wait]:
    """First collective of each rank and group that is not over, and whom it lacks."""
    every = []
    for group in groups:
        lacking: dict[int, tuple[int, ...]] = {}
        for rank, calls in group.calls.items():
            first = next(
                (calls[at] for at in sorted(calls) if not is_over(group, rank, calls[at])), None
            )
            if first is None:
                continue
            if first.sequence not in lacking:
                lacking[first.sequence] = tuple(
                    other for other in group.members if group.last.get(other, -1) < first.sequence
                )
            missing = lacking[first.sequence]
            is_told = missing or not first.is_retired
            if is_told:
                every.append(
                    Wait(
                        rank=rank,
                        group=group.label,
                        call=first,
                        missing=missing,
                        members=group.members,
                    )
                )
    return every


def peer_waits(open_ends: OpenEnds) -> list[Wait]:
    """Sends and receives that are not over, and whom each lacks: nobody where the other side is
    open too."""
    every = []
    for (source, target, op), mine in open_ends.items():
        num_matched = len(open_ends.get((source, target, OTHER[op]), ()))
        peer = target if op == SEND else source
        for at, (rank, label, call) in enumerate(mine):
            missing = () if at < num_matched else (peer,)
            every.append(Wait(rank=rank, group=label, call=call, missing=missing))
    return every


def peer_disagreements(open_ends: OpenEnds) -> list[Disagreement]:
    """Sends whose receives are for something else."""
    every = []
    for (source, target, op), mine in open_ends.items():
        partners = open_ends.get((source, target, RECEIVE), ()) if op == SEND else ()
        for (_, label, send), (_, _, receive) in zip(mine, partners, strict=False):
            is_sized = num_elements(send) != num_elements(receive)
            if is_sized or send.input_types != receive.input_types:
                every.append(
                    Disagreement(
                        group=label,
                        sequence=send.sequence,
                        kind="sizes" if is_sized else "types",
                        sides=((send, (source,)), (receive, (target,))),
                        missing=(),
                    )
                )
    return every


def open_ends_of(dumps: Sequence[FlightDump]) -> OpenEnds:
    """Sends and receives that have not ended. Nobody waits for itself."""
    open_calls: OpenEnds = {}
    for dump in dumps:
        for call in dump.calls:
            is_open = call.state != COMPLETED and not call.is_retired
            ends = None if dump.is_to_itself(call) else dump.ends_of(call)
            if call.is_p2p and ends and is_open and call.op in OTHER:
                label = dump.groups[call.group].label
                open_calls.setdefault((*ends, call.op), []).append((dump.rank, label, call))
    return open_calls


def calls_at(dump: FlightDump, call: FlightCall) -> int:
    """How often the rank issued this collective from this line."""
    return sum(1 for other in _alike(dump.calls, call))


def _alike(calls: Sequence[FlightCall], call: FlightCall) -> Iterator[FlightCall]:
    return (each for each in calls if each.op == call.op and each.where == call.where)
