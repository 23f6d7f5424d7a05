"""`stepscope.runs/1`: what `stepscope runs --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from stepscope.core.codec import AboveZero, AtLeastZero, Contract, Count, Share

RunState = Literal["running", "ended", "broken off"]
RunKind = Literal["run", "trials"]


class RunFinding(Struct, frozen=True, kw_only=True):
    """The first finding of a run's diagnosis."""

    code: str
    predicted_speedup: AboveZero
    predicted_low: AboveZero
    predicted_high: AboveZero
    is_proven: bool | None = None
    """Whether `fix` or `verify` proved its fix to make this command faster; null where that was not
    tried, as far as what is kept beside the run tells."""
    proven_speedup: AboveZero | None = None
    """Speedup that it gave there."""


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
    """Bytes of all that lies in its folder."""
    bound: str | None = None
    """Bound of its diagnosis.json; null where it has none."""
    verdict: str | None = None
    step_ms: AtLeastZero | None = None
    parts: Mapping[str, Share] = {}
    """Parts of the diagnosed step, of the rank in the middle. Empty where they were not
    measured."""
    finding: RunFinding | None = None
    """null where there is none, or no diagnosis."""
    commit: str | None = None
    """Commit of the checkout that it was started in, whatever was changed in it since."""


class RunsContract(Contract, frozen=True, kw_only=True, tag="stepscope.runs/1"):
    """The runs of a folder, the newest first."""

    folder: str
    runs: tuple[RunEntry, ...]
    pruned: tuple[str, ...] | None = None
    """Names that `runs prune` removed, or would without --yes; null where that was not asked."""
