"""The members of a tar archive, by where their bytes lie in it. Nothing is unpacked, and no
member's name is ever a path.

Headers are walked here rather than with `tarfile`, which reads a header extension of any size into
memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from msgspec import Struct, field

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
