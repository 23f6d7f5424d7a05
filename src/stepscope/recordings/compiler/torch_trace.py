"""Structured traces of torch.compile (TORCH_TRACE), one file for each rank, and what tlparse makes
of them.

    V1116 07:42:42.929000 15749 .../utils.py:2009] {"compilation_metrics": {...}, "frame_id": 0}
    V1116 07:42:50.916000 15749 .../guards.py:5400] {"artifact": {...}, "has_payload": "c84"}
    <tab>the payload, line by line

tlparse keeps the file as raw.log and has each line's JSON, without payloads, in raw.jsonl. The
graphs and generated code that are most of such a file are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import PurePosixPath
from typing import Any

from msgspec.structs import replace

from stepscope.api import FormatError, Reader, Source, Stream
from stepscope.core.recordings.compiler import CompilerReport
from stepscope.protocol.untrusted import finite, parse_json
from stepscope.readers.text_lines import bounded_lines
from stepscope.recordings.compiler.breaks import break_of, counted_break, frames_in
from stepscope.recordings.compiler.builder import (
    MAX_COMPILES,
    MAX_NAME,
    CompileBuilder,
    ReportBuilder,
    Writer,
)

MAX_LINE_BYTES = 1 << 20
"""The metrics of one compilation hold every setting of the compiler: some 60 KiB."""
MAX_PAYLOAD_LINES = 2_000
MAX_REASON = 8_000
MAX_STRINGS = 100_000
MAX_IDENT = 80
MAX_PROCESS = 2.0**63
MAX_NUMBER = 1e9
"""Seconds, and counts of a graph: more is not a measurement."""
LINE = re.compile(
    r"(?:\[rank\d{1,6}\]:)?[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d{3,6} (\d{1,20}) "
    r"[^\s\]]{1,300}?:\d{1,9}\] (\{.*)"
)
MINE = re.compile(
    rb"\s*(?:\[rank\d{1,6}\]:)?[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d{3,6} \d{1,20} "
    rb"[^\s\]]{1,300}?:\d{1,9}\] \{\""
    rb"|\s*\{\"string_table\": ?\[|\s*\{\s*\"\[[^\]\"]{1,60}\]\": ?\{\s*\"artifacts\": ?\["
)
RANK_NAME = re.compile(r"torch_trace_rank_(\d{1,6})_|(?:^|/)rank_(\d{1,6})/")
CACHE = re.compile(r"(fx_graph|aotautograd|autograd)_cache_(hit|miss|bypass)")
CACHES = {"fx_graph": "FX graph", "aotautograd": "AOTAutograd", "autograd": "AOTAutograd"}
LIMIT_FAILURE = re.compile(r"recompile limit exceeded|(\w{1,60}_limit) reached")
LIMIT_TYPE = re.compile(r"Limit type: (\w{1,60})")
LIMIT_VALUE = re.compile(r"currently set to (\d{1,9})")
KEPT = ("recompile_reasons", "dynamo_graph_break_reason")
"""Artifacts whose payload is read."""


def is_mine(head: bytes, _name: str) -> bool:
    return MINE.match(head) is not None


def read(sources: Sequence[Source]) -> CompilerReport:
    """All files of one job, joined. Of tlparse's folder, the file that has most."""
    builder, notes, used = ReportBuilder(), list[str](), list[str]()
    for source in _fullest(sources):
        parser = _FileParser(builder, source.label)
        stream = Stream(source.path, source.offset, source.length)
        with closing(stream.blocks()) as blocks:
            for line, is_whole in bounded_lines(blocks, MAX_LINE_BYTES):
                builder.left_out["long lines"] += not is_whole and not line.startswith("\t")
                parser.take(line)
        parser.end()
        used.append(source.label)
        if stream.problem:
            notes.append(f"{source.label}: {stream.problem}")
        notes += [f"{source.label}: {note}" for note in parser.notes()]
        if parser.num_lines == 0:
            raise FormatError(
                f"{source.label} has no line of a structured trace in it that can be read. "
                "Record it with TORCH_TRACE=trace_folder python train.py; of tlparse's folder, "
                "name raw.log"
            )
    return builder.finished("torch-trace", used, notes)


