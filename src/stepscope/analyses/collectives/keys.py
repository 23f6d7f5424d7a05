"""Keys of collectives that mean the same on all ranks:
who takes part in each, and which kinds are equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from stepscope.analyses.collectives.clock_offsets import Track
from stepscope.core.comms import Collective, CollectiveRecords
from stepscope.core.trace import NONE

FIRM = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Nobody leaves these before everybody has come. The root of a broadcast can."""
_UNEVEN = frozenset({"all_to_all", "gather", "scatter", "barrier", "sendrecv", "other"})
"""Ranks may give and get different sizes, or none is recorded."""
_P2P = {"send": 1, "recv": -1}

Group = tuple[str, tuple[int, ...]]
GroupKey = tuple[Group, tuple[int, int] | None]
"""A process group, or one direction between two of its ranks."""


class CollectiveKeys:
    """Groups and kinds of collectives, each with a number that is the same on all ranks."""

    def __init__(self, rank_records: Sequence[CollectiveRecords]) -> None:
        by_name: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        seen: dict[Group, set[int]] = defaultdict(set)
        for records in rank_records:
            for kind in records.kinds:
                if kind.group_ranks:
                    by_name[kind.group].add(tuple(sorted(kind.group_ranks)))
        self._only = {
            name: next(iter(ranks)) for name, ranks in by_name.items() if len(ranks) == 1 and name
        }
        for records in rank_records:
            for kind in records.kinds:
                seen[self._group(kind)].add(records.rank)
        self._members = {group: group[1] or tuple(sorted(ranks)) for group, ranks in seen.items()}
        self._group_ids: dict[GroupKey, int] = {}
        self.members: list[tuple[int, ...]] = []
        """Ranks that belong to each group, by its number."""
        self._tokens: dict[tuple[object, ...], int] = {}

    def _group(self, kind: Collective) -> Group:
        """Name and ranks; ranks that a recorder left out are those the others wrote."""
        return kind.group, tuple(sorted(kind.group_ranks)) or self._only.get(kind.group, ())

    def track(self, records: CollectiveRecords, base_ns: int) -> Track:
        """A rank's records with these numbers, sorted by end, its times `base_ns` later."""
        rows = np.zeros((max(1, len(records.kinds)), 5), np.int64)
        for i, kind in enumerate(records.kinds):
            rows[i] = self._row(kind, records.rank)
        order = np.lexsort((records.start_ns, records.end_ns))
        number = np.full(len(order), NONE, np.int64)
        if len(records.step_number):
            number = records.step_number[order]
        group, token, side, firm, counted = (
            rows[records.kind[order], column] for column in range(5)
        )
        return Track(
            rank=records.rank,
            entry=order,
            group=group,
            token=token,
            side=side,
            firm=firm,
            start_ns=records.start_ns[order] + base_ns,
            end_ns=records.end_ns[order] + base_ns,
            sequence=np.where(counted == 1, records.sequence[order], NONE),
            step=records.step[order],
            number=number,
            node=records.node,
        )

    def _row(self, kind: Collective, rank: int) -> tuple[int, int, int, int, int]:
        """Group, token, side, whether its ends are simultaneous,
        and whether all ranks count it alike."""
        group = self._group(kind)
        members = self._members[group]
        op, side, direction = kind.op, 0, None
        if op in _P2P:
            direction = _direction(kind, rank, members)
            op, side = "p2p", _P2P[op] if direction is None else 0
        group_id = self._group_ids.setdefault((group, direction), len(self._group_ids))
        if group_id == len(self.members):
            self.members.append(members if direction is None else direction)
        size = () if kind.op in _UNEVEN else (kind.dtype, kind.bytes)
        token = self._tokens.setdefault((group_id, op, kind.on_device, *size), len(self._tokens))
        # A rank counts all its sends and receives in a group together,
        # so with three ranks the two ends count differently.
        return (
            group_id,
            token,
            side,
            int(kind.op in FIRM),
            int(kind.op not in _P2P or len(members) == 2),
        )


def _direction(kind: Collective, rank: int, members: tuple[int, ...]) -> tuple[int, int] | None:
    """Sender and receiver, by what was recorded, or because the group has only one other rank."""
    other = kind.peer
    if other is None and len(members) == 2 and rank in members:
        other = members[0] if members[1] == rank else members[1]
    if other is None or other == rank:
        return None
    return (rank, other) if kind.op == "send" else (other, rank)
