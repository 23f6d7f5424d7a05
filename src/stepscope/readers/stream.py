"""Bytes of a file as blocks, decompressed as they are read, with a limit on how far a file may expand.

What a file is follows from its first bytes, not its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import zstandard
from zlib_ng import zlib_ng

from stepscope.errors import InputError

BLOCK_BYTES = 1 << 20
MAX_EXPANSION = 200
"""A trace compresses 15 to 40 times; text made to hurt, a thousand times and more."""
EXPANSION_FREE_BYTES = 256 << 20
"""Below this much output the ratio is not looked at."""

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP_WINDOW = 31


class Stream:
    """A file's decompressed text, block by block; `problem` says why it ended early, if it did."""

    def __init__(self, path: Path, offset: int = 0, length: int | None = None) -> None:
        self.path = path
        self.problem: str | None = None
        self.compressed_bytes = 0
        self.text_bytes = 0
        self._offset = offset
        self._left = length

    def blocks(self) -> Iterator[bytes]:
        """The text. Decompression runs ahead in a thread: it does not hold the interpreter lock."""
        try:
            file = self.path.open("rb")
        except OSError as problem:
            raise InputError(f"cannot open {self.path}: {problem.strerror or problem}") from problem
        with file:
            file.seek(self._offset)
            head = file.read(4)
            file.seek(self._offset)
            if head.startswith(GZIP_MAGIC):
                yield from _ahead(self._guarded(self._gzip(file)))
            elif head == ZSTD_MAGIC:
                yield from _ahead(self._guarded(self._zstd(file)))
            else:
                yield from self._plain(file)

    def _read(self, file: BinaryIO) -> bytes:
        size = BLOCK_BYTES if self._left is None else min(BLOCK_BYTES, self._left)
        try:
            data = file.read(size)
        except OSError as problem:
            self.problem = f"reading stopped: {problem.strerror or problem}"
            return b""
        if self._left is not None:
            self._left -= len(data)
        self.compressed_bytes += len(data)
        return data

    def _plain(self, file: BinaryIO) -> Iterator[bytes]:
        while data := self._read(file):
            self.text_bytes += len(data)
            yield data

    def _gzip(self, file: BinaryIO) -> Iterator[bytes]:
        """Every member of the file; damage ends it with what came before."""
        engine, started, pending = zlib_ng.decompressobj(GZIP_WINDOW), False, b""
        while pending := pending or self._read(file):
            try:
                text = engine.decompress(pending, BLOCK_BYTES)
            except zlib_ng.error as problem:
                self.problem = f"the gzip data is damaged ({problem})"
                return
            started = True
            if text:
                yield text
            pending = engine.unconsumed_tail
            if engine.eof:
                pending = engine.unused_data.lstrip(b"\x00")
                engine, started = zlib_ng.decompressobj(GZIP_WINDOW), False
                if pending and not pending.startswith(GZIP_MAGIC[: len(pending)]):
                    self.problem = "bytes after the end of the gzip data were left out"
                    return
        while started and (text := engine.decompress(b"", BLOCK_BYTES)):
            yield text
        if started and not engine.eof and self.problem is None:
            self.problem = "the gzip data ends before its end mark"

    def _zstd(self, file: BinaryIO) -> Iterator[bytes]:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(_Counted(self, file), read_across_frames=True)
        while True:
            try:
                text = reader.read(BLOCK_BYTES)
            except zstandard.ZstdError as problem:
                self.problem = f"the zstd data is damaged ({problem})"
                return
            if not text:
                return
            yield text

    def _guarded(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.text_bytes += len(block)
            if self.text_bytes > EXPANSION_FREE_BYTES and self.text_bytes > MAX_EXPANSION * self.compressed_bytes:
                self.problem = f"it expands more than {MAX_EXPANSION} times; reading stopped after {self.text_bytes >> 20} MiB of text"
                return
            yield block


class _Counted:
    """A file's bytes for the zstd reader, counted by its Stream."""

    def __init__(self, stream: Stream, file: BinaryIO) -> None:
        self._stream, self._file = stream, file

    def read(self, size: int = -1) -> bytes:
        return self._stream._read(self._file)


def _ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, each made in a thread while the one before is worked on."""
    with ThreadPoolExecutor(1, thread_name_prefix="stepscope-decompress") as pool:
        following = pool.submit(next, blocks, b"")
        while block := following.result():
            following = pool.submit(next, blocks, b"")
            yield block
