"""`stepscope.tuning-cache/1`: what `stepscope tune cache list --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stepscope.core.contract.codec import Contract
from stepscope.core.experiments.trials import Value


class CacheEntry(Struct, frozen=True, kw_only=True):
    """One setting that is kept."""

    what: str
    shapes: str
    dtype: str
    device: str
    versions: Mapping[str, str]
    settings: Mapping[str, Value]
    ns: float
    baseline_ns: float | None
    at: str
    checked: bool


class TuningCacheContract(Contract, frozen=True, kw_only=True, tag="stepscope.tuning-cache/1"):
    unread_lines: int
    entries: tuple[CacheEntry, ...]
