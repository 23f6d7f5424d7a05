"""`stepscope.plan-run/1`: what `stepscope plan --from RUN --nodes N,N --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stepscope.core.contract.codec import Contract


class RecordedRun(Struct, frozen=True, kw_only=True):
    paths: tuple[str, ...]
    width: int
    step_s: float
    step_source: str


class Width(Struct, frozen=True, kw_only=True):
    """The run on so many ranks."""

    nodes: int
    width: int
    data_ranks: int
    source: str
    """measured or derived."""
    step_s: float
    parts_s: Mapping[str, float]
    speedup: float
    efficiency: float
    samples_per_s: float | None
    tokens_per_s: float | None


class Device(Struct, frozen=True, kw_only=True):
    """The recorded step on another device."""

    device: str
    step_s: float
    parts_s: Mapping[str, float]
    """Compute as its kernels scale; all else as recorded."""
    speedup: float
    share_known: float
    """Of the kernels' time, those whose work was recorded; others go with the memory's rate."""


class PlanRunContract(Contract, frozen=True, kw_only=True, tag="stepscope.plan-run/1"):
    """A recorded run at other widths. What is not known is null."""

    run: RecordedRun
    scaling: str
    """strong or weak."""
    ranks_per_node: int
    widths: tuple[Width, ...]
    devices: tuple[Device, ...]
    """Of --what-if device=NAME."""
    methods: tuple[str, ...]
    notes: tuple[str, ...]
