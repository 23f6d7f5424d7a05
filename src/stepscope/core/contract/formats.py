"""`stepscope.formats/1`: what `stepscope formats --format json` prints."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from stepscope.core.codec import Contract


class Format(Struct, frozen=True, kw_only=True):
    """A format that is read."""

    name: str
    words: str
    kind: str
    record: str
    """How to record it."""
    judges: tuple[str, ...]


class FileFormat(Struct, frozen=True, kw_only=True):
    """A file that was looked at."""

    path: str
    format: str | None
    """Null where it is none that is read."""
    problem: str | None = None
    """Why not."""


class FormatsContract(Contract, frozen=True, kw_only=True, tag="stepscope.formats/1"):
    judged: tuple[str, ...]
    """What a format can be about."""
    formats: tuple[Format, ...]
    files: tuple[FileFormat, ...] | UnsetType = UNSET
    """Present only where files were given."""
