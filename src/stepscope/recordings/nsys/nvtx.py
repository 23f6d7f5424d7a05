"""NVTX ranges: marks, PyTorch's operators (emit_nvtx), and NCCL's calls with what they carry.

emit_nvtx, and `nsys profile --pytorch=autograd-shapes-nvtx`, push a range per operator with its
numbers behind its name:

    aten::linear, seq = 12, op_id = 34, sizes = [[8, 16], [32, 16], [32]]

NCCL's ranges stand in a domain of their own. Their payload, described by two more tables, has the
communicator and the bytes.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from stepscope.api import Kind
from stepscope.core.trace import NONE, Int64
from stepscope.readers.kineto.event_decoder import SEPARATOR
from stepscope.readers.trace.categories import LIMIT_NS
from stepscope.recordings.nsys.database import MAX_NAME_LENGTH, ROWS_AT_ONCE, Database
from stepscope.recordings.nsys.events import ProcessTraceBuilder

RANGES = "NVTX_EVENTS"
PUSH_POP, START_END, IMPORTED_PUSH_POP, IMPORTED_START_END = 59, 60, 70, 71
RANGE_TYPES = (PUSH_POP, START_END, IMPORTED_PUSH_POP, IMPORTED_START_END)
DOMAIN_CREATE = 75
"""ENUM_NSYS_EVENT_TYPE, as Nsight's own nvtx_gpu_proj_trace has them."""
MAX_DOMAINS = 10_000
MAX_PAYLOAD_BYTES = 4096

USUAL = re.compile(
    r"([^,]{1,256})(?=, )(?:, seq = (\d{1,18}))?, op_id = \d{1,18}(?:, sizes = (\[[\d, \[\]]*\]))?$"
)
"""Range as PyTorch 2 writes it; the rest is for what older releases wrote."""
NUMBERED = re.compile(
    r", (?:stashed )?seq ?= ?(\d{1,18})|, op_id ?= ?(\d{1,18})|, sizes ?= ?(?=\[)"
)
INPUT_IDS = ", input_op_ids"
"""torch/csrc/profiler/util.cpp, getNvtxStr."""
OPERATOR = re.compile(
    r"^(?:aten|prims?|c10d|_?c10d_functional|quantized|mkldnn|cudnn|torch|torchvision|torchaudio|autograd|fsdp|inductor|symm_mem"
    r"|xformers|flash_attn|triton)::|^record_param_comms$"
)
"""Operators without numbers behind their names. Other C++ names are a user's own ranges."""
BACKWARD_NODE = re.compile(
    r"^autograd::engine::evaluate_function|Backward\w*$|^torch::autograd::AccumulateGrad$"
)
"""What autograd runs: its number is that of the forward operator which made it."""
FORWARD_THREAD = 1
"""Mark that there was a forward thread; nsys does not record which."""

NCCL = re.compile(r"^[NR]CCL$", re.IGNORECASE)
COMMUNICATOR = re.compile(r"communicator ID", re.IGNORECASE)
BYTES = re.compile(r"message size \[bytes\]", re.IGNORECASE)
NUM_RANKS, RANK, PEER = "No. of ranks", "Rank", "Peer rank"
PAYLOAD_HEAD = struct.Struct("<QQQQ")
"""Domain, schema, size of the payload, and where it begins or ends."""
LOW_HALF = 2**32 - 1
HEX = re.compile(rb"(?:[0-9a-fA-F]{2})+")
NUMBERS = dict(zip(range(1, 19), "bBhHiIqQqQbBhHiIqQ", strict=True)) | {22: "Q"}
"""nvtxPayloadEntryType_t (nvToolsExtPayload.h): C's whole numbers, those of a fixed width, and a
size."""


@dataclass(slots=True)
class Calls:
    """What NCCL's ranges carry."""

    schemas: dict[tuple[int, int], list[tuple[str, int, str]]] = field(default_factory=dict)
    """Fields by domain and schema: a name, where it lies, how it is packed."""
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Ranks of a communicator, and this process' rank in it."""
    num_sized: int = 0
    """Calls that carry their bytes."""
    num_across: int = 0
    """Ranges that end on another thread than they began on."""


