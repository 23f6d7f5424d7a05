"""Pairs the work of two runs: by operator and shapes, by operator, by its place between work that
did not change.

    before   mm[8x3]  mul  add  relu  mm[8x4]
    after    mm[8x3]  triton_poi_fused  mm[8x4]

    mm[8x3] : mm[8x3]                    the same operator on the same shapes, as often
    mm[8x4] : mm[8x4]
    mul, add, relu : triton_poi_fused    between the same neighbours

Every nanosecond of either run is in exactly one pair. A rung of the ladder takes only what those
above it left.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from stepscope.experiments.compare.pieces import Pieces, Share, WorkKey, plain_name

EQUAL = 0.01
"""Counts a step within this share of one another are equal: a call at the edge of the measured
steps may be in or out."""
OPTIMIZER = "optimizer"

FUSED = re.compile(r"triton|compiled|fused|inductor", re.IGNORECASE)
"""Parts of the names of what a compiler, or a person, made of several operators."""

Shares = dict[int, Share]
Landmark = int | str | None
"""A pair by its number, the phase that begins or ends here, or the recording's end."""
Key = Callable[[WorkKey], Hashable | None]


@dataclass(slots=True, kw_only=True)
class Pair:
    """Sorts of the one run and of the other that belong together, each with its share."""

    paired_by: str
    before: Shares = field(default_factory=dict)
    after: Shares = field(default_factory=dict)

    @property
    def before_ns(self) -> float:
        return sum(share.ns for share in self.before.values())

    @property
    def after_ns(self) -> float:
        return sum(share.ns for share in self.after.values())

    def add(self, other: Pair) -> None:
        for mine, more in ((self.before, other.before), (self.after, other.after)):
            for sort, share in more.items():
                mine.setdefault(sort, Share()).add(share)


def pair(before: Pieces, after: Pieces) -> list[Pair]:
    """Every sort of both runs in pairs; one side of a pair is empty where nothing belongs to it."""
    ladder = _Ladder(before, after)
    ladder.match(
        "name", lambda s: (s.phase, s.op, s.kernel, s.home, s.shapes, s.module), equal=True
    )
    ladder.match("name", lambda s: (s.phase, s.op, s.kernel, s.shapes), equal=True)
    ladder.match_in_order(lambda s: (s.phase, s.op, s.kernel))
    ladder.match("operator", lambda s: (s.phase, s.op, s.kernel), equal=True)
    ladder.match_kernels()
    ladder.match_places()
    ladder.match("name", lambda s: (s.phase, s.op, s.kernel, s.shapes))
    ladder.match("operator", lambda s: (s.phase, s.op, s.kernel))
    ladder.match("operator", lambda s: (s.op, s.kernel))
    ladder.match("origin", lambda s: None if s.home is None else (s.phase, s.home))
    ladder.match("module", lambda s: None if s.module is None else (s.phase, s.module))
    ladder.match("optimizer", lambda s: OPTIMIZER if s.phase == OPTIMIZER else None)
    return _merged([*ladder.pairs, *ladder.leftovers()], before, after)


