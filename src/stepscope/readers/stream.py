"""Bytes of a file as blocks, decompressed as they are read, with a limit on how far a file may
expand.

What a file is follows from its first bytes, not its name.

The members of a tar archive, by where their bytes lie in it. Nothing is unpacked, and no
member's name is ever a path.

Headers are walked here rather than with `tarfile`, which reads a header extension of any size into
memory.
"""

from __future__ import annotations

import bz2
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, cast

import zstandard
from msgspec import Struct, field
from zlib_ng import zlib_ng

from stepscope.errors import InputError
from stepscope.readers.remote import AnyPath, open_bytes

BLOCK_BYTES = 8 << 20
PACKED_BYTES = 128 << 10
"""Read at once of a compressed file: the expansion is judged by what was read."""
MAX_EXPANSION = 200
"""A trace compresses 15 to 40 times; text made to hurt, a thousand times and more."""
MIN_AHEAD_BYTES = 1 << 20
EXPANSION_FREE_BYTES = 64 << 20
"""Bytes of output below which the ratio is not looked at."""
MAX_ZERO_BYTES = 64 << 20
"""Zero bytes in a row: a file that is nothing but a hole may be of any size, and takes as long to
read."""
MAX_WINDOW_BYTES = 128 << 20
"""What zstd may keep to look back at; its own command line's limit too."""

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BZIP2_MAGIC = b"BZh"
GZIP_WINDOW = 31
BZIP2_BYTES = 8 << 10
"""Fed at a time of bzip2's: what is lost to damage is at most what these expand to."""
SALVAGE_BYTES = 64
"""Fed at a time where the data is damaged: what is lost is at most what these expand to."""
GZIP_ERRORS = (zlib.error, cast("type[Exception]", zlib_ng.error))