def take_ranges(builder: ProcessTraceBuilder) -> Calls:
    database, calls = builder.database, Calls()
    if not database.has(RANGES, "start", "end"):
        return calls
    domains = _domains(builder)
    calls.schemas = _schemas(database)
    where, parameters = builder.of_process(RANGES)
    if database.has(RANGES, "eventType"):
        types = f'"eventType" IN ({", ".join(map(str, RANGE_TYPES))})'
        where = f"{where} AND {types}" if where else types
    payload = "NULL"
    if database.has(RANGES, "binaryData"):
        payload = f'substr(CAST("binaryData" AS BLOB), 1, {MAX_PAYLOAD_BYTES})'
    text = f'substr("text", 1, {MAX_NAME_LENGTH})' if database.has(RANGES, "text") else "NULL"
    numbers = [
        f'"{c}"' if database.has(RANGES, c) else "NULL" for c in ("globalTid", "textId", "domainId")
    ]
    other_end = '"endGlobalTid"' if database.has(RANGES, "endGlobalTid") else "NULL"
    wanted = ", ".join(['"start"', '"end"', *numbers, text, payload, other_end])
    for rows in database.rows(RANGES, wanted, where, parameters):
        _take(builder, rows, domains, calls)
    builder.count_unowned(RANGES)
    return calls


def _take(
    builder: ProcessTraceBuilder, rows: list[tuple[Any, ...]], domains: dict[int, str], calls: Calls
) -> None:
    tally = builder.scanner.tally
    tally.raw_events += len(rows)
    kept = []
    for row in rows:
        if not _is_time(row[0]):
            tally.no_time += 1
        elif row[1] is None:
            tally.count_unknown("NVTX range without its end")
        elif not _is_time(row[1]):
            tally.no_time += 1
        else:
            kept.append(row)
    if not kept:
        return
    assert len(kept) <= ROWS_AT_ONCE
    ids = _column(kept, 3)
    texts = builder.database.strings(ids)
    builder.num_unnamed += sum(i != NONE and i not in texts for i in np.unique(ids).tolist())
    times = {"start": _column(kept, 0), "end": _column(kept, 1)}
    tally.negative_duration += int((times["end"] < times["start"]).sum())
    times["end"] = np.maximum(times["end"], times["start"])
    columns = builder.blank(times, Kind.MARK)
    columns.thread[:] = builder.host_threads(_column(kept, 2))
    name_codes, details = builder.scanner.names, builder.scanner.details
    events: list[tuple[int, int, int, int, int, int]] = []
    for _, _, thread_id, text_id, domain_id, text, payload, other_end in kept:
        name = texts.get(text_id) or (text if isinstance(text, str) and text else "(no name)")
        domain = domains.get(domain_id, "")
        if other_end is not None and other_end != thread_id:
            # It holds no thread's calls: nsys projects none of these either.
            calls.num_across += 1
            events.append(
                (
                    Kind.OTHER,
                    name_codes[f"{domain}:{name}" if domain else name],
                    NONE,
                    NONE,
                    NONE,
                    NONE,
                )
            )
        elif domain:
            is_nccl = NCCL.match(domain) is not None
            collective = NONE
            if is_nccl and payload is not None:
                collective = _collective(builder, calls, name, payload)
            events.append(
                (
                    Kind.MARK,
                    name_codes[f"{'nccl' if is_nccl else domain}:{name}"],
                    NONE,
                    NONE,
                    NONE,
                    collective,
                )
            )
        elif (operator := operator_of(name)) is None:
            events.append((Kind.MARK, name_codes[name], NONE, NONE, NONE, NONE))
        else:
            detail = NONE
            if operator.sizes is not None:
                detail = details[
                    SEPARATOR.join([b"", operator.sizes.encode("utf-8", "replace"), b"", b""])
                ]
            is_backward = (
                operator.sequence != NONE and BACKWARD_NODE.search(operator.name) is not None
            )
            thread = FORWARD_THREAD if is_backward else NONE
            events.append(
                (Kind.OP, name_codes[operator.name], operator.sequence, thread, detail, NONE)
            )
    filled: tuple[Any, ...] = (
        columns.kind, columns.name, columns.sequence, columns.fwd_thread, columns.detail,
        columns.collective,
    )  # fmt: skip
    for column, values in zip(filled, np.array(events, np.int64).T, strict=True):
        column[:] = values
    builder.chunks.append(columns)


class Operator(NamedTuple):
    name: str
    sequence: int = NONE
    sizes: str | None = None


@lru_cache(maxsize=1 << 12)
def operator_of(text: str) -> Operator | None:
    """The operator that a range is of; None for a range that somebody named."""
    usual = USUAL.match(text)
    if usual is not None:
        name, sequence, sizes = usual.groups()
        return Operator(name, NONE if sequence is None else int(sequence), sizes)
    marks = list(NUMBERED.finditer(text))
    if not marks:
        return Operator(text) if OPERATOR.match(text) else None
    number = next((int(mark[1]) for mark in marks if mark[1]), NONE)
    begin = next((mark.end() for mark in marks if not mark[1] and not mark[2]), None)
    sizes = None if begin is None else text[begin:].split(INPUT_IDS, 1)[0]
    return Operator(text[: marks[0].start()], number, sizes)


