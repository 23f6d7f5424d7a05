"""What torch.compile did: each compilation with the guards that failed, each graph break, caches,
and the limits that were hit.

A compilation has an id, `frame/number`, that is unique in its process: two recordings of one run
tell of the same compilations, and joined they count once. Ranks do the same work side by side, so
counts and seconds are those of the process with most.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, TypeVar

from stepscope.core.recordings.compiler_guard import Guard, GuardCount, count_guards
from stepscope.core.recordings.recording import Recording

RESUMED = re.compile(r"(?:torch_dynamo_resume_in_)+(.+?)(?:_at_\d{1,9})+")
"""The rest of a function after a graph break."""
OPEN = (None, "", ())
NO_REASON = "no reason told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """One compilation, or an attempt at one."""

    rank: int | None = None
    process: int | None = None
    id: str
    function: str = ""
    place: str = ""
    """`file:line` of the function."""
    guards: tuple[Guard, ...] | None = None
    """Those that kept the compiled versions from being used, the newest version's first; None for a
    first compilation."""
    seconds: float | None = None
    """Forward, or the whole where both are compiled together."""
    backward_s: float | None = None
    num_ops: int | None = None
    num_guards: int | None = None
    limit: str | None = None
    """`recompile_limit (8)`: it was given up, nothing was compiled."""
    failure: str | None = None

    @property
    def key(self) -> tuple[int | None, int | None, str]:
        return (self.rank, self.process, self.id)

    @property
    def frame(self) -> tuple[int | None, int | None, str]:
        """The function, within its process."""
        return (self.rank, self.process, self.id.rpartition("/")[0])

    @property
    def is_again(self) -> bool:
        """Something was compiled, though there was a compiled version already."""
        return self.guards is not None and self.limit is None

    @property
    def all_seconds(self) -> float | None:
        told = [part for part in (self.seconds, self.backward_s) if part is not None]
        return sum(told) if told else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One graph break: where TorchDynamo could not go on."""

    rank: int | None = None
    process: int | None = None
    id: str
    place: str = ""
    """`file:line` as TorchDynamo tells it."""
    reason: str
    explanation: str = ""
    hints: tuple[str, ...] = ()
    function: str = ""
    code: str = ""
    """The line of code there."""
    called_from: str = ""
    """The innermost line outside of installed packages, where `place` is inside one."""

    @property
    def key(self) -> tuple[int | None, int | None, str, str, str]:
        return (self.rank, self.process, self.id, self.place, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one process counted over its life; None where it kept no such count."""

    path: str
    frames: int | None = None
    frames_ok: int | None = None
    graphs: int | None = None
    limit_hits: int | None = None
    breaks: tuple[tuple[Break, int], ...] = ()
    """Reasons, with hints but no places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """How often one of the compiler's caches, kept between runs, had what was asked for."""

    path: str
    cache: str
    hits: int
    misses: int
    bypassed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledFunction:
    """A function over all its compilations; the rest of it after graph breaks is counted in."""

    name: str
    place: str
    processes: int
    compiles: int | None
    """None where the recording tells only what was compiled again."""
    recompiles: int
    resumed: int
    """Of these, pieces after a graph break."""
    most_again: int
    """The most that one piece, or the function itself, was compiled again: each learns by itself
    what changes."""
    seconds: float | None
    again_s: float | None
    """Of these, for what was compiled again."""
    guards: tuple[GuardCount, ...]
    """Of the function itself, those that failed most often first."""
    resumed_guards: tuple[GuardCount, ...]
    limit: str | None
    """`recompile_limit (8)`, once it was hit."""
    limit_part: str = ""
    """The piece that hit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakPlace:
    """A graph break over all the times it happened."""

    told: Break
    count: int
    processes: int


Keyed = TypeVar("Keyed", Compile, Break)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerRecording(Recording):
    """What was read of the compiler."""

    compiles: tuple[Compile, ...] = ()
    breaks: tuple[Break, ...] = ()
    hints: tuple[tuple[str, int], ...] = ()
    """Inductor's performance hints, with how often each was given."""
    counted: tuple[Counted, ...] = ()
    caches: tuple[CacheUse, ...] = ()
    counters: tuple[tuple[str, str, int], ...] = ()
    """All of Dynamo's: section, name and count."""

    def joined(self, other: CompilerRecording) -> CompilerRecording:
        """Both; what both tell of one compilation is one."""
        ranks = ranks_of([*self.compiles, *other.compiles], [*self.breaks, *other.breaks])
        hints = Counter(dict(self.hints))
        for text, count in other.hints:
            hints[text] = max(hints[text], count)
        return replace(
            self,
            compiles=merged(with_ranks((*self.compiles, *other.compiles), ranks)),
            breaks=merged(with_ranks((*self.breaks, *other.breaks), ranks)),
            hints=tuple(hints.most_common()),
            counted=(*self.counted, *other.counted),
            caches=(*self.caches, *other.caches),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerReport:
    """All recordings of the compiler that were given."""

    recordings: tuple[CompilerRecording, ...] = ()

    def joined(self, other: CompilerReport) -> CompilerReport:
        return CompilerReport(recordings=(*self.recordings, *other.recordings))

    @property
    def whole(self) -> CompilerRecording:
        """All recordings as one."""
        return reduce(
            CompilerRecording.joined, self.recordings or (CompilerRecording(format="", paths=()),)
        )

    @property
    def compiles(self) -> tuple[Compile, ...]:
        return self.whole.compiles

    @property
    def breaks(self) -> tuple[Break, ...]:
        return self.whole.breaks

    @property
    def hints(self) -> tuple[tuple[str, int], ...]:
        return self.whole.hints

    @property
    def counted(self) -> tuple[Counted, ...]:
        return self.whole.counted

    @property
    def caches(self) -> tuple[CacheUse, ...]:
        return self.whole.caches

    @property
    def num_processes(self) -> int:
        told = {(each.rank, each.process) for each in self.compiles}
        return len(told | {(each.rank, each.process) for each in self.breaks})

    @property
    def seconds(self) -> float | None:
        """Spent compiling, by the process that spent most."""
        return _most((each, each.all_seconds) for each in self.compiles)

    def functions(self) -> tuple[CompiledFunction, ...]:
        """Each function once, those that took longest to compile again first, then those compiled
        again most often."""
        parts: dict[tuple[str, str], list[tuple[Compile, bool]]] = defaultdict(list)
        named = _named(self.compiles)
        starts = _starts(named)
        for each in named:
            key, is_piece = _owner(each, starts)
            parts[key].append((each, is_piece))
        found = [_function(*key, mine) for key, mine in parts.items()]
        return tuple(
            sorted(
                found,
                key=lambda f: (
                    -(f.again_s or 0.0),
                    -f.recompiles,
                    f.limit is None,
                    f.place,
                    f.name,
                ),
            )
        )

    def break_places(self) -> tuple[BreakPlace, ...]:
        """Each break once, the most frequent first; what counters alone tell of comes after,
        without a place."""
        by_place: dict[tuple[str, str], list[Break]] = defaultdict(list)
        for each in self.breaks:
            by_place[(each.place, each.reason)].append(each)
        found = [_place(several) for several in by_place.values()]
        reasons = {reason for _, reason in by_place}
        more: dict[str, BreakPlace] = {}
        for told, count in (pair for counted in self.counted for pair in counted.breaks):
            if told.reason not in reasons:
                before = more.get(told.reason)
                most, processes = (before.count, before.processes) if before else (0, 0)
                more[told.reason] = BreakPlace(
                    told=told, count=max(count, most), processes=processes + 1
                )
        ordered = sorted(found, key=lambda p: (-p.count, p.told.place))
        return (*ordered, *sorted(more.values(), key=lambda p: (-p.count, p.told.reason)))


def ranks_of(compiles: Sequence[Compile], breaks: Sequence[Break]) -> dict[int, int]:
    """The rank of each process of which lines with just one rank are there: its first lines come
    before it has one."""
    ranks: dict[int, set[int]] = defaultdict(set)
    for process, rank in [
        *((each.process, each.rank) for each in compiles),
        *((each.process, each.rank) for each in breaks),
    ]:
        if process is not None and rank is not None:
            ranks[process].add(rank)
    return {process: next(iter(found)) for process, found in ranks.items() if len(found) == 1}


def with_ranks(told: Iterable[Keyed], ranks: dict[int, int]) -> list[Keyed]:
    return [
        replace(each, rank=ranks.get(each.process))
        if each.rank is None and each.process is not None
        else each
        for each in told
    ]


def merged(told: Iterable[Keyed]) -> tuple[Keyed, ...]:
    """Each once, by its key: what one leaves open, another may fill."""
    kept: dict[object, Keyed] = {}
    for each in told:
        before = kept.get(each.key)
        kept[each.key] = each if before is None else _filled(before, each)
    return tuple(kept.values())


def _filled(one: Keyed, two: Keyed) -> Keyed:
    """One, with what it leaves open from the other; of guards, the longer list."""
    told = {each.name: getattr(two, each.name) for each in fields(one)}
    ours = {name: getattr(one, name) for name in told}
    changes: dict[str, Any] = {
        name: value for name, value in told.items() if value not in OPEN and ours[name] in OPEN
    }
    if ours.get("guards") and told.get("guards"):
        changes["guards"] = max(ours["guards"], told["guards"], key=len)
    return replace(one, **changes)


def _named(compiles: Sequence[Compile]) -> list[Compile]:
    """With the name that other compilations of the same frame have, where one was given up before
    it had any."""
    known = {each.frame: each for each in compiles if each.function}
    return [
        replace(each, function=known[each.frame].function, place=known[each.frame].place)
        if not each.function and each.frame in known
        else each
        for each in compiles
    ]


def _starts(compiles: Sequence[Compile]) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """Where the functions of a name begin in a file: by name and file, line and place."""
    starts: dict[tuple[str, str], set[tuple[int, str]]] = defaultdict(set)
    for each in compiles:
        file, _, line = each.place.rpartition(":")
        if not RESUMED.fullmatch(each.function) and line.isdecimal():
            starts[(each.function, file)].add((int(line), each.place))
    return {key: sorted(found) for key, found in starts.items()}


def _owner(
    each: Compile, starts: dict[tuple[str, str], list[tuple[int, str]]]
) -> tuple[tuple[str, str], bool]:
    """The function that a compilation is of, and whether it is a piece of it after a graph
    break."""
    found = RESUMED.fullmatch(each.function)
    if found is None:
        return (each.function, each.place), False
    file, _, line = each.place.rpartition(":")
    before = [
        place
        for start, place in starts.get((found[1], file), [])
        if line.isdecimal() and start <= int(line)
    ]
    return (found[1], before[-1] if before else file), True


def _function(name: str, place: str, parts: Sequence[tuple[Compile, bool]]) -> CompiledFunction:
    """All that is told of one function; each part with whether it is a piece after a graph
    break."""
    failed = Counter((each.rank, each.process) for each, _ in parts if each.guards is not None)
    most = max(failed, key=lambda key: failed[key], default=None)
    mine = [(each, is_piece) for each, is_piece in parts if (each.rank, each.process) == most]
    limits = [each for each, _ in parts if each.limit]
    whole = Counter(
        (each.rank, each.process)
        for each, _ in parts
        if each.seconds is not None and each.limit is None
    )
    return CompiledFunction(
        name=name,
        place=place,
        processes=len({(each.rank, each.process) for each, _ in parts}),
        compiles=max(whole.values(), default=None),
        recompiles=sum(each.is_again for each, _ in mine),
        resumed=sum(each.is_again and is_piece for each, is_piece in mine),
        most_again=max(
            Counter(_code(each) for each, _ in mine if each.is_again).values(), default=0
        ),
        seconds=_most((each, each.all_seconds) for each, _ in parts),
        again_s=_most((each, each.all_seconds) for each, _ in parts if each.is_again),
        guards=count_guards(each.guards for each, is_piece in mine if each.guards and not is_piece),
        resumed_guards=count_guards(
            each.guards for each, is_piece in mine if each.guards and is_piece
        ),
        limit=limits[0].limit if limits else None,
        limit_part=limits[0].function if limits else "",
    )


def _code(each: Compile) -> tuple[object, ...]:
    """The piece of code that it is of, within a process; by its name where old logs tell no ids."""
    return (each.function, each.place) if each.id.startswith("?") else each.frame


def _place(several: list[Break]) -> BreakPlace:
    """The one of which most is told: a repeated break comes without its stack."""
    per_process = Counter((each.rank, each.process) for each in several)
    fullest = max(
        several, key=lambda each: (bool(each.code), bool(each.hints), bool(each.explanation))
    )
    return BreakPlace(told=fullest, count=max(per_process.values()), processes=len(per_process))


def _most(told: Iterable[tuple[Compile, float | None]]) -> float | None:
    """The greatest sum that one process has; None where nothing is told."""
    sums: dict[tuple[int | None, int | None], float] = defaultdict(float)
    for each, seconds in told:
        if seconds is not None:
            sums[(each.rank, each.process)] += seconds
    return max(sums.values(), default=None)
