"""Where the shared traces lie, when they do: beside the repository, never inside the package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
DEMO = ROOT / "src" / "stepscope" / "data" / "demo.pt.trace.json.gz"

needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the shared traces are not beside this checkout (../shared)"
)


def shared_traces(*patterns: str) -> list[Path]:
    """Shared files by glob pattern, in order; none when there is no shared folder."""
    return sorted(path for pattern in patterns for path in SHARED.glob(pattern))


def some(items: Sequence[T], num: int) -> list[T]:
    """About so many of them, evenly chosen: CI has fifteen minutes. STEPSCOPE_EVERY=1 in the
    environment takes all."""
    return (
        list(items)
        if os.environ.get("STEPSCOPE_EVERY")
        else list(items[:: max(1, len(items) // num)])
    )
