"""Dumps of PyTorch's flight recorder, a file for each rank: pickles (`nccl_trace_rank_3`, read
without running anything in them) and the JSON of `_dump_fr_trace_json`.

    {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
     "entries": [{"record_id": 6, "process_group": ("0", "default_pg"), "collective_seq_id": 7,
                  "profiling_name": "nccl:all_reduce", "state": "started", "frames": [...], ...}]}

A rank's number is in its file's name alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from stepscope.api import Auxiliary, FormatError, Reader, Source, TrainingLog
from stepscope.core.recordings.nccl import (
    SCHEDULED,
    STATES,
    FlightCall,
    FlightDump,
    FlightFrame,
    FlightGroup,
)
from stepscope.core.recordings.training_log import TrainingRecording
from stepscope.protocol.untrusted import as_object, finite, parse_json, whole
from stepscope.readers.whole_file import whole_text
from stepscope.recordings.safe_unpickle import PROTOCOLS, load_plain

FORMAT = "flight-recorder"
MAX_BYTES = 512 << 20
MAX_OWN_CALLS, MAX_CALLS = 100_000, 2_000_000
"""Calls kept of one rank, its last ones, and of all ranks together; MIN_CALLS of each at the
least."""
MIN_CALLS = 256
MAX_RANKS = 200_000
MAX_GROUPS = 4096
MAX_FRAMES = 200
MAX_TENSORS = 64
MAX_TEXT = 200
NUM_WHERE = 3
MARKS = (b"profiling_name", b"seq_id")
EMPTY_MARKS = (b"pg_config", b"pg_status")
"""Marks of a dump without an entry."""
RANK = re.compile(r"rank[-_.=]?(\d{1,6})(?!\d)", re.IGNORECASE)
NUMBER = re.compile(r"(\d{1,6})(?:\.[A-Za-z]\w{0,8})*$")
LIBRARY = re.compile(r"(?:site|dist)-packages/|lib/python\d|^<|^/usr/lib/python|^/opt/conda/lib")
ENDS = re.compile(r"(\d{1,7})\s?(->|<-)\s?(\d{1,7})")
OPS = {"all_reduce_barrier": "barrier"}
"""NCCL's barrier is an all_reduce of one element."""
AGAIN = (
    "Dump it anew: TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give the "
    "nccl_trace_rank_* files"
)


def is_mine(head: bytes, _name: str) -> bool:
    """A pickle or a JSON object with the recorder's keys in it."""
    is_pickle = len(head) > 2 and head[0] == 0x80 and head[1] in PROTOCOLS
    is_object = head.lstrip()[:1] == b"{" and b'"traceEvents"' not in head
    if not is_pickle and not is_object:
        return False
    return all(mark in head for mark in MARKS) or all(mark in head for mark in EMPTY_MARKS)