def _fullest(sources: Sequence[Source]) -> list[Source]:
    """Sources without raw.jsonl and compile_directory.json where raw.log lies in the same folder:
    they have the same, and less."""
    order = ("raw.log", "raw.jsonl", "compile_directory.json")
    best: dict[str, int] = {}
    for source in sources:
        path = PurePosixPath(source.label)
        if path.name in order:
            folder = str(path.parent)
            best[folder] = min(best.get(folder, len(order)), order.index(path.name))
    return [
        source
        for source in sources
        if (path := PurePosixPath(source.label)).name not in order
        or order[best[str(path.parent)]] == path.name
    ]


class _FileParser:
    """One file, line by line."""

    def __init__(self, builder: ReportBuilder, label: str) -> None:
        self._builder, self._label = builder, label
        match = RANK_NAME.search(label)
        self._rank = int(match[1] or match[2]) if match else None
        self._strings: dict[int, str] = {}
        self._payload: list[str] | None = None
        self._of: tuple[str, Writer, str] | None = None
        self._num_broken = 0
        self._started: set[tuple[Writer, str]] = set()
        self._is_jsonl = False
        self.num_lines = 0

    def take(self, line: str) -> None:
        if line.startswith("\t"):
            if self._payload is not None and len(self._payload) < MAX_PAYLOAD_LINES:
                self._payload.append(line[1:])
            return
        self._end_payload()
        match = LINE.match(line)
        if match:
            self._json(match[2], int(match[1]))
        elif line.startswith("{"):
            self._is_jsonl = True
            self._json(line, None)

    def end(self) -> None:
        self._end_payload()

    def notes(self) -> list[str]:
        """What was damaged or is not there."""
        notes = []
        if self._num_broken:
            notes.append(f"{self._num_broken} lines could not be read (cut off, or not JSON)")
        if unfinished := len(self._started):
            notes.append(
                f"{unfinished} compilations began and have no end in it: the job was still "
                "compiling, or was stopped"
            )
        if self._is_jsonl:
            notes.append(
                "it has no payloads, so graph breaks come without their lines; raw.log, or the "
                "job's own trace, has them"
            )
        return notes

    def _json(self, text: str, process: int | None) -> None:
        try:
            record = parse_json(text)
        except ValueError:
            self._num_broken += 1
            return
        if not isinstance(record, dict):
            return
        self.num_lines += 1
        thread = record.get("thread")
        process = process if process is not None else _count(thread, MAX_PROCESS)
        rank = _count(record.get("rank"))
        writer: Writer = (self._rank if rank is None else rank, process)
        self._string(record)
        ident = _ident(record)
        for kind in ("compilation_metrics", "bwd_compilation_metrics"):
            if isinstance(metrics := record.get(kind), dict):
                self._metrics(writer, metrics, ident, kind.startswith("bwd"))
        if isinstance(start := record.get("dynamo_start"), dict) and ident:
            self._start(writer, ident, start)
        artifact = record.get("artifact")
        if isinstance(artifact, dict) and isinstance(name := artifact.get("name"), str):
            self._artifact(writer, ident, name)

    def _string(self, record: dict[str, Any]) -> None:
        """File names are written once, with a number that stands for them from then on."""
        pair, table = record.get("str"), record.get("string_table")
        pairs: list[tuple[Any, Any]] = []
        if isinstance(table, list):
            pairs += [(text, index) for index, text in enumerate(table)]
        if isinstance(pair, list) and len(pair) == 2:
            pairs.append((pair[0], pair[1]))
        for text, number in pairs:
            if isinstance(text, str) and type(number) is int and len(self._strings) < MAX_STRINGS:
                self._strings[number] = text[-MAX_NAME:]

    def _start(self, writer: Writer, ident: str, start: dict[str, Any]) -> None:
        """The function is the innermost frame of the stack."""
        if len(self._started) < MAX_COMPILES:
            self._started.add((writer, ident))
        stack = start.get("stack")
        frame = stack[-1] if isinstance(stack, list) and stack else None
        if isinstance(frame, dict):
            compiled = self._builder.compile(writer, ident)
            number = frame.get("filename")
            file = self._strings.get(number) if isinstance(number, int) else None
            compiled.function = compiled.function or _text(frame.get("name"))
            compiled.location = compiled.location or _location(file, frame.get("line"))

    def _metrics(
        self, writer: Writer, metrics: dict[str, Any], ident: str, is_backward: bool
    ) -> None:
        ident = _text(metrics.get("compile_id"), MAX_IDENT) or ident
        if not ident:
            return
        compiled = self._builder.compile(writer, ident)
        micros = _number(metrics.get("duration_us"))
        seconds = _number(metrics.get("entire_frame_compile_time_s"))
        seconds = micros / 1e6 if seconds is None and micros is not None else seconds
        if is_backward:
            compiled.backward_s = seconds if seconds is not None else compiled.backward_s
            return
        if (writer, ident) in self._started:
            self._started.remove((writer, ident))
        compiled.seconds = seconds if seconds is not None else compiled.seconds
        compiled.function = _text(metrics.get("co_name")) or compiled.function
        compiled.location = (
            _location(_text(metrics.get("co_filename")), metrics.get("co_firstlineno"))
            or compiled.location
        )
        self._failure(compiled, _text(metrics.get("fail_reason"), MAX_REASON))
        if (reason := _text(metrics.get("recompile_reason"), MAX_REASON)) and not compiled.guards:
            self._builder.add_guard(compiled, *_reason(reason))
        if self._is_jsonl:
            self._restarts(writer, ident, metrics.get("restart_reasons"))

    def _failure(self, compiled: CompileBuilder, reason: str) -> None:
        if match := LIMIT_FAILURE.search(reason):
            limit, value = LIMIT_TYPE.search(reason), LIMIT_VALUE.search(reason)
            name = limit[1] if limit else match[1] or "recompile_limit"
            compiled.limit = f"{name} ({value[1]})" if value else name

    def _restarts(self, writer: Writer, ident: str, reasons: object) -> None:
        """Where payloads are missing, the reasons to restart an analysis are those of the breaks,
        without locations."""
        for text in reasons if isinstance(reasons, list) else []:
            graph_break = counted_break(_text(text, MAX_REASON))
            if graph_break.explanation:
                rank, process = writer
                self._builder.add_break(replace(graph_break, rank=rank, process=process, id=ident))

    def _artifact(self, writer: Writer, ident: str, name: str) -> None:
        if name in KEPT and ident:
            self._payload, self._of = [], (name, writer, ident)
        elif match := CACHE.fullmatch(name):
            self._builder.caches[(self._label, CACHES[match[1]], match[2])] += 1

    def _end_payload(self) -> None:
        lines, of = self._payload, self._of
        self._payload = self._of = None
        if not lines or of is None:
            return
        name, (rank, process), ident = of
        if name == "recompile_reasons":
            self._reasons(self._builder.compile((rank, process), ident), lines)
        elif graph_break := break_of(lines, ident, rank, process):
            self._builder.add_break(graph_break)

    def _reasons(self, compiled: CompileBuilder, lines: list[str]) -> None:
        """One reason as text, or several as a JSON list; all before the metrics of the same
        compilation."""
        text = "\n".join(lines)
        reasons: object = [text]
        if text.startswith("["):
            try:
                reasons = parse_json(text)
            except ValueError:
                self._num_broken += 1
                return
        compiled.guards = []
        for reason in reasons if isinstance(reasons, list) else []:
            if isinstance(reason, str):
                self._builder.add_guard(compiled, *_reason(reason))


def _reason(text: str) -> tuple[str, list[tuple[str, str]]]:
    """A guard's line, and the innermost line of the user's stack under it with its code."""
    first, *rest = text.split("\n")
    return first, frames_in(rest)[-1:]


def _ident(record: dict[str, Any]) -> str:
    """`0/1`, or `!2/0/1` inside compiled autograd."""
    frame = record.get("frame_id")
    number = record.get("frame_compile_id")
    autograd = record.get("compiled_autograd_id")
    if _count(frame) is None or _count(number) is None:
        return ""
    return (f"!{autograd}/" if _count(autograd) is not None else "") + f"{frame}/{number}"


def _text(value: object, limit: int = MAX_NAME) -> str:
    return value[:limit] if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    """A time that can be one."""
    return finite(value, 0, MAX_NUMBER * 1e6)


def _count(value: object, limit: float = MAX_NUMBER) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        return None
    return value


def _location(file: str | None, line: object) -> str:
    return f"{file}:{line}" if file and _count(line) is not None else file or ""


READER = Reader(is_mine=is_mine, read_together=read)
