"""Stacks of the host's threads, counted: which function was innermost, which was anywhere, whose
code it is.

Every profiler's file is read into the same tally; what it keeps is bounded, however many stacks
there are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from stepscope.core.recordings.system import HostStacks, HostThread, HotSpot

MAX_FUNCTIONS = 100_000
MAX_THREADS = 10_000
MAX_STACKS = 50_000
"""Unlike ones, that wait to be tallied."""
MAX_DEPTH = 512
"""Calls kept of a stack, the innermost: deeper ones are recursion."""
MAX_LINES = 16
"""Lines of a function that are counted; the most frequent is named."""
MAX_NAME = 300
SHOWN = 40
LIBRARIES = frozenset((
    "torch", "torchvision", "torchaudio", "triton", "numpy", "pandas", "scipy", "PIL", "cv2",
    "transformers", "accelerate", "deepspeed", "lightning", "pytorch_lightning", "datasets",
    "tokenizers", "sklearn", "wandb", "tqdm", "apex", "flash_attn", "pyarrow", "fsspec",
    "pyinstrument", "viztracer",
))  # fmt: skip
"""First parts of a path that a tool has shortened; a whole path says it by site-packages."""
INSTALLED = re.compile(r"(?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d")
NATIVE_FILE = re.compile(
    r"\.(?:so(?:\.[\d.]+)?|c|cc|cpp|cxx|cu|h|hpp|rs|pyx|dylib|dll)$|^(?:<built-in>|\[|\?$)"
)
GIL_CALLS = frozenset({
    "take_gil", "take_gil.isra.0", "PyEval_AcquireThread", "PyEval_RestoreThread",
    "PyGILState_Ensure",
})  # fmt: skip
WAITS = re.compile(r"_*pthread_cond_(?:timed|clock)?wait")
WAITING = re.compile(
    r"_*(?:pthread_cond_|sem_(?:timed|clock)?wait|futex|e?poll|select|nanosleep|clock_nanosleep|accept|recv)"
)
"""What a thread that does not run stands in: a recording that has one has idle threads in it."""
OTHERS = "(others)"
BUILT_IN = "<built-in>"
"""The file of a C function that Python called, where no native frames were recorded: what it calls
is not known."""


class Call(NamedTuple):
    name: str
    file: str | None = None
    line: int | None = None
    is_native: bool = False


@dataclass(slots=True)
class _Sums:
    own: float = 0.0
    whole: float = 0.0
    training: float = 0.0
    training_own: float = 0.0
    lines: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class StackTally:
    """Stacks with their weights, in samples or seconds."""

    functions: dict[tuple[str, str | None], _Sums] = field(default_factory=dict)
    threads: dict[str, float] = field(default_factory=dict)
    gil_waits: dict[str, float] = field(default_factory=dict)
    amount: float = 0.0
    interpreter: float = 0.0
    has_native: bool = False
    has_waits: bool = False
    """Threads that wait were recorded too: without them nothing is known of waits for the lock."""
    num_deep: int = 0
    num_stacks: int = 0
    is_full: bool = False

    def add(self, calls: Sequence[Call], weight: float, thread: str | None = None) -> None:
        """One stack, the innermost call last."""
        self.num_stacks += 1
        self.amount += weight
        if len(calls) > MAX_DEPTH:
            self.num_deep += 1
            calls = calls[-MAX_DEPTH:]
        name = None if thread is None else self._thread(thread)
        if name is not None:
            self.threads[name] = self.threads.get(name, 0.0) + weight
        if not calls:
            return
        seen: set[tuple[str, str | None]] = set()
        for call in calls:
            sums = self._sums(call)
            if (call.name, call.file) not in seen:
                seen.add((call.name, call.file))
                sums.whole += weight
                if call.line is not None and (
                    call.line in sums.lines or len(sums.lines) < MAX_LINES
                ):
                    sums.lines[call.line] = sums.lines.get(call.line, 0.0) + weight
        self._sums(calls[-1]).own += weight
        self.has_native = self.has_native or any(
            call.is_native and call.file != BUILT_IN for call in calls
        )
        self.has_waits = self.has_waits or (
            calls[-1].is_native and any(WAITING.match(call.name) for call in calls[-3:])
        )
        if name is not None and waits_for_gil(calls):
            self.gil_waits[name] = self.gil_waits.get(name, 0.0) + weight
        runs = not calls[-1].is_native
        self.interpreter += weight if runs else 0.0
        innermost = next((call for call in reversed(calls) if is_training(call)), None)
        if innermost is not None:
            sums = self._sums(innermost)
            sums.training += weight
            sums.training_own += (
                weight
                if runs and not any(call.is_native for call in _below(calls, innermost))
                else 0.0
            )

    def _sums(self, call: Call) -> _Sums:
        key = (call.name, call.file)
        sums = self.functions.get(key)
        if sums is None:
            if len(self.functions) >= MAX_FUNCTIONS:
                self.is_full = True
                key = (OTHERS, None)
            sums = self.functions.setdefault(key, _Sums())
        return sums

    def _thread(self, name: str) -> str:
        return (
            name[:MAX_NAME] if name in self.threads or len(self.threads) < MAX_THREADS else OTHERS
        )

    def notes(self, label: str) -> list[str]:
        notes = []
        if self.num_deep:
            notes.append(
                f"{label}: {self.num_deep:,} stack(s) deeper than {MAX_DEPTH} calls were cut at "
                "their outer end"
            )
        if self.is_full:
            notes.append(
                f"{label}: functions after the first {MAX_FUNCTIONS:,} were counted together"
            )
        return notes

    def hot_spots(self) -> tuple[HotSpot, ...]:
        """The hottest by their own share and by the whole of it."""
        items = [(key, sums) for key, sums in self.functions.items() if key[0] != OTHERS]
        by_own = sorted(items, key=lambda item: -item[1].own)[:SHOWN]
        by_whole = sorted(items, key=lambda item: -item[1].whole)[:SHOWN]
        chosen = dict([*by_own, *by_whole])
        return tuple(self._spot(key, sums, sums.own, sums.whole) for key, sums in chosen.items())

    def training_spots(self) -> tuple[HotSpot, ...]:
        items = sorted(
            (item for item in self.functions.items() if item[1].training),
            key=lambda item: -item[1].training,
        )[:SHOWN]
        return tuple(self._spot(key, sums, sums.training_own, sums.training) for key, sums in items)

    def _spot(self, key: tuple[str, str | None], sums: _Sums, own: float, whole: float) -> HotSpot:
        line = max(sums.lines, key=lambda number: sums.lines[number]) if sums.lines else None
        amount = self.amount or 1.0
        return HotSpot(
            name=key[0],
            file=key[1],
            line=line,
            self_share=own / amount,
            total_share=whole / amount,
        )

    def host_threads(self) -> tuple[HostThread, ...]:
        amount = self.amount or 1.0
        return tuple(
            HostThread(
                name=name,
                share=weight / amount,
                gil_wait_share=self.gil_waits.get(name, 0.0) / weight
                if self.has_waits and weight
                else None,
            )
            for name, weight in sorted(self.threads.items(), key=lambda item: -item[1])[:SHOWN]
        )

    def even_threads(self) -> int | None:
        """Threads with at least half of an even share of what all threads were seen to do."""
        if not self.threads:
            return None
        least = 0.5 * sum(self.threads.values()) / len(self.threads)
        return sum(weight >= least for weight in self.threads.values())

    def stacks(self, *, tool: str, path: str, unit: str) -> HostStacks:
        """What every profiler has; the reader adds what only it knows."""
        waits, amount = sum(self.gil_waits.values()), self.amount
        return HostStacks(
            tool=tool,
            path=path,
            unit=unit,
            amount=amount,
            functions=self.hot_spots(),
            training=self.training_spots(),
            threads=self.host_threads(),
            num_threads=len(self.threads) or None,
            has_native=self.has_native,
            interpreter_share=self.interpreter / amount if self.has_native and amount else None,
            gil_wait_share=waits / amount if self.has_waits and self.threads and amount else None,
            even_threads=self.even_threads(),
        )


@dataclass(slots=True)
class StackCounts:
    """Equal stacks put together before they are tallied; bounded, for a tally takes them in any
    number of parts."""

    tally: StackTally
    _weights: dict[tuple[str | None, tuple[Call, ...]], float] = field(default_factory=dict)

    def add(self, calls: tuple[Call, ...], weight: float, thread: str | None) -> None:
        key = (thread, calls)
        self._weights[key] = self._weights.get(key, 0.0) + weight
        if len(self._weights) >= MAX_STACKS:
            self.flush()

    def flush(self) -> None:
        for (thread, calls), weight in self._weights.items():
            self.tally.add(calls, weight, thread)
        self._weights.clear()


@lru_cache(maxsize=65_536)
def is_training(call: Call) -> bool:
    """Python that is neither the interpreter's nor an installed library's, as far as its path
    shows."""
    file = call.file
    if call.is_native or not file or file.startswith("<") or INSTALLED.search(file):
        return False
    first = re.split(r"[/\\]", file.lstrip("./\\"), maxsplit=1)[0]
    is_shortened = not file.startswith(("/", "\\")) and file[1:2] != ":"
    stem = first.removesuffix(".py")
    return not (is_shortened and (stem in LIBRARIES or stem in sys.stdlib_module_names))


def waits_for_gil(calls: Sequence[Call]) -> bool:
    """The innermost calls wait for the interpreter's lock.

    py-spy leaves the interpreter's own frames out, so that the wait's condition variable stands
    right below a call of Python. A lock of Python's own waits on a semaphore, and has its C
    function between.
    """
    for index in range(len(calls) - 1, max(len(calls) - 6, -1), -1):
        call = calls[index]
        if not call.is_native:
            return False
        if call.name in GIL_CALLS:
            return True
        if WAITS.match(call.name):
            return index > 0 and (
                not calls[index - 1].is_native or calls[index - 1].name in GIL_CALLS
            )
    return False


def is_native(name: str, file: str | None) -> bool:
    return name.startswith("0x") or (file is not None and NATIVE_FILE.search(file) is not None)


def parse_location(text: str) -> tuple[str, str | None, int | None]:
    """`name (file:line)` in its parts; file or line are None where they are not there."""
    name, space, location = text[:-1].rpartition(" (") if text.endswith(")") else (text, "", "")
    if not space or not name:
        return text[:MAX_NAME], None, None
    file, colon, line = location.rpartition(":")
    if colon and file and line.isascii() and line.isdigit() and len(line) < 10:
        return name[:MAX_NAME], file, int(line)
    return name[:MAX_NAME], location, None


def _below(calls: Sequence[Call], outer: Call) -> Sequence[Call]:
    index = max(position for position, call in enumerate(calls) if call == outer)
    return calls[index + 1 :]
