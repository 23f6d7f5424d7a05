"""`stepscope.collective/1`: what `stepscope plan --collective KIND --format json` prints."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from stepscope.core.codec import AboveZero, Contract, Count, one_of

Algorithm = Annotated[str, one_of("ring", "tree", "nvls", "nvls-tree", "direct")]
Protocol = Annotated[str, one_of("ll", "ll128", "simple")]


class Way(Struct, frozen=True, kw_only=True):
    """One algorithm under its best protocol."""

    algorithm: Algorithm
    protocol: Protocol
    seconds: AboveZero
    bus_bytes_per_s: AboveZero
    """Bus bandwidth as nccl-tests counts it."""


class Crossover(Struct, frozen=True, kw_only=True):
    """Size from which on another way is the fastest by estimate."""

    size_bytes: AboveZero = field(name="bytes")
    before: str
    after: str


class Measurement(Struct, frozen=True, kw_only=True):
    """The same from a calibration."""

    name: str
    """NCCL's own choice, or the NCCL_ALGO that it was measured under."""
    seconds: AboveZero
    bus_bytes_per_s: AboveZero
    misfit: float
    """Larger over smaller of a fitted and a measured time at worst; 1 is none."""
    group_size: Count = field(name="ranks")
    """Ranks that it was measured over."""


class CollectiveContract(Contract, frozen=True, kw_only=True, tag="stepscope.collective/1"):
    """What one collective takes. docs/plan.md says how it is reckoned."""

    kind: str
    bytes: AboveZero
    """The whole buffer, so all ranks' parts for a gather, as nccl-tests counts it."""
    ranks: Count
    cluster: str
    ways: tuple[Way, ...]
    """The fastest first, by estimate."""
    picked: Way
    """What NCCL takes by its own model, at the time that is estimated here."""
    range_s: tuple[AboveZero, AboveZero] | None
    """Range of the time of what is picked; null where the links were measured."""
    crossovers: tuple[Crossover, ...]
    measured: tuple[Measurement, ...]
    """NCCL's own choice first."""
    advice: str | None
    """NCCL_ALGO or NCCL_PROTO; null where no measurement supports one."""
    notes: tuple[str, ...]
