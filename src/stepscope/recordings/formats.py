"""Every format of other tools that is read: what it is, how to record it, and what it lets us
judge. A new one is its reader and its entry in `formats.json`."""

from __future__ import annotations

from pathlib import Path

from msgspec.json import decode

from stepscope.api import Format

FORMATS = decode(Path(__file__).with_suffix(".json").read_bytes(), type=tuple[Format, ...])
