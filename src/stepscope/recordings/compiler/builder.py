"""Builds a CompilerReport while recordings of torch.compile are read, with limits on all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from stepscope.core.recordings.compiler import (
    Break,
    CacheUse,
    Compile,
    CompilerRecording,
    CompilerReport,
    merged,
    ranks_of,
    with_ranks,
)
from stepscope.core.recordings.compiler_guard import Guard
from stepscope.recordings.compiler.guards import guard_of

MAX_COMPILES = 50_000
"""A run compiles hundreds of times; TorchDynamo gives a function up after 8, or 256 in all."""
MAX_GUARDS = 500_000
MAX_BREAKS = 10_000
MAX_HINTS = 2_000
MAX_NAME = 300
Writer = tuple[int | None, int | None]
"""Rank and process."""


@dataclass(slots=True)
class CompileBuilder:
    function: str = ""
    location: str = ""
    guards: list[Guard] | None = None
    seconds: float | None = None
    backward_s: float | None = None
    limit: str | None = None


@dataclass(slots=True)
class ReportBuilder:
    compiles: dict[tuple[Writer, str], CompileBuilder] = field(default_factory=dict)
    breaks: dict[tuple[object, ...], Break] = field(default_factory=dict)
    hints: Counter[str] = field(default_factory=Counter)
    caches: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Caches by file, cache, and hit, miss or bypass."""
    left_out: Counter[str] = field(default_factory=Counter)
    num_guards: int = 0
    num_lines: int = 0
    """Lines of the format that was looked for."""

    def compile(self, writer: Writer, ident: str) -> CompileBuilder:
        """The compilation of this id. Beyond the limit it is one that nobody keeps."""
        key = (writer, ident)
        if key not in self.compiles and len(self.compiles) >= MAX_COMPILES:
            self.left_out["compilations"] += 1
            return CompileBuilder()
        return self.compiles.setdefault(key, CompileBuilder())

    def add_guard(
        self, compiled: CompileBuilder, text: str, frames: Sequence[tuple[str, str]] = ()
    ) -> None:
        """One more guard that failed."""
        guards = compiled.guards = [] if compiled.guards is None else compiled.guards
        if self.num_guards >= MAX_GUARDS:
            self.left_out["guards"] += 1
            return
        self.num_guards += 1
        guards.append(parsed_guard(text, tuple(frames)))

    def add_break(self, graph_break: Break) -> None:
        if graph_break.key not in self.breaks and len(self.breaks) >= MAX_BREAKS:
            self.left_out["graph breaks"] += 1
        else:
            self.breaks.setdefault(graph_break.key, graph_break)

    def add_hint(self, text: str) -> None:
        if text not in self.hints and len(self.hints) >= MAX_HINTS:
            self.left_out["performance hints"] += 1
        elif text:
            self.hints[text] += 1

    def notes(self) -> Iterator[str]:
        for what, count in self.left_out.items():
            if count:
                yield f"{count} {what} beyond what is kept were left out"

    def finished(self, name: str, paths: Sequence[str], notes: Sequence[str]) -> CompilerReport:
        """The report of one recording, of this format and these files."""
        compiles = [
            _compile(writer, ident, builder) for (writer, ident), builder in self.compiles.items()
        ]
        breaks = list(self.breaks.values())
        ranks = ranks_of(compiles, breaks)
        caches = sorted({(path, cache) for path, cache, _ in self.caches})
        recording = CompilerRecording(
            format=name,
            paths=tuple(paths),
            notes=(*notes, *self.notes()),
            compiles=merged(with_ranks(compiles, ranks)),
            breaks=merged(with_ranks(breaks, ranks)),
            hints=tuple(self.hints.most_common()),
            caches=tuple(
                CacheUse(
                    path=path,
                    cache=cache,
                    hits=self.caches[(path, cache, "hit")],
                    misses=self.caches[(path, cache, "miss")],
                    bypassed=self.caches[(path, cache, "bypass")],
                )
                for path, cache in caches
            ),
        )
        return CompilerReport(recordings=(recording,))


@lru_cache(maxsize=20_000)
def parsed_guard(text: str, frames: tuple[tuple[str, str], ...]) -> Guard:
    """The same guard is printed again for every version that it keeps out."""
    return guard_of(text, frames)


def _compile(writer: Writer, ident: str, builder: CompileBuilder) -> Compile:
    rank, process = writer
    return Compile(
        rank=rank,
        process=process,
        id=ident,
        function=builder.function[:MAX_NAME],
        location=builder.location[-MAX_NAME:],
        guards=None if builder.guards is None else tuple(builder.guards),
        seconds=builder.seconds,
        backward_s=builder.backward_s,
        limit=builder.limit,
    )
