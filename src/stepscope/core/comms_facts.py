"""What was measured of a job's communication: its collectives by kind and size, its links, its
ranks, its parallel shape.

A field is None when it was not measured. Bandwidths are bytes a second; times are nanoseconds.
"""

from __future__ import annotations

from msgspec import Struct


class CollectiveRow(Struct, frozen=True, kw_only=True):
    """Collectives of one operation, family of groups, type and size, inside the measured
    windows."""

    op: str
    group: str
    """The groups' description where one was recorded, else the name of one of them; "" when neither
    was."""
    num_groups: int
    """Groups alike (same description, number of ranks and stride) that this row joins."""
    num_ranks: int | None
    """Of one group."""
    dtype: str | None
    bytes: int | None
    """Of the whole message; the median where sizes differ (all-to-all)."""
    num_sizes: int
    count_per_step: float | None
    """On one rank; None when no step was measured."""
    ns_per_step: float | None
    """On one rank, from its own arrival: waits are in it."""
    wait_ns_per_step: float | None
    """Of that, until the last rank arrived; None when the other ranks were not recorded."""
    exposed_share: float | None
    """Of its time, with no compute beside it; None on the host."""
    moving_ns: int
    """From the last arrival to the end, the median; a rank's whole kernel when `includes_waits`."""
    includes_waits: bool
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    slowest_group: str | None = None
    """Where the row joins several: the ranks, or the name, of the one with the lowest bus
    bandwidth."""
    slowest_busbw_bytes_per_s: float | None = None
    imbalance: float | None = None
    """Of all-to-alls: the greatest part over the mean part, by the recorded splits, else by what
    each rank sends; the median."""
    crosses_nodes: bool | None = None
    on_device: bool = True


class LinkFit(Struct, frozen=True, kw_only=True):
    """T = steps * alpha + volume / beta, for one operation in one family of groups."""

    op: str
    group: str
    num_ranks: int
    alpha_ns: float
    """Of one step of a ring; 0 when it cannot be distinguished from nothing."""
    beta_bytes_per_s: float
    """Over the bus."""
    num_sizes: int
    min_bytes: int
    max_bytes: int
    goodness: float
    """1 - (squared relative misfit of the line) / (that of the best constant time)."""
    worst: float
    """The greatest relative misfit."""
    worst_bytes: int


class Buckets(Struct, frozen=True, kw_only=True):
    """Gradient buckets of DDP: all-reduces in the order they fire in a step's backward pass,
    medians over ranks and steps."""

    group: str
    bytes: tuple[int | None, ...]
    fired_ns: tuple[int, ...]
    """Each one's start, from the first kernel of the backward pass."""
    backward_ns: int
    """From that kernel to the end of the last one of the backward pass."""
    tail_ns: int
    """From the end of the last backward kernel to the end of the last bucket; negative when that
    came first."""


class Gathers(Struct, frozen=True, kw_only=True):
    """All-gathers of sharded parameters in one part of a step, on one rank."""

    phase: str
    group: str
    count_per_step: float
    bytes_per_step: float | None
    hidden_share: float
    """Of their time, under compute: what prefetching achieves."""
    ahead: float | None
    """The prefetch distance: modules that compute between a gather's launch and its use, the
    median; 0 is no prefetching. None where FSDP marked nothing (FSDP1)."""


class RankComms(Struct, frozen=True, kw_only=True):
    """One rank's part. Waits and transfers are of its median step, and exposed."""

    rank: int
    wait_ns: float | None
    transfer_ns: float | None
    late_ns: int | None
    """Its median arrival against the median rank's, of two in the middle the earlier one's; None
    when nothing of it was matched."""
    share_last: float | None
    """Of the collectives, those it came last to by more than the clocks' noise."""
    offset_ns: int | None
    """Added to its clock gives the first rank's; None when no collective ties it to that."""
    overlap_efficiency: float | None
    replayed: bool
    is_straggler: bool = False
    """Whether it is late by more than the clocks' noise at most collectives."""


class Dimension(Struct, frozen=True, kw_only=True):
    """One way the job is divided."""

    kind: str
    """data, tensor, pipeline, context, expert or not known."""
    scheme: str | None
    """DDP, FSDP (ZeRO-3), ...; None when the pattern does not tell."""
    size: int | None
    """Ranks in one group."""
    num_groups: int
    group: str
    because: str
    """What it was derived from."""


class Link(Struct, frozen=True, kw_only=True):
    """The fastest link of the device, by datasheet; whether the job's collectives run over it is
    not known from a trace."""

    name: str
    bytes_per_s: float
    source: str


class CommsFacts(Struct, frozen=True, kw_only=True):
    """The communication of one job."""

    world_size: int | None
    rows: tuple[CollectiveRow, ...]
    """By time, most costly first."""
    num_rows_left_out: int
    fits: tuple[LinkFit, ...]
    ranks: tuple[RankComms, ...]
    shape: tuple[Dimension, ...]
    buckets: Buckets | None = None
    gathers: tuple[Gathers, ...] = ()
    link: Link | None = None
    clock_noise_ns: int | None = None
    """How closely the ranks' clocks agree once aligned: arrivals closer than this are a tie. None
    for one rank."""
