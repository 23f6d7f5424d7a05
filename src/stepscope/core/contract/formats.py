"""`stepscope.formats/1`: what `stepscope formats --format json` prints."""

from __future__ import annotations

from msgspec import Struct

from stepscope.core.contract.codec import Contract


class Format(Struct, frozen=True, kw_only=True):
    """A format that is read."""

    name: str
    words: str
    kind: str
    record: str
    """How to record it."""
    judges: tuple[str, ...]


class FormatsContract(Contract, frozen=True, kw_only=True, tag="stepscope.formats/1"):
    judged: tuple[str, ...]
    """What a format can be about."""
    formats: tuple[Format, ...]
