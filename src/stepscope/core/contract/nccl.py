"""The key `nccl` of a diagnosis: what NCCL, or RCCL, wrote about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from stepscope.core.constraints import Count, one_of
from stepscope.core.recordings.nccl import (
    NcclChoice,
    NcclCommunicator,
    NcclGraph,
    NcclTopology,
    NcclWarning,
)


class NcclLinks(Struct, frozen=True, kw_only=True):
    """The channels from a rank to a peer that go the same way, counted."""

    communicator: str | None
    rank: int
    peer: int | None
    via: str
    received_via: str | None
    channels: Annotated[int, Meta(ge=1)]


class Nccl(Struct, frozen=True, kw_only=True):
    """What NCCL (or RCCL) wrote about itself."""

    library: Annotated[str, one_of("nccl", "rccl")]
    version: str | None
    versions: tuple[str, ...]
    files: tuple[str, ...]
    hosts: tuple[str, ...]
    world_size: int | None
    is_inter_node: bool | None
    transports: Mapping[str, Count]
    slowest_transport: str | None
    communicators: tuple[NcclCommunicator, ...]
    connections: tuple[NcclLinks, ...]
    networks: tuple[str, ...]
    interfaces: tuple[str, ...]
    ib_devices: tuple[str, ...] | None
    topology: NcclTopology | None
    graphs: tuple[NcclGraph, ...]
    algorithms: tuple[NcclChoice, ...]
    calls: Mapping[str, Count]
    env: Mapping[str, tuple[str, ...]]
    warnings: tuple[NcclWarning, ...]
    notes: tuple[str, ...]