class _Ladder:
    """What is not yet paired, and the pairs made so far."""

    def __init__(self, before: Pieces, after: Pieces) -> None:
        self._sides = (before, after)
        self._rest: tuple[Shares, Shares] = (_all(before), _all(after))
        self._anchors: tuple[dict[int, int], dict[int, int]] = ({}, {})
        """Pair of the sorts that are whole in a pair by name: calls of theirs are landmarks. Where
        shapes differ too, work between them may be another model's."""
        self._kernels: tuple[dict[int, frozenset[str]], dict[int, frozenset[str]]] = ({}, {})
        self.pairs: list[Pair] = []

    def match(self, word: str, key: Key, *, equal: bool = False) -> None:
        """Pair the sorts that have the same key; with `equal`, only where there are as many on both
        sides."""
        groups = [self._grouped(side, key) for side in (0, 1)]
        for name in [name for name in groups[0] if name in groups[1]]:
            if not equal or _is_equal(
                self._count(0, groups[0][name]), self._count(1, groups[1][name])
            ):
                self._take(word, groups[0][name], groups[1][name])

    def match_in_order(self, key: Key) -> None:
        """Pair an operator's shapes one by one, in the order they come, where there are as many of
        each: a batch grew."""
        groups = [self._grouped(side, key) for side in (0, 1)]
        for name in [name for name in groups[0] if name in groups[1]]:
            mine, theirs = groups[0][name], groups[1][name]
            counts = zip(mine, theirs, strict=False)
            if len(mine) == len(theirs) and all(
                _is_equal(self._count(0, [a]), self._count(1, [b])) for a, b in counts
            ):
                for a, b in zip(mine, theirs, strict=True):
                    self._take("operator", [a], [b])

    def match_places(self) -> None:
        """Pair what stands between the same neighbours in both runs."""
        runs = [self._runs(side) for side in (0, 1)]
        for ends in [ends for ends in runs[0] if ends in runs[1]]:
            paired = Pair(paired_by="place", before=runs[0][ends], after=runs[1][ends])
            is_whole_phase = not any(isinstance(end, int) for end in ends)
            if self._is_mostly_the_same(paired) or (is_whole_phase and not self._is_fused(paired)):
                continue
            for rest, taken in zip(self._rest, (paired.before, paired.after), strict=True):
                for sort, share in taken.items():
                    _subtract(rest, sort, share)
            self.pairs.append(paired)

    def match_kernels(self) -> None:
        """Pair operators with kernels that no operator launched (a CUDA graph's), where they have
        kernels of one name."""
        groups, holders = _Groups(), defaultdict(list)
        for b in self._rest[1]:
            for name in self._names(1, b):
                holders[name].append(b)
        for a in self._rest[0]:
            is_bare = self._sides[0].sorts[a].op is None
            for b in {b for name in self._names(0, a) for b in holders[name]}:
                if is_bare != (self._sides[1].sorts[b].op is None):
                    groups.join((0, a), (1, b))
        for members in groups.all():
            self._take(
                "kernel",
                [sort for side, sort in members if side == 0],
                [sort for side, sort in members if side == 1],
            )

    def _names(self, side: int, sort: int) -> frozenset[str]:
        kernels = self._kernels[side]
        if sort not in kernels:
            kernels[sort] = frozenset(map(plain_name, self._sides[side].details[sort]))
        return kernels[sort]

    def _is_mostly_the_same(self, paired: Pair) -> bool:
        """Whether most of both sides is of operators that both have: then they differ in number,
        and nothing was replaced."""
        labels = [
            {(sorts[sort].phase, sorts[sort].label) for sort in shares}
            for sorts, shares in self._with_sorts(paired)
        ]
        common = labels[0] & labels[1]
        for (sorts, shares), total in zip(
            self._with_sorts(paired), (paired.before_ns, paired.after_ns), strict=True
        ):
            of_common = sum(
                share.ns
                for sort, share in shares.items()
                if (sorts[sort].phase, sorts[sort].label) in common
            )
            if of_common <= total / 2:
                return False
        return True

    def _is_fused(self, paired: Pair) -> bool:
        """Whether one side is mostly what a compiler makes: with no landmark inside a phase, two
        models would else be paired."""
        for (sorts, shares), total in zip(
            self._with_sorts(paired), (paired.before_ns, paired.after_ns), strict=True
        ):
            if (
                sum(share.ns for sort, share in shares.items() if FUSED.search(sorts[sort].label))
                > total / 2
            ):
                return True
        return False

    def _with_sorts(
        self, made: Pair
    ) -> tuple[tuple[tuple[WorkKey, ...], Shares], tuple[tuple[WorkKey, ...], Shares]]:
        return (self._sides[0].sorts, made.before), (self._sides[1].sorts, made.after)

    def leftovers(self) -> Iterable[Pair]:
        for sort, share in self._rest[0].items():
            yield Pair(paired_by="none", before={sort: share})
        for sort, share in self._rest[1].items():
            yield Pair(paired_by="none", after={sort: share})

    def _grouped(self, side: int, key: Key) -> dict[Hashable, list[int]]:
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for sort in self._rest[side]:
            name = key(self._sides[side].sorts[sort])
            if name is not None:
                groups[name].append(sort)
        return groups

    def _count(self, side: int, sorts: Iterable[int]) -> float:
        return sum(self._rest[side][sort].count for sort in sorts)

    def _take(self, word: str, before: Iterable[int], after: Iterable[int]) -> None:
        number = len(self.pairs)
        taken = []
        for side, sorts in ((0, before), (1, after)):
            taken.append({sort: self._rest[side].pop(sort) for sort in sorts})
            if word == "name":
                self._anchors[side].update(dict.fromkeys(taken[-1], number))
        self.pairs.append(Pair(paired_by=word, before=taken[0], after=taken[1]))

    def _runs(self, side: int) -> dict[tuple[Landmark, Landmark], Shares]:
        """The calls not yet paired, by the landmarks before and after them: pairs, or the edges of
        a phase."""
        anchors, pieces = self._anchors[side], self._sides[side]
        runs: dict[tuple[Landmark, Landmark], Shares] = defaultdict(dict)
        last: Landmark = None
        phase: str | None = None
        waiting: list[tuple[int, float]] = []

        def close(after: Landmark) -> None:
            for sort, ns in waiting:
                runs[last, after].setdefault(sort, Share()).add(Share(count=pieces.each, ns=ns))
            waiting.clear()

        for sort, ns in pieces.calls:
            mine, anchor = pieces.sorts[sort].phase, anchors.get(sort)
            if mine != phase:
                close(mine)
                last, phase = mine, mine
            if anchor is not None:
                close(anchor)
                last = anchor
            elif sort in self._rest[side]:
                waiting.append((sort, ns))
        close(None)
        return runs


