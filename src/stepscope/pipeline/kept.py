"""Diagnoses kept in the user's cache folder: the same files, asked about in the same way of the
same stepscope, are neither read nor judged again.

    fixed head   magic, a digest of all that the diagnosis follows from
    JSON, zstd   the diagnosis

Files are told apart and trusted as `readers.cache` does it. What is small is not kept: looking it
up would save nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import zstandard
from msgspec import Struct

import stepscope
from stepscope.core.calibrated import Calibrated
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.run import RunFacts, WholeRun
from stepscope.protocol.untrusted import MAX_JSON_BYTES
from stepscope.readers import cache
from stepscope.readers.format import Source
from stepscope.readers.inputs import FoundSources
from stepscope.readers.probe_file import kept_files

MAGIC = b"STEPSCOPE-FOUND\x00"
HEAD = struct.Struct("<16s32s")


class CacheKey(Struct, frozen=True, kw_only=True):
    """All that a diagnosis follows from, but the code."""

    inputs: FoundSources
    auxiliary: Auxiliary | None
    run: RunFacts | None
    whole_run: WholeRun | None
    hardware: Calibrated | None
    step_ms: float | None
    all_findings: bool

    @property
    def path(self) -> Path | None:
        """Where its diagnosis is kept: one for each way to name the files and to ask about them."""
        folder = cache.cache_folder()
        if folder is None:
            return None
        sources = (*self.inputs.sources, *self.inputs.logs)
        places = [f"{cache.place(source)}\x00{source.label}" for source in sources]
        way = (self.step_ms, self.all_findings)
        return folder / cache.file_name("\x00".join(["diagnosis", repr(way), *places]))

    def digest(self) -> bytes | None:
        """Digest of the files as they are now, of all else and of the code; None where something
        does not tell when it changes."""
        code = _code_digest()
        identities = [_identity(source) for source in (*self.inputs.sources, *self.inputs.logs)]
        if code is None or None in identities:
            return None
        options = (self.hardware, self.step_ms, self.all_findings, kept_files())
        beside = (self.auxiliary, self.run, self.whole_run, *options)
        try:
            text = msgspec.json.encode((code, identities, self.inputs.notes, beside))
        except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
            return None
        return hashlib.sha256(text).digest()


def load(key: CacheKey, digest: bytes) -> Diagnosis | None:
    """The diagnosis that was kept; None where there is none, or it is stale, damaged, or not
    ours."""
    path = key.path
    if path is None:
        return None
    with contextlib.suppress(
        OSError, ValueError, struct.error, msgspec.MsgspecError, zstandard.ZstdError, RecursionError
    ):
        with cache.open_own(path) as file:
            if HEAD.unpack(file.read(HEAD.size)) != (MAGIC, digest):
                return None
            text = cache.decompressed(memoryview(file.read(MAX_JSON_BYTES)), MAX_JSON_BYTES)
        diagnosis = msgspec.json.decode(text, type=Diagnosis)
        with contextlib.suppress(OSError):
            os.utime(path)
        return diagnosis
    return None


def store(key: CacheKey, digest: bytes, diagnosis: Diagnosis) -> None:
    """Keep it for next time, if the files are still what they were before they were read, and if
    all of it would come back."""
    path = key.path
    if path is None or key.digest() != digest:
        return
    try:
        text = msgspec.json.encode(diagnosis)
        if msgspec.json.decode(text, type=Diagnosis) != diagnosis:
            return
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return
    packed = zstandard.ZstdCompressor(level=cache.LEVEL, write_checksum=True).compress(text)
    cache.write(path, [HEAD.pack(MAGIC, digest), packed])


def _identity(source: Source) -> tuple[object, ...] | None:
    now = cache.identity(source)
    if now is None:
        return None
    said = (source.label, source.rank, source.rank_source, source.named, source.metadata)
    return (cache.place(source), *now, *said)


def _code_digest() -> str | None:
    """Digest of what runs: this package's files, Python and numpy; None where it was changed since
    it was loaded."""
    digest = hashlib.sha256(f"{sys.version} {np.__version__}".encode())
    num_files = 0
    for name, state in _files(Path(stepscope.__file__).parent):
        if state.st_ctime_ns >= cache.LOADED_NS:
            return None
        num_files += 1
        digest.update(f"{name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest() if num_files else None


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(where, name)
            yield path, os.stat(path)
