"""Families of process groups:
those that divide the job in the same way, such as all its tensor-parallel groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from stepscope.core.comms import Collective, CollectiveRecords, ProcessGroup


class Family(Struct, frozen=True, kw_only=True):
    """Groups with one description, number of ranks and stride;
    a group whose ranks are not known has a family of its own."""

    description: str
    num_ranks: int | None
    stride: int | None
    """Distance between neighbours of a group; None when it is not even, or not known."""
    name: str = ""
    """Where the ranks are not known."""


class Families:
    """The family of each kind of collective, by what all ranks recorded of the groups."""

    def __init__(self, rank_records: Sequence[CollectiveRecords]) -> None:
        self._by_name: dict[str, ProcessGroup] = {}
        for records in rank_records:
            for group in records.groups:
                earlier = self._by_name.get(group.name)
                if earlier is None or (not earlier.ranks and group.ranks):
                    self._by_name[group.name] = group
        self._name_of: dict[tuple[int, ...] | str, str] = {}
        """First name of a group by its ranks: a job may have thousands of groups."""
        for group in self._by_name.values():
            self._name_of.setdefault(tuple(sorted(group.ranks)), group.name)
        self._families: dict[tuple[str, tuple[int, ...], int | None], Family] = {}
        sizes = [records.world_size for records in rank_records if records.world_size]
        self.world_size: int | None = max(sizes, default=None)
        self.groups: dict[Family, set[tuple[int, ...] | str]] = defaultdict(set)
        """The groups of each family: by their ranks, else by name."""
        for group in self._by_name.values():
            if group.name:
                self._add(group.description, group.ranks, group.size, group.name)
        for records in rank_records:
            for kind in records.kinds:
                self.of(kind)

    def of(self, kind: Collective) -> Family:
        """The family of a collective's group."""
        identity = (kind.group, kind.group_ranks, kind.group_size)
        if identity not in self._families:
            self._families[identity] = self._family(kind)
        return self._families[identity]

    def _family(self, kind: Collective) -> Family:
        group = self._by_name.get(kind.group) if kind.group else None
        ranks = kind.group_ranks or (group.ranks if group else ())
        size = len(ranks) or kind.group_size or (group.size if group else None)
        return self._add(group.description if group else "", ranks, size, kind.group)

    def key(self, kind: Collective) -> tuple[int, ...] | str:
        """What distinguishes a collective's group from the others of its family."""
        group = self._by_name.get(kind.group) if kind.group else None
        return tuple(sorted(kind.group_ranks or (group.ranks if group else ()))) or kind.group

    def label(self, family: Family) -> str:
        """Description of the family, else the name of its only group."""
        if family.description or family.name:
            return family.description or family.name
        groups = self.groups[family]
        return self._name_of.get(next(iter(groups)), "") if len(groups) == 1 else ""

    def _add(self, description: str, ranks: tuple[int, ...], size: int | None, name: str) -> Family:
        ranks = tuple(sorted(ranks))
        if ranks:
            family = Family(description=description, num_ranks=len(ranks), stride=stride_of(ranks))
        else:
            family = Family(description=description, num_ranks=size, stride=None, name=name)
        self.groups[family].add(ranks or name)
        return family


def stride_of(ranks: tuple[int, ...]) -> int | None:
    """The distance between neighbours, where it is one."""
    apart = {b - a for a, b in pairwise(ranks)}
    return apart.pop() if len(apart) == 1 else None
