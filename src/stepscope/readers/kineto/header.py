"""What a trace says of itself beside its events: rank, world, devices, versions, the clock's
base."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from stepscope.core.trace import DeviceProperties, Kind, TraceMeta
from stepscope.protocol.run_folder import MARKS_FIELD, MODULES_FIELD
from stepscope.protocol.untrusted import MAX_DEPTH, as_object, finite, objects_at
from stepscope.readers.format import Source
from stepscope.readers.trace.categories import LONGEST_NUMBER, NUMBER
from stepscope.readers.trace.columns import Columns

VERSION_FIELDS = (
    "cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version",
    "hip_driver_version", "pytorch_version", "schemaVersion",
)  # fmt: skip
FIELDS = (
    *VERSION_FIELDS, "distributedInfo", "deviceProperties", "baseTimeNanoseconds", "record_shapes",
    "with_stack", MARKS_FIELD, MODULES_FIELD,
)  # fmt: skip


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= LONGEST_NUMBER else None


def _decimal(text: str) -> Decimal | None:
    return Decimal(text) if len(text) <= LONGEST_NUMBER else None


_decoder = json.JSONDecoder(
    strict=False, parse_int=_whole, parse_float=_decimal, parse_constant=lambda _: None
)


def read_fields(outside: bytes) -> tuple[Mapping[str, Any], list[str]]:
    """The top-level fields of the text around the events, and notes on those that could not be
    read."""
    text = outside.strip(b" \t\r\n\x00,]").decode("utf-8", "replace")
    if not text.startswith("{"):
        return {}, ["text after the list of events was left out"] if text else []
    try:
        fields = _decoder.decode(text)
    except (ValueError, RecursionError):
        return _one_by_one(text)
    return {key: fields[key] for key in FIELDS if key in fields}, []


def _one_by_one(text: str) -> tuple[Mapping[str, Any], list[str]]:
    """Each wanted field on its own: a file cut off or damaged elsewhere still has it."""
    fields: dict[str, Any] = {}
    lost: list[str] = []
    for key in FIELDS:
        # A bare quote before the name and after it: this does not stand inside a string.
        match = re.search(rf'(?<!\\)"{key}"\s{{0,1024}}:\s{{0,1024}}', text)
        if match is None:
            continue
        try:
            fields[key] = _decoder.raw_decode(text, match.end())[0]
        except (ValueError, RecursionError):
            lost.append(key)
    return fields, [
        f"the field(s) {', '.join(lost)} beside the events could not be read"
    ] if lost else []


def rank_notes(source: Source, fields: Mapping[str, Any]) -> list[str]:
    """Says when the file and its name do not agree on the rank."""
    rank = _recorded_rank(fields)
    if rank is None or source.rank is None or rank == source.rank:
        return []
    return [
        (
            f"the {source.rank_source} says rank {source.rank}, distributedInfo says rank {rank}: "
            "the latter was taken"
        )
    ]


def trace_meta(
    source: Source, fields: Mapping[str, Any], chunks: list[Columns], text_bytes: int
) -> TraceMeta:
    """The TraceMeta of a file with these fields and these columns."""
    info = as_object(fields.get("distributedInfo"))
    groups = info.get("pg_config")
    rank = _recorded_rank(fields)
    return TraceMeta(
        path=source.label,
        rank=rank if rank is not None else source.rank,
        rank_source="distributedInfo" if rank is not None else source.rank_source,
        world_size=_count(info.get("world_size")),
        process_groups=tuple(_plain(g) for g in groups if isinstance(g, dict))
        if isinstance(groups, list)
        else (),
        devices=_devices(fields),
        base_ns=_count(fields.get("baseTimeNanoseconds")) or 0,
        has_shapes=bool(fields.get("record_shapes"))
        or any(bool((c.detail[c.kind == Kind.OP] >= 0).any()) for c in chunks),
        has_stacks=bool(fields.get("with_stack"))
        or any(bool((c.kind == Kind.PYTHON).any()) for c in chunks),
        versions={
            key: str(_plain(fields[key]))
            for key in VERSION_FIELDS
            if isinstance(fields.get(key), int | str)
        },
        size_bytes=text_bytes,
    )


def _recorded_rank(fields: Mapping[str, Any]) -> int | None:
    rank = _count(as_object(fields.get("distributedInfo")).get("rank"))
    return rank if rank is not None and rank < 2**31 else None


def _devices(fields: Mapping[str, Any]) -> tuple[DeviceProperties, ...]:
    return tuple(
        DeviceProperties(
            index=_count(entry.get("id")) or 0,
            name=str(_plain(entry.get("name", ""))),
            memory_bytes=_count(entry.get("totalGlobalMem")),
            num_sms=_count(entry.get("numSms")),
            compute_capability=_capability(entry),
            warp_size=_count(entry.get("warpSize")),
        )
        for entry in objects_at(fields, "deviceProperties")
    )


def _capability(entry: Mapping[str, Any]) -> tuple[int, int] | None:
    major, minor = _count(entry.get("computeMajor")), _count(entry.get("computeMinor"))
    return (major, minor) if major is not None and minor is not None else None


def _count(value: Any) -> int | None:
    """A whole number that is not negative, in whatever way JSON can write one: 7, 7.0, 7e0, "7"."""
    if isinstance(value, str) and len(value) <= LONGEST_NUMBER and NUMBER.fullmatch(value):
        value = Decimal(value)
    if isinstance(value, Decimal):
        value = (
            int(value)
            if value.adjusted() < LONGEST_NUMBER and value == value.to_integral_value()
            else None
        )
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    return None


def _plain(value: Any, depth: int = 0) -> Any:
    """The value with text that can be written and numbers that JSON has; what lies too deep in it
    is None."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Decimal):
        return finite(float(value))
    if isinstance(value, list):
        return [_plain(v, depth + 1) for v in value]
    if isinstance(value, dict):
        return {_plain(k): _plain(v, depth + 1) for k, v in value.items()}
    return value
