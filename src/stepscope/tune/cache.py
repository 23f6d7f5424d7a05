"""What tuning found, kept: settings by what was tuned, its shapes, its dtype, the device and the
versions of the software.

    {"v": 1, "what": "t.py", "shapes": "batch=32", "dtype": "float32", "device": "NVIDIA H200",
     "versions": {"torch": "2.8"}, "settings": {"num_workers": 4}, "ns": 3.19e7,
     "baseline_ns": 6.55e7, "at": "2026-01-31T12:00+00:00", "checked": true}

A local cache is a file of such lines; one behind a URL is a folder with an object for each. What
was found with other versions is never given as an answer: `find` passes it over, and `near` lists
it as a setting to start from. Of two records of one key the one that was checked is believed, then
the newer. Files come from strangers: lines that are not such records are counted and left.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from os import PathLike
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from stepscope.core.codec import decode_json
from stepscope.core.experiments.trials import Value
from stepscope.errors import InputError
from stepscope.protocol.json_text import json_text
from stepscope.tune import storage

FORMAT = 1
MAX_CHARS = 4096
"""Characters of one word of a record; a list of shapes takes a few hundred."""
MAX_NAMES = 256
"""Settings, or versions, in one record."""
MAX_LINE = 256 << 10
MAX_ENTRIES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKey:
    """What was tuned, and where. Two keys are the same tuning when every field is the same,
    versions too."""

    what: str
    shapes: str
    dtype: str
    device: str
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """A short name that is the same for equal keys."""
        text = json_text([*self.without_versions, sorted(self.versions.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def without_versions(self) -> tuple[str, str, str, str]:
        return (self.what, self.shapes, self.dtype, self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """The settings that were best, and what they gave."""

    key: CacheKey
    settings: Mapping[str, Value]
    ns: float
    """Time with these settings: of a step, of a sample or of a call, as `what` has it."""
    baseline_ns: float | None = None
    """Time as it was before; None where it was not measured."""
    at: str = ""
    """When, as ISO 8601; now where it is left empty."""
    checked: bool = False
    """Whether what it computes was compared with the baseline and found the same."""

    def __post_init__(self) -> None:
        if not self.at:
            object.__setattr__(self, "at", datetime.now(timezone.utc).isoformat(timespec="seconds"))

    @property
    def weight(self) -> tuple[bool, datetime]:
        """What is compared of two records of one key: the heavier is believed."""
        return self.checked, _when(self.at) or datetime.min.replace(tzinfo=timezone.utc)


class Imported(Struct, frozen=True, kw_only=True):
    """What became of the records of another file."""

    added: int = 0
    replaced: int = 0
    """Known here too, and the other file's was believed."""
    kept: int = 0
    """Known here too, and ours was believed, or they are the same."""
    refused: int = 0
    """Lines that are no record of ours."""


_Word = Annotated[str, Meta(max_length=MAX_CHARS)]
_Whole = Annotated[int, Meta(ge=-(2**53), le=2**53)]


class KeptSetting(Struct, frozen=True, kw_only=True):
    """An entry in one piece, as files and documents have it."""

    what: _Word
    shapes: _Word
    dtype: _Word
    device: _Word
    versions: Annotated[dict[_Word, _Word], Meta(max_length=MAX_NAMES)]
    settings: Annotated[dict[_Word, bool | _Whole | float | _Word], Meta(max_length=MAX_NAMES)]
    ns: Annotated[float, Meta(gt=0)]
    baseline_ns: Annotated[float, Meta(gt=0)] | None = None
    at: Annotated[str, Meta(max_length=64)]
    checked: bool = False


class _Line(KeptSetting, frozen=True, kw_only=True):
    v: Annotated[int, Meta(ge=FORMAT, le=FORMAT)]


def kept_setting(entry: CacheEntry) -> KeptSetting:
    fields = {name: getattr(entry, name) for name in CacheEntry.__slots__ if name != "key"}
    return KeptSetting(**asdict(entry.key), **fields)