def _is_time(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < LIMIT_NS


def _column(rows: list[tuple[Any, ...]], index: int) -> Int64:
    return np.array([row[index] if isinstance(row[index], int) else NONE for row in rows], np.int64)


def _domains(builder: ProcessTraceBuilder) -> dict[int, str]:
    """Names of the domains of this process; the one without a name is not among them."""
    database = builder.database
    if not database.has(RANGES, "eventType", "domainId"):
        return {}
    where, parameters = builder.of_process(RANGES)
    where = (
        f'{where} AND "eventType" = {DOMAIN_CREATE}' if where else f'"eventType" = {DOMAIN_CREATE}'
    )
    text = 'substr("text", 1, 256)' if database.has(RANGES, "text") else "NULL"
    text_id = '"textId"' if database.has(RANGES, "textId") else "NULL"
    domains: dict[int, str] = {}
    for rows in database.rows(RANGES, f'"domainId", {text}, {text_id}', where, parameters):
        texts = database.strings(_column(rows, 2))
        for domain, own_text, number in rows[:MAX_DOMAINS]:
            name = texts.get(number) if number is not None else None
            name = name or (own_text if isinstance(own_text, str) else None)
            if isinstance(domain, int) and name:
                domains.setdefault(domain, name)
    return domains


def _schemas(database: Database) -> dict[tuple[int, int], list[tuple[str, int, str]]]:
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not database.has(table, "domainId", "schemaId", "type", "name", "offset"):
        return {}
    schemas: dict[tuple[int, int], list[tuple[str, int, str]]] = {}
    for rows in database.rows(
        table, '"domainId", "schemaId", "type", substr("name", 1, 64), "offset"'
    ):
        for domain, schema, kind, name, offset in rows[:MAX_DOMAINS]:
            offset = 0 if offset is None else offset  # The first field's is not written.
            if not isinstance(name, str) or kind not in NUMBERS:
                continue
            if not isinstance(offset, int) or not 0 <= offset < MAX_PAYLOAD_BYTES:
                continue
            if isinstance(domain, int) and isinstance(schema, int):
                schemas.setdefault((domain, schema), []).append((name, offset, "<" + NUMBERS[kind]))
    return schemas


def _fields(calls: Calls, payload: object) -> dict[str, int]:
    """A payload's numbers by their names; none when it is not as its schema says."""
    data = _unhexed(payload) if isinstance(payload, bytes) else b""
    if len(data) < PAYLOAD_HEAD.size:
        return {}
    domain, schema, size, _ = PAYLOAD_HEAD.unpack_from(data)
    keys = ((domain, schema), (domain & LOW_HALF, schema & LOW_HALF))
    numbers = {}
    for name, offset, packed in next(
        (calls.schemas[key] for key in keys if key in calls.schemas), ()
    ):
        end = offset + struct.calcsize(packed)
        if end <= size and PAYLOAD_HEAD.size + end <= len(data):
            numbers[name] = int(struct.unpack_from(packed, data, PAYLOAD_HEAD.size + offset)[0])
    return numbers


def _unhexed(data: bytes) -> bytes:
    """The payload itself, where an exporter wrote it as text."""
    if not HEX.fullmatch(data):
        return data
    return bytes.fromhex(data.decode("ascii"))


def _collective(builder: ProcessTraceBuilder, calls: Calls, name: str, payload: object) -> int:
    """The code of a collective that NCCL tells; NONE for its other calls. Their types are not told,
    so bytes are counted."""
    fields = _fields(calls, payload)
    group = next((value for key, value in fields.items() if COMMUNICATOR.search(key)), None)
    size = next((value for key, value in fields.items() if BYTES.search(key)), None)
    if group is not None and NUM_RANKS in fields:
        calls.sizes[group] = (fields[NUM_RANKS], fields.get(RANK, NONE))
    if group is None or size is None or not 0 <= size < 2**50:
        return NONE
    calls.num_sized += 1
    ranks = calls.sizes[group][0] if group in calls.sizes else None
    # NCCL tells an all-gather's and a reduce-scatter's smaller side.
    larger = size * ranks if ranks is not None and 0 < ranks < 2**20 else None
    took = larger if "ReduceScatter" in name else size
    gave = larger if "AllGather" in name else size
    named: list[Any] = [name, f"{group:#x}", None, None, ranks, "Byte", took, gave]
    parts = [*named, None, None, None, None, fields.get(PEER), None]
    return builder.scanner.collectives[
        tuple(b"" if part is None else json.dumps(part).encode() for part in parts)
    ]
