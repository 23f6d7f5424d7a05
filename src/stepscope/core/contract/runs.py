"""`stepscope.runs/1`: what `stepscope runs --format json` prints."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepscope.core.constraints import AtLeastZero, Count
from stepscope.core.contract.codec import Contract

RunState = Literal["running", "ended", "broken off"]
RunKind = Literal["run", "trials"]


class RunEntry(Struct, frozen=True, kw_only=True):
    """A folder in which a recorded run is kept, or the trials of `verify`, `tune` or `fix`."""

    name: str
    path: str
    kind: RunKind
    """`trials`: no run by itself, a folder with runs in it."""
    tags: tuple[str, ...] = ()
    """Names that a person gave to it."""
    state: RunState
    """`broken off`: no end was written, and nothing has been for ten minutes."""
    exit_code: int | None = None
    command: tuple[str, ...] = ()
    started_wall_ns: Count | None = None
    size_bytes: Count
    """Of all that lies in its folder."""
    bound: str | None = None
    """Of its diagnosis.json; null where it has none."""
    verdict: str | None = None
    step_ms: AtLeastZero | None = None


class RunsContract(Contract, frozen=True, kw_only=True, tag="stepscope.runs/1"):
    """The runs of a folder, the newest first."""

    folder: str
    runs: tuple[RunEntry, ...]
    pruned: tuple[str, ...] | None = None
    """Names that `runs prune` removed, or would without --yes; null where that was not asked."""