class TuningCache:
    """The records of one file or folder. Nothing is held in memory between calls: others may write
    there too."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._location = storage.location_of(path)

    def __str__(self) -> str:
        return storage.name_of(self._location)

    def refuse_strange(self) -> None:
        """Says, before anything is added, when the file is something else than a cache."""
        _read_own(self._location)

    def find(self, key: CacheKey) -> CacheEntry | None:
        """What was found for this very key, with these very versions."""
        return self._read()[0].get(key.digest)

    def near(self, key: CacheKey) -> list[CacheEntry]:
        """What was found for the same thing with other versions, newest first: a setting to start
        from, never an answer."""
        others = [
            entry
            for entry in self.entries()
            if entry.key.without_versions == key.without_versions and entry.key.digest != key.digest
        ]
        return sorted(others, key=lambda entry: entry.weight[1], reverse=True)

    def add(self, entry: CacheEntry) -> None:
        """Keeps a record. An earlier one of the same key stays believed only where it was checked
        and this one was not."""
        line = _encode(entry)
        if _decode(line) is None:
            raise InputError(
                f"a tuned setting for {entry.key.what!r} cannot be kept: a name, a value or a "
                "time of it is out of bounds"
            )
        before = self.find(entry.key) if isinstance(self._location, str) else None
        if before is None or entry.weight >= before.weight:
            storage.put(self._location, entry.key.digest, line)

    def entries(self) -> list[CacheEntry]:
        """Every key's believed record, oldest first."""
        return sorted(self._read()[0].values(), key=lambda entry: entry.weight[1])

    def num_unread(self) -> int:
        """Lines that are no record of this version."""
        return self._read()[1]

    def forget(self, keys: Iterable[CacheKey]) -> int:
        """Takes the records of these keys away; says how many there were."""
        digests = {key.digest for key in keys}
        if isinstance(self._location, str):
            present = digests & set(self._read()[0])
            for digest in present:
                storage.take_away(self._location, digest)
            return len(present)
        with storage.locked(self._location):
            entries, _ = self._read()
            kept = [entry for digest, entry in entries.items() if digest not in digests]
            if len(kept) < len(entries):
                storage.write_all(self._location, _file(kept))
        return len(entries) - len(kept)

    def export_to(self, path: str | PathLike[str]) -> Imported:
        """Puts every believed record into one file, there or behind a URL. A cache that is there is
        added to; any other file is refused. Which of two records is believed is as everywhere."""
        location = storage.location_of(path)
        _read_own(location)
        with nullcontext() if isinstance(location, str) else storage.locked(location):
            data, theirs, unread = _read_own(location)
            ours, _ = self._read()
            better = _better(ours, theirs)
            if isinstance(location, str) and storage.is_folder(location):
                for entry in better.values():
                    storage.put(location, entry.key.digest, _encode(entry))
            elif better or not theirs:
                end = b"" if not data or data.endswith(b"\n") else b"\n"
                storage.write_all(location, data + end + _file(better.values()))
        return _imported(better, len(ours), theirs, unread)

    def import_from(self, path: str | PathLike[str]) -> Imported:
        """Takes another cache's records in; of two for one key the checked one is believed, then
        the newer."""
        location = storage.location_of(path)
        data = storage.read_all(location)
        if data is None:
            raise InputError(f"cannot read {storage.name_of(location)}: there is no such file")
        theirs, refused = _parse(data)
        if refused and not theirs:
            raise InputError(
                f"{storage.name_of(location)} holds no tuned settings of this version: {refused} "
                "lines could not be read"
            )
        ours, _ = self._read()
        better = _better(theirs, ours)
        for entry in better.values():
            self.add(entry)
        return _imported(better, len(theirs), ours, refused)

    def _read(self) -> tuple[dict[str, CacheEntry], int]:
        data = storage.read_all(self._location)
        return ({}, 0) if data is None else _parse(data)


def _read_own(location: storage.Location) -> tuple[bytes, dict[str, CacheEntry], int]:
    """A cache that is to be added to, or nothing; what is something else is refused."""
    data = storage.read_all(location) or b""
    theirs, unread = _parse(data)
    if unread and not theirs:
        raise InputError(
            f"{storage.name_of(location)} is there already and is no tuning cache: it was left as "
            "it is. Give another name"
        )
    return data, theirs, unread


def _better(new: Mapping[str, CacheEntry], held: Mapping[str, CacheEntry]) -> dict[str, CacheEntry]:
    """The new records that are believed over the known ones."""
    return {
        digest: entry
        for digest, entry in new.items()
        if digest not in held or entry.weight > held[digest].weight
    }


def _imported(
    better: Mapping[str, CacheEntry], num_new: int, held: Mapping[str, CacheEntry], refused: int
) -> Imported:
    replaced = len(set(better) & set(held))
    return Imported(
        added=len(better) - replaced,
        replaced=replaced,
        kept=num_new - len(better),
        refused=refused,
    )


def _parse(data: bytes) -> tuple[dict[str, CacheEntry], int]:
    """The believed record of every key, and the number of lines that are none."""
    entries: dict[str, CacheEntry] = {}
    unread = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        entry = _decode(line)
        if entry is None:
            unread += 1
            continue
        digest = entry.key.digest
        if digest not in entries and len(entries) >= MAX_ENTRIES:
            raise InputError(
                f"more than {MAX_ENTRIES} tuned settings in one file: take some away with "
                "`stepscope tune cache forget`"
            )
        if digest not in entries or entry.weight >= entries[digest].weight:
            entries[digest] = entry
    return entries, unread


def _file(entries: Iterable[CacheEntry]) -> bytes:
    return b"".join(_encode(entry) + b"\n" for entry in entries)


def _encode(entry: CacheEntry) -> bytes:
    record = {"v": FORMAT} | msgspec.structs.asdict(kept_setting(entry))
    # Half characters, which a path may hold and JSON may not, are written as escapes and refused
    # when read.
    return json_text(record).encode()


def _decode(line: bytes) -> CacheEntry | None:
    """The record, or None for what is not one."""
    if len(line) > MAX_LINE:
        return None
    try:
        read = decode_json(line, _Line)
    except ValueError:
        return None
    numbers = [read.ns, read.baseline_ns, *read.settings.values()]
    if (
        any(isinstance(number, float) and not math.isfinite(number) for number in numbers)
        or _when(read.at) is None
    ):
        return None
    fields = {name: value for name, value in msgspec.structs.asdict(read).items() if name != "v"}
    key = CacheKey(**{name: fields.pop(name) for name in CacheKey.__slots__})
    return CacheEntry(key=key, **fields)


def _when(text: str) -> datetime | None:
    """The moment; one without a zone is taken as UTC."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(
            timezone.utc
        )
    except (ValueError, OverflowError):
        return None
