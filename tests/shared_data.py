"""Where the shared traces lie, when they do: beside the repository, never inside the package."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import zstandard

import stepscope
from tests import installed
from tests.installed import needs

T = TypeVar("T")

ROOT = installed.ROOT
SHARED = installed.SHARED
SAMPLES = ROOT / "tests" / "samples"
"""Of our own recordings; `scripts/make-samples` writes them."""
DEMO = Path(stepscope.__file__).with_name("data") / "demo.pt.trace.json.gz"

needs_shared = needs("the shared recordings")


def lab_trace(name: str) -> Path:
    """A recording of the repository, by folder and name: "traces/cnn_pointwise.slow"."""
    return SAMPLES / f"{name}.pt.trace.json.zst"


def unpacked(path: Path) -> bytes:
    """What a recording says, uncompressed."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    return zstandard.ZstdDecompressor().decompress(data) if path.suffix == ".zst" else data


SMALL = lab_trace("single/nchw.slow")
"""A fifth of the demo, for what holds of any recording."""


def lab_traces(*patterns: str) -> list[Path]:
    """Recordings of the repository by glob pattern, in order."""
    return sorted(path for pattern in patterns for path in SAMPLES.glob(pattern))


def shared_traces(*patterns: str) -> list[Path]:
    """Shared files by glob pattern, in order; none when there is no shared folder."""
    return sorted(path for pattern in patterns for path in SHARED.glob(pattern))


def some(items: Sequence[T], num: int) -> list[T]:
    """At most so many of them, evenly chosen: CI has fifteen minutes. STEPSCOPE_EVERY=1 in the
    environment takes all."""
    return (
        list(items)
        if os.environ.get("STEPSCOPE_EVERY")
        else list(items[:: -(-len(items) // num) or 1])
    )
