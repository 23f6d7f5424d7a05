"""What torch.compile did: each compilation with the guards that failed, each graph break, caches,
and the limits that were hit.

A compilation has an id, `frame/number`, that is unique in its process: two recordings of one run
have the same compilations, and joined they count once. Ranks do the same work side by side, so
counts and seconds are those of the process with most.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.recordings.compiler_guard import Guard, GuardCount, count_guards
from stepscope.core.recordings.recording import Recording

RESUMED = re.compile(r"(?:torch_dynamo_resume_in_)+(.+?)(?:_at_\d{1,9})+")
"""The rest of a function after a graph break."""
OPEN = (None, "", ())
NO_REASON = "no reason told"
FEWER_COMPILES = (
    "torch.compile(dynamic=True) or mark_dynamic for the size that changes; TORCH_LOGS=recompiles "
    "names the guard"
)
"""What to do about sizes that change, where no guard is known."""


class Compile(Struct, frozen=True, kw_only=True):
    """One compilation, or an attempt at one."""

    rank: int | None = None
    process: int | None = None
    id: str
    function: str = ""
    location: str = ""
    """`file:line` of the function."""
    guards: tuple[Guard, ...] | None = None
    """Guards that kept the compiled versions from being used, the newest version's first; None for
    a first compilation."""
    seconds: float | None = None
    """Forward, or the whole where both are compiled together."""
    backward_s: float | None = None
    limit: str | None = None
    """`recompile_limit (8)`: it was given up, nothing was compiled."""

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
        parts = [part for part in (self.seconds, self.backward_s) if part is not None]
        return sum(parts) if parts else None


class Break(Struct, frozen=True, kw_only=True):
    """One graph break: where TorchDynamo could not go on."""

    rank: int | None = None
    process: int | None = None
    id: str
    location: str = ""
    """`file:line` as TorchDynamo prints it."""
    reason: str
    explanation: str = ""
    hints: tuple[str, ...] = ()
    code: str = ""
    """The line of code there."""
    called_from: str = ""
    """The innermost line outside of installed packages, where `location` is inside one."""

    @property
    def key(self) -> tuple[int | None, int | None, str, str, str]:
        return (self.rank, self.process, self.id, self.location, self.reason)


class Counted(Struct, frozen=True, kw_only=True):
    """What one process counted over its life; None where it kept no such count."""

    path: str
    frames: int | None = None
    frames_ok: int | None = None
    graphs: int | None = None
    limit_hits: int | None = None
    breaks: tuple[tuple[Break, int], ...] = ()
    """Reasons, with hints but no locations."""


class CacheUse(Struct, frozen=True, kw_only=True):
    """How often one of the compiler's caches, kept between runs, had what was asked for."""

    path: str
    cache: str
    hits: int
    misses: int
    bypassed: int = 0


class CompiledFunction(Struct, frozen=True, kw_only=True):
    """A function over all its compilations; the rest of it after graph breaks is counted in."""

    name: str
    location: str
    compiles: int | None
    """None where the recording has only what was compiled again."""
    recompiles: int
    resumed: int
    """Recompilations of pieces after a graph break."""
    most_again: int
    """The most that one piece, or the function itself, was compiled again: each learns by itself
    what changes."""
    seconds: float | None
    again_s: float | None
    """Seconds for what was compiled again."""
    guards: tuple[GuardCount, ...]
    """Guards of the function itself, those that failed most often first."""
    resumed_guards: tuple[GuardCount, ...]
    limit: str | None
    """`recompile_limit (8)`, once it was hit."""
    limit_part: str = ""
    """The piece that hit it."""


class BreakCount(Struct, frozen=True, kw_only=True):
    """A graph break over all the times it happened."""

    graph_break: Break
    count: int
    processes: int


Keyed = TypeVar("Keyed", Compile, Break)


class KernelOrigin(Struct, frozen=True, kw_only=True):
    """Where a compiled kernel comes from."""

    kernel: str
    """Name of the kernel as a trace has it."""
    lines: tuple[str, ...]
    """`model.py:9 in forward`."""
    nodes: tuple[str, ...]
    """The operators of the graph that became it."""


class CompilerRecording(Recording, frozen=True, kw_only=True):
    """What was read of the compiler."""

    compiles: tuple[Compile, ...] = ()
    breaks: tuple[Break, ...] = ()
    hints: tuple[tuple[str, int], ...] = ()
    """Inductor's performance hints, with how often each was given."""
    counted: tuple[Counted, ...] = ()
    caches: tuple[CacheUse, ...] = ()
    counters: tuple[tuple[str, str, int], ...] = ()
    """All of Dynamo's: section, name and count."""
    origins: tuple[KernelOrigin, ...] = ()
    """Origins of compiled kernels."""

    def joined(self, other: CompilerRecording) -> CompilerRecording:
        """Both; what both have of one compilation is one."""
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
            origins=(*self.origins, *other.origins),
        )