class Stream:
    """A file's decompressed text, block by block; `problem` says why it ended early, if it did."""

    def __init__(self, path: AnyPath, offset: int = 0, length: int | None = None) -> None:
        self.path = path
        self.problem: str | None = None
        self.compressed_bytes = 0
        self.text_bytes = 0
        self._offset = offset
        self._left = length

    def blocks(self) -> Generator[bytes, None, None]:
        """The text. Reading and decompression run ahead in a thread: they do not hold the
        interpreter lock."""
        try:
            file = open_bytes(self.path)
        except OSError as problem:
            raise InputError(f"cannot open {self.path}: {problem.strerror or problem}") from problem
        with file:
            head = self._head(file)
            if head.startswith(GZIP_MAGIC):
                yield from _ahead(self._guarded(self._gzip(file)))
            elif head == ZSTD_MAGIC:
                yield from _ahead(self._guarded(self._zstd(file)))
            elif head[:3] == BZIP2_MAGIC and head[3:].isdigit():
                yield from _ahead(self._guarded(self._bzip2(file)))
            else:
                yield from _ahead(self._plain(file))

    def refuse_empty(self, label: str, wanted: str) -> None:
        """InputError, where nothing was read; `wanted` says what to give instead."""
        if not self.text_bytes:
            raise InputError(
                f"{label} has nothing to read: {self.problem or 'it is empty'}. {wanted}"
            )

    def _head(self, file: BinaryIO) -> bytes:
        try:
            file.seek(self._offset)
            head = file.read(4 if self._left is None else min(4, self._left))
            file.seek(self._offset)
        except OSError as problem:
            raise InputError(f"cannot read {self.path}: {problem.strerror or problem}") from problem
        return head

    def _read(self, file: BinaryIO, most: int) -> bytes:
        size = most if self._left is None else min(most, self._left)
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
        num_zero = 0
        while data := self._read(file, BLOCK_BYTES):
            self.text_bytes += len(data)
            # Looked at in full only where it begins and ends with one.
            is_zero = not (data[0] or data[-1]) and data.count(0) == len(data)
            num_zero = num_zero + len(data) if is_zero else 0
            if num_zero > MAX_ZERO_BYTES:
                self.problem = (
                    f"{num_zero >> 20} MiB of zero bytes stand in it (a sparse file?); reading "
                    "stopped there"
                )
                return
            yield data

    def _gzip(self, file: BinaryIO) -> Iterator[bytes]:
        """Every member of the file; damage ends it with what came before."""
        engine, pending = zlib_ng.decompressobj(GZIP_WINDOW), b""
        between = False
        while pending := pending or self._read(file, PACKED_BYTES):
            if between:
                pending = pending.lstrip(b"\x00")
                if not pending:
                    continue
                if not pending.startswith(GZIP_MAGIC[: len(pending)]):
                    self.problem = "bytes after the end of the gzip data were left out"
                    return
                engine, between = zlib_ng.decompressobj(GZIP_WINDOW), False
            before = cast("Any", engine).copy()  # its stub does not list it
            try:
                text = engine.decompress(pending, BLOCK_BYTES)
            except GZIP_ERRORS as problem:
                self.problem = f"the gzip data is damaged ({problem})"
                yield from _until_damage(before, pending)
                return
            if text:
                yield text
            between = engine.eof
            pending = engine.unused_data if between else engine.unconsumed_tail
        if not between:
            yield from self._gzip_rest(engine)

    def _gzip_rest(self, engine: zlib_ng._Decompress) -> Iterator[bytes]:
        """What the engine still holds when the file ends inside a member."""
        try:
            while text := engine.decompress(b"", BLOCK_BYTES):
                yield text
        except GZIP_ERRORS as problem:
            self.problem = f"the gzip data is damaged ({problem})"
            return
        if not engine.eof:
            self.problem = self.problem or "the gzip data ends before its end mark"

    def _zstd(self, file: BinaryIO) -> Iterator[bytes]:
        """The same; in small parts, because the part in which damage is met is lost."""
        source = cast("BinaryIO", _Blocks(lambda: self._read(file, PACKED_BYTES)))
        reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(
            source, read_across_frames=True
        )
        while self.problem is None:
            parts: list[bytes] = []
            try:
                while len(parts) < 16 and (text := reader.read(BLOCK_BYTES // 16 + 1)):
                    parts.append(text)
            except zstandard.ZstdError as problem:
                self.problem = f"the zstd data cannot be read ({problem})"
                if "memory" in str(problem):
                    self.problem = (
                        f"it needs a zstd window over {MAX_WINDOW_BYTES >> 20} MiB; compress it "
                        "again without --long"
                    )
            if not parts:
                if not self.text_bytes:
                    self.problem = self.problem or "the zstd data is empty or cut off"
                return
            yield b"".join(parts)

    def _bzip2(self, file: BinaryIO) -> Iterator[bytes]:
        """Every stream of the file; damage ends it with the blocks before."""
        engine, packed = bz2.BZ2Decompressor(), self._read(file, BZIP2_BYTES)
        while packed or not (engine.eof or engine.needs_input):
            try:
                text = engine.decompress(packed, BLOCK_BYTES)
            except (OSError, ValueError) as problem:
                self.problem = f"the bzip2 data is damaged ({problem})"
                return
            if text:
                yield text
            packed = engine.unused_data if engine.eof else b""
            if not packed and (engine.eof or engine.needs_input):
                packed = self._read(file, BZIP2_BYTES)
            if engine.eof and packed:
                if not BZIP2_MAGIC.startswith(packed[: len(BZIP2_MAGIC)]):
                    self.problem = "bytes after the end of the bzip2 data were left out"
                    return
                engine = bz2.BZ2Decompressor()
        if not engine.eof:
            self.problem = self.problem or "the bzip2 data ends before its end mark"

    def _guarded(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.text_bytes += len(block)
            yield block
            if (
                self.text_bytes > EXPANSION_FREE_BYTES
                and self.text_bytes > MAX_EXPANSION * self.compressed_bytes
            ):
                done = self.text_bytes >> 20
                self.problem = (
                    f"it expands more than {MAX_EXPANSION} times; reading stopped after {done} "
                    "MiB of text"
                )
                return


class _Blocks:
    """The one method that the zstd reader needs of a file."""

    def __init__(self, block: Callable[[], bytes]) -> None:
        self._block = block

    def read(self, _size: int = -1) -> bytes:
        return self._block()


def _ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks; past the first megabyte each is made in a thread while the one before is
    worked on. A small file would wait longer for the thread than for its bytes."""
    num_bytes = 0
    while num_bytes < MIN_AHEAD_BYTES:
        block = next(blocks, b"")
        if not block:
            return
        num_bytes += len(block)
        yield block
    with ThreadPoolExecutor(1, thread_name_prefix="stepscope-decompress") as pool:
        following = pool.submit(next, blocks, b"")
        while block := following.result():
            following = pool.submit(next, blocks, b"")
            yield block


def _until_damage(engine: zlib_ng._Decompress, packed: bytes) -> Iterator[bytes]:
    """What a call that failed would have given: the engine keeps nothing of it, so the bytes are
    fed again, a few at a time."""
    for at in range(0, len(packed), SALVAGE_BYTES):
        try:
            text = engine.decompress(packed[at : at + SALVAGE_BYTES])
        except GZIP_ERRORS:
            return
        if text:
            yield text


BLOCK = 512
MAX_MEMBERS = 100_000
MAX_EXTENSION_BYTES = 1 << 20

REGULAR = (b"0", b"\x00", b"7")
LONG_NAME, EXTENSION, FOLDER = b"L", b"x", b"5"
QUIET = (FOLDER, b"g", b"K", b"V")
PAX_RECORD = re.compile(rb"\d{1,9} (path|size|GNU\.sparse\.[a-z]+)=([^\n]*)\n")


class Member(Struct, frozen=True, kw_only=True):
    """A regular file inside an archive."""

    name: str
    offset: int
    length: int


class Archive(Struct):
    """Walks an archive; `notes` says what was left out."""

    file: BinaryIO
    size: int
    notes: list[str] = field(default_factory=list)
    _ignored: int = 0

    def members(self) -> Iterator[Member]:
        """Every regular file, in the archive's order."""
        at, name, length = 0, None, None
        sparse = False
        for _ in range(MAX_MEMBERS):
            header = self._read(at, BLOCK)
            if len(header) < BLOCK or not is_header(header):
                break
            kind, declared = header[156:157], _number(header[124:136])
            size = length if length is not None and kind in REGULAR else declared
            body = at + BLOCK
            at = body + (size + BLOCK - 1) // BLOCK * BLOCK
            if kind == LONG_NAME:
                name = self._read(body, min(size, MAX_EXTENSION_BYTES)).split(b"\x00", 1)[0]
                continue
            if kind == EXTENSION:
                name, length, sparse = _extension(self._read(body, min(size, MAX_EXTENSION_BYTES)))
                continue
            if kind in REGULAR and not sparse:
                yield Member(
                    name=_name(header, name),
                    offset=body,
                    length=max(0, min(size, self.size - body)),
                )
            elif kind not in QUIET:
                self._ignored += 1
            name, length, sparse = None, None, False
        self._tell(at)

    def _read(self, at: int, size: int) -> bytes:
        if at >= self.size:
            return b""
        self.file.seek(at)
        return self.file.read(size)

    def _tell(self, at: int) -> None:
        if self._ignored:
            self.notes.append(
                f"{self._ignored} entries that are links, devices or sparse files were left out"
            )
        if at > self.size:
            self.notes.append("the archive ends inside its last member")
        elif any(self._read(at, BLOCK)):
            self.notes.append(
                f"the archive is damaged after {at} bytes, or has more than {MAX_MEMBERS} "
                "entries; the rest was left out"
            )


def is_header(block: bytes) -> bool:
    """Whether these 512 bytes are a tar header: its checksum says so."""
    if len(block) < BLOCK or not block[0]:
        return False
    checksum = block[148:156].strip(b" \x00")
    if not checksum or not checksum.isdigit() or b"8" in checksum or b"9" in checksum:
        return False
    return int(checksum, 8) == sum(block[:148]) + 8 * ord(" ") + sum(block[156:BLOCK])


def _number(text: bytes) -> int:
    if text[:1] == b"\x80":
        return int.from_bytes(text[1:], "big") % 2**62
    digits = text.strip(b" \x00")
    return int(digits, 8) if digits and re.fullmatch(rb"[0-7]+", digits) else 0


def _extension(text: bytes) -> tuple[bytes | None, int | None, bool]:
    """The next member's name, its size, and whether it is a sparse file, from a pax header."""
    records = dict(PAX_RECORD.findall(text))
    size = records.get(b"size", b"")
    sparse = any(key.startswith(b"GNU.sparse") for key in records)
    return (
        records.get(b"path"),
        int(size) % 2**62 if size.isdigit() and len(size) < 20 else None,
        sparse,
    )


def _name(header: bytes, long_name: bytes | None) -> str:
    if long_name is None:
        prefix = b""
        if header[257:262] == b"ustar" and header[263:265] == b"00":
            prefix = header[345:500].split(b"\x00", 1)[0]
        long_name = (prefix + b"/" if prefix else b"") + header[:100].split(b"\x00", 1)[0]
    return "".join(c if c.isprintable() else "?" for c in long_name.decode("utf-8", "replace"))