def read(sources: Sequence[Source]) -> TrainingLog:
    """All ranks' dumps as one recording."""
    most = min(MAX_OWN_CALLS, max(MIN_CALLS, MAX_CALLS // max(len(sources), 1)))
    dumps: dict[int, FlightDump] = {}
    notes: list[str] = []
    problem: FormatError | None = None
    for source in sources:
        try:
            dump = _dump(source, most, notes, set(dumps))
        except FormatError as failed:
            problem = failed
            notes.append(f"{failed}; the other ranks' were read")
            continue
        other = dumps.get(dump.rank)
        if other is not None:
            dump, left = _better(dump, other)
            notes.append(f"rank {dump.rank} has two dumps: {dump.path} is used, not {left.path}")
        dumps[dump.rank] = dump
    if not dumps:
        assert problem is not None
        raise problem
    ranks = [dumps[rank] for rank in sorted(dumps)]
    notes += _notes(ranks)
    recording = TrainingRecording(
        format=FORMAT,
        paths=tuple(dump.path for dump in ranks),
        notes=tuple(notes),
        dumps=tuple(ranks),
    )
    return TrainingLog(recordings=(recording,))


def _better(dump: FlightDump, other: FlightDump) -> tuple[FlightDump, FlightDump]:
    """Better of two dumps of one rank, then the other: that with stacks, then the later one."""

    def key(each: FlightDump) -> tuple[bool, int]:
        return each.has_stacks, max((call.created_ns or 0 for call in each.calls), default=0)

    return (dump, other) if key(dump) > key(other) else (other, dump)


def _dump(source: Source, most: int, notes: list[str], taken: set[int]) -> FlightDump:
    data, problem = whole_text(source, MAX_BYTES, "record fewer: TORCH_FR_BUFFER_SIZE=2000")
    if problem is not None:
        raise FormatError(f"{source.label}: {problem}; a dump is read whole or not at all")
    if data[:1] == b"\x80":
        value = load_plain(data, source.label, "a flight recorder's dump")
    else:
        try:
            value = parse_json(data)
        except ValueError as wrong:
            raise FormatError(f"{source.label} is not whole JSON: {wrong}. {AGAIN}") from None
    del data
    entries = value.get("entries", []) if isinstance(value, dict) else None
    if not isinstance(entries, list):
        raise FormatError(f"{source.label} is no dump of the flight recorder. {AGAIN}")
    rank = _rank(source)
    if rank is None:
        rank = next(number for number in range(len(taken) + 1) if number not in taken)
        notes.append(f"{source.label}: its name does not tell a rank; taken for rank {rank}")
    parser = _DumpParser(as_object(value.get("pg_config")))
    calls = [call for entry in entries[-most:] if (call := parser.call(entry)) is not None]
    calls.sort(key=lambda call: call.record)
    if parser.num_unread:
        notes.append(f"{source.label}: {parser.num_unread:,} entries could not be read")
    if len(entries) > most:
        notes.append(f"{source.label}: the last {most:,} of {len(entries):,} entries were read")
    backend = parser.backends.most_common(1)[0][0] if parser.backends else ""
    return FlightDump(
        path=source.label,
        rank=rank,
        backend=backend,
        groups=tuple(parser.groups),
        calls=tuple(calls),
        num_entries=len(entries),
        has_stacks=any(call.where for call in calls),
        is_from_start=bool(calls) and calls[0].record == 0,
    )


def _rank(source: Source) -> int | None:
    if source.rank is not None:
        return source.rank
    name = source.label.replace("\\", "/").rsplit("/", 1)[-1]
    match = RANK.search(name) or NUMBER.search(name)
    return None if match is None else int(match[1])


def _notes(dumps: Sequence[FlightDump]) -> Iterator[str]:
    for dump in dumps:
        if any(dump.is_to_itself(call) for call in dump.calls):
            yield (
                f"{dump.path}: it exchanges data with rank {dump.rank}, which its name says it is: "
                "give it the number of its own rank"
            )
    if not any(dump.has_stacks for dump in dumps) and any(dump.calls for dump in dumps):
        yield (
            "no stacks in these dumps, so no source lines: the JSON form has none; the pickles "
            "that TORCH_NCCL_DUMP_ON_TIMEOUT=1 writes have them"
        )
    if any(dump.backend == "gloo" for dump in dumps):
        yield (
            "gloo's send and recv are not recorded: a rank that waits in one is seen as a rank "
            "that did not come"
        )


class _DumpParser:
    """The entries of one dump. Texts and stacks that repeat are kept once."""

    def __init__(self, configs: Mapping[Any, Any]) -> None:
        self.configs = {
            _text(name): config for name, config in configs.items() if isinstance(config, dict)
        }
        self.groups: list[FlightGroup] = []
        self.backends: Counter[str] = Counter()
        self.num_unread = 0
        self._group_of: dict[tuple[str, str], int] = {}
        self._kept: dict[Any, Any] = {}
        self._read: dict[tuple[str, int], Any] = {}
        """What was made of a list or dict, by its identity: a pickle names one object as often as
        it likes, for two bytes each."""

    def call(self, entry: Any) -> FlightCall | None:
        """None for what is no entry, which is counted."""
        return self._shared("call", entry, self._call)  # type: ignore[no-any-return]

    def _shared(self, what: str, value: Any, read: Callable[[Any], Any]) -> Any:
        """What `read` makes of it; of one object once. The dump outlives the parser, and with it
        every identity."""
        key = (what, id(value))
        if key not in self._read:
            self._read[key] = read(value)
        return self._read[key]

    def _call(self, entry: Any) -> FlightCall | None:
        record = whole(entry.get("record_id"), 0) if isinstance(entry, dict) else None
        name = entry.get("profiling_name") if isinstance(entry, dict) else None
        if record is None or not isinstance(name, str):
            self.num_unread += 1
            return None
        backend, _, op = name[:MAX_TEXT].rpartition(":")
        self.backends[backend] += 1
        is_p2p = entry.get("is_p2p") is True
        # The first version (PyTorch 2.2) has one number for both, and no name of a group.
        numbered = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))
        sequence = whole(numbered, 0)
        state = entry.get("state")
        where, is_library = self._shared("where", entry.get("frames"), self._where)
        return FlightCall(
            record=record,
            group=self._group(entry.get("process_group", (entry.get("pg_id"),))),
            op=self._once(OPS.get(word := op.split(" ")[0] or "?", word)),
            sequence=0 if sequence is None else sequence,
            is_p2p=is_p2p,
            ends=_ends(op),
            input_sizes=self._shared("sizes", entry.get("input_sizes"), self._sizes),
            input_types=self._shared("types", entry.get("input_dtypes"), self._types),
            state=state if state in STATES else SCHEDULED,
            is_retired=entry.get("retired") is True,
            created_ns=_time(entry.get("time_created_ns")),
            started_ns=_time(entry.get("time_discovered_started_ns")),
            completed_ns=_time(entry.get("time_discovered_completed_ns")),
            timeout_s=None
            if (limit := finite(entry.get("timeout_ms"), 0)) is None
            else limit / 1e3,
            where=where,
            is_backward=(not where or is_library)
            and _text(entry.get("thread_name")).startswith("pt_autograd"),
        )

    def _once(self, value: Any) -> Any:
        return self._kept.setdefault(value, value)

    def _sizes(self, value: Any) -> Any:
        return self._once(_sizes(value))

    def _types(self, value: Any) -> Any:
        return self._once(_texts(value))

    def _group(self, given: Any) -> int:
        texts = _texts(given)
        name, desc = (*texts, "", "")[:2]
        if (name, desc) not in self._group_of and len(self.groups) < MAX_GROUPS:
            self._group_of[name, desc] = len(self.groups)
            self.groups.append(FlightGroup(name, desc, self._ranks(name, desc)))
        return self._group_of.get((name, desc), 0)

    def _ranks(self, name: str, desc: str) -> tuple[int, ...] | None:
        """Ranks of a group, by their numbers in the world. Gloo's dumps have the world alone, under
        no name."""
        config = self.configs.get(name)
        if config is None and (name == "0" or desc == "default_pg"):
            config = self.configs.get("")
        given = None if config is None else config.get("ranks")
        ranks: tuple[int, ...] | None = self._shared("ranks", given, self._numbers)
        return ranks

    def _numbers(self, given: Any) -> tuple[int, ...] | None:
        if isinstance(given, str):
            given = [int(text) for text in re.findall(r"\d{1,9}", given[: 8 * MAX_RANKS])]
        ranks = [
            rank
            for each in (given if isinstance(given, list) else ())[:MAX_RANKS]
            if (rank := whole(each, 0)) is not None
        ]
        return tuple(sorted(set(ranks))) or None

    def _where(self, frames: Any) -> tuple[tuple[FlightFrame, ...], bool]:
        """The training code's innermost calls, or a library's; and whether it is that."""
        read = []
        for frame in (frames if isinstance(frames, list) else ())[:MAX_FRAMES]:
            if isinstance(frame, dict):
                file, line = _text(frame.get("filename")), whole(frame.get("line"), 0)
                read.append(FlightFrame(_text(frame.get("name")), file, line or 0))
        own = [frame for frame in read if not LIBRARY.search(frame.file)]
        where: tuple[FlightFrame, ...] = self._once(tuple((own or read)[:NUM_WHERE]))
        return where, not own


def _ends(op: str) -> tuple[int, int] | None:
    """`send 1->2`, `recv 3<-0`: from and to."""
    match = ENDS.search(op)
    if match is None:
        return None
    first, second = int(match[1]), int(match[3])
    return (first, second) if match[2] == "->" else (second, first)


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(
        tuple(whole(size, 0) or 0 for size in tensor[:MAX_TENSORS])
        for tensor in value[:MAX_TENSORS]
        if isinstance(tensor, (list, tuple))
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, value[:MAX_TENSORS])) if isinstance(value, (list, tuple)) else ()


def _text(value: Any) -> str:
    return str(value)[:MAX_TEXT] if isinstance(value, (str, int, float)) else ""


def _time(value: Any) -> int | None:
    """0 is how the JSON says that it has not come to that."""
    number = finite(value, 0)
    return None if not number else int(value)


def complete(auxiliary: Auxiliary) -> Auxiliary:
    """Add why the job stands still, where the ranks' dumps show it."""
    if auxiliary.training is None:
        return auxiliary
    from stepscope.recordings.flight.hang import find_hang

    return replace(auxiliary, hang=find_hang(auxiliary.training.dumps))


READER = Reader(is_mine=is_mine, read_together=read, complete=complete)