class CompilerReport(Struct, frozen=True, kw_only=True):
    """All recordings of the compiler that were given."""

    recordings: tuple[CompilerRecording, ...] = ()

    @property
    def whole(self) -> CompilerRecording:
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
    def counted(self) -> tuple[Counted, ...]:
        return self.whole.counted

    @property
    def kernel_lines(self) -> dict[str, str]:
        """The first line of each compiled kernel whose lines are known."""
        known = (origin for each in self.recordings for origin in each.origins if origin.lines)
        return {origin.kernel: origin.lines[0] for origin in known}

    @property
    def num_processes(self) -> int:
        writers = {(each.rank, each.process) for each in self.compiles}
        return len(writers | {(each.rank, each.process) for each in self.breaks})

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
        functions = [_function(*key, compiles) for key, compiles in parts.items()]
        return tuple(
            sorted(
                functions,
                key=lambda f: (
                    -(f.again_s or 0.0),
                    -f.recompiles,
                    f.limit is None,
                    f.location,
                    f.name,
                ),
            )
        )

    def break_counts(self) -> tuple[BreakCount, ...]:
        """Each break once, the most frequent first; those that counters alone have come after,
        without a location."""
        by_location: dict[tuple[str, str], list[Break]] = defaultdict(list)
        for graph_break in self.breaks:
            by_location[(graph_break.location, graph_break.reason)].append(graph_break)
        counts = [_break_count(several) for several in by_location.values()]
        reasons = {reason for _, reason in by_location}
        counted_only: dict[str, BreakCount] = {}
        for graph_break, count in (pair for counted in self.counted for pair in counted.breaks):
            if graph_break.reason not in reasons:
                before = counted_only.get(graph_break.reason)
                most, processes = (before.count, before.processes) if before else (0, 0)
                counted_only[graph_break.reason] = BreakCount(
                    graph_break=graph_break, count=max(count, most), processes=processes + 1
                )
        ordered = sorted(counts, key=lambda p: (-p.count, p.graph_break.location))
        return (
            *ordered,
            *sorted(counted_only.values(), key=lambda p: (-p.count, p.graph_break.reason)),
        )


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
    return {process: next(iter(seen)) for process, seen in ranks.items() if len(seen) == 1}


def with_ranks(entries: Iterable[Keyed], ranks: dict[int, int]) -> list[Keyed]:
    return [
        replace(entry, rank=ranks.get(entry.process))
        if entry.rank is None and entry.process is not None
        else entry
        for entry in entries
    ]


def merged(entries: Iterable[Keyed]) -> tuple[Keyed, ...]:
    """Each once, by its key: what one leaves open, another may fill."""
    kept: dict[object, Keyed] = {}
    for entry in entries:
        before = kept.get(entry.key)
        kept[entry.key] = entry if before is None else _filled(before, entry)
    return tuple(kept.values())


def _filled(entry: Keyed, other: Keyed) -> Keyed:
    """The entry, with what it leaves open from the other; of guards, the longer list."""
    theirs = {each: getattr(other, each) for each in entry.__struct_fields__}
    ours = {name: getattr(entry, name) for name in theirs}
    changes: dict[str, Any] = {
        name: value for name, value in theirs.items() if value not in OPEN and ours[name] in OPEN
    }
    if ours.get("guards") and theirs.get("guards"):
        changes["guards"] = max(ours["guards"], theirs["guards"], key=len)
    return replace(entry, **changes)


def _named(compiles: Sequence[Compile]) -> list[Compile]:
    """Give compilations the name that others of the same frame have, where one was given up before
    it had any."""
    named = {each.frame: each for each in compiles if each.function}
    return [
        replace(each, function=named[each.frame].function, location=named[each.frame].location)
        if not each.function and each.frame in named
        else each
        for each in compiles
    ]


def _starts(compiles: Sequence[Compile]) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """Where the functions of a name begin in a file: by name and file, line and location."""
    starts: dict[tuple[str, str], set[tuple[int, str]]] = defaultdict(set)
    for each in compiles:
        file, _, line = each.location.rpartition(":")
        if not RESUMED.fullmatch(each.function) and line.isdecimal():
            starts[(each.function, file)].add((int(line), each.location))
    return {key: sorted(lines) for key, lines in starts.items()}


def _owner(
    each: Compile, starts: dict[tuple[str, str], list[tuple[int, str]]]
) -> tuple[tuple[str, str], bool]:
    """The function that a compilation is of, and whether it is a piece of it after a graph
    break."""
    resumed = RESUMED.fullmatch(each.function)
    if resumed is None:
        return (each.function, each.location), False
    file, _, line = each.location.rpartition(":")
    before = [
        location
        for start, location in starts.get((resumed[1], file), [])
        if line.isdecimal() and start <= int(line)
    ]
    return (resumed[1], before[-1] if before else file), True


def _function(name: str, location: str, parts: Sequence[tuple[Compile, bool]]) -> CompiledFunction:
    """All that was recorded of one function; each part with whether it is a piece after a graph
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
        location=location,
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
    """The piece of code that it is of, within a process; by its name where old logs have no ids."""
    return (each.function, each.location) if each.id.startswith("?") else each.frame


def _break_count(several: list[Break]) -> BreakCount:
    """Count breaks under the one with most details: a repeated one comes without its stack."""
    per_process = Counter((each.rank, each.process) for each in several)
    fullest = max(
        several, key=lambda each: (bool(each.code), bool(each.hints), bool(each.explanation))
    )
    return BreakCount(
        graph_break=fullest, count=max(per_process.values()), processes=len(per_process)
    )


def _most(seconds_of: Iterable[tuple[Compile, float | None]]) -> float | None:
    """The greatest sum that one process has; None where there is none."""
    sums: dict[tuple[int | None, int | None], float] = defaultdict(float)
    for each, seconds in seconds_of:
        if seconds is not None:
            sums[(each.rank, each.process)] += seconds
    return max(sums.values(), default=None)