class _Groups:
    """Sorts that are linked, directly or through others."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def join(self, left: tuple[int, int], right: tuple[int, int]) -> None:
        first, second = self._of.setdefault(left, [left]), self._of.setdefault(right, [right])
        if first is not second:
            first.extend(second)
            self._of.update(dict.fromkeys(second, first))

    def all(self) -> list[list[tuple[int, int]]]:
        return list({id(members): members for members in self._of.values()}.values())


def _all(pieces: Pieces) -> Shares:
    return {sort: Share(count=share.count, ns=share.ns) for sort, share in enumerate(pieces.shares)}


def _subtract(rest: Shares, sort: int, share: Share) -> None:
    """Take a part of a sort; what is left of rounding is none."""
    left = Share(count=rest[sort].count - share.count, ns=rest[sort].ns - share.ns)
    if left.count < 1e-9 and left.ns < 1e-3:
        del rest[sort]
    else:
        rest[sort] = left


def _is_equal(a: float, b: float) -> bool:
    return abs(a - b) <= EQUAL * max(a, b)


def _merged(pairs: Iterable[Pair], before: Pieces, after: Pieces) -> list[Pair]:
    """Pairs alike are one: the same replacement in every layer, one operator that went in all its
    shapes."""
    merged: dict[Hashable, Pair] = {}
    for number, paired in enumerate(pairs):
        key: Hashable = number
        if paired.paired_by in ("place", "none"):
            key = _alike(paired, before.sorts, after.sorts)
        if key in merged:
            merged[key].add(paired)
        else:
            merged[key] = paired
    return list(merged.values())


def _alike(paired: Pair, before: tuple[WorkKey, ...], after: tuple[WorkKey, ...]) -> Hashable:
    def names(
        shares: Mapping[int, Share], sorts: tuple[WorkKey, ...]
    ) -> frozenset[tuple[str | None, str]]:
        return frozenset((sorts[sort].phase, sorts[sort].label) for sort in shares)

    return paired.paired_by, names(paired.before, before), names(paired.after, after)
