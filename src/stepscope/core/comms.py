"""What travels between ranks' analyses: each rank's collectives, and how those of all ranks belong
together.

What was measured of a job's communication: its collectives by kind and size, its links, its
ranks, its parallel shape.

A field is None when it was not measured. Bandwidths are bytes a second; times are nanoseconds.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from stepscope.core.trace import NONE, Bool, Float64, Int64

FORWARD, BACKWARD, OPTIMIZER = 0, 1, 2
"""The part of a step that launched a collective."""


def _no_entries() -> Int64:
    return np.empty(0, np.int64)


def _no_figures() -> Float64:
    return np.empty(0, np.float64)


class ProcessGroup(Struct, frozen=True, kw_only=True):
    """A process group as one rank recorded it."""

    name: str
    description: str
    """"" when not recorded, or when it says nothing (undefined)."""
    ranks: tuple[int, ...]
    """Empty when not recorded."""
    size: int | None


class Collective(Struct, frozen=True, kw_only=True):
    """What one kind of collective is: same operation, group, type and size."""

    op: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send,
    recv, sendrecv (a kernel that does one or both, whose partner is not recorded), barrier, or
    other."""
    group: str
    """The process group's name; "" when not recorded."""
    group_ranks: tuple[int, ...]
    """Empty when not recorded."""
    dtype: str | None
    bytes: int | None
    """Bytes as nccl-tests count them: of the whole message (all_gather: what comes out;
    reduce_scatter: what goes in)."""
    on_device: bool
    """A kernel, or carried by the host (gloo)."""
    group_size: int | None = None
    """Group size as recorded: the list of ranks may be missing or cut short."""
    peer: int | None = None
    """The other rank of a send or a receive; None where it was not recorded."""


class CollectiveRecords(Struct, frozen=True, kw_only=True):
    """One rank's collectives in the order they ran on the device (or were called on the host), one
    entry each.

    Times are this rank's own clock, nanoseconds since the epoch where the recorder says so.
    """

    rank: int
    kinds: tuple[Collective, ...]
    kind: Int64
    """Index into `kinds`."""
    event: Int64
    """The trace's event."""
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    """When the host launched it; NONE where not recorded."""
    stream: Int64
    sequence: Int64
    """The group's sequence number as recorded; NONE where it was not."""
    step: Int64
    """The step that launched it, counted from this recording's first; NONE outside the steps."""
    exposed_start_ns: Int64
    """Stretches with a collective and no compute beside it, sorted; `exposed_of` says whose."""
    exposed_end_ns: Int64
    exposed_of: Int64
    windows: tuple[tuple[int, int], ...]
    """The measured windows of the rank's steps."""
    base_ns: int = 0
    phase: Int64 = field(default_factory=_no_entries)
    """Phase of each entry: FORWARD, BACKWARD or OPTIMIZER; NONE where not known. Empty when nobody
    looked."""
    unevenness: Float64 = field(default_factory=_no_figures)
    """Greatest split of each entry over its mean split; NaN where no splits were recorded. Empty
    like `phase`."""
    ahead: Int64 = field(default_factory=_no_entries)
    """Modules that compute between each entry's launch and its use, where FSDP marks both; else
    NONE."""
    backward: tuple[tuple[int, int, int], ...] = ()
    """Step, start of its first backward compute kernel, end of its last."""
    groups: tuple[ProcessGroup, ...] = ()
    world_size: int | None = None
    link: tuple[str, float, str] | None = None
    """The device's fastest link by datasheet: its name, bytes a second in one direction, the
    source."""
    step_number: Int64 = field(default_factory=_no_entries)
    """Number of each entry's step as the profiler's schedule counts them, alike on all ranks; NONE
    where none is marked. Empty like `phase`."""
    node: str = ""
    """The machine, where the recording's name tells it; ranks of one share a clock."""

    def __len__(self) -> int:
        return len(self.kind)

    def self_check(self) -> None:
        n = len(self.kind)
        assert all(
            len(a) == n
            for a in (
                self.event,
                self.start_ns,
                self.end_ns,
                self.launch_ns,
                self.stream,
                self.sequence,
                self.step,
            )
        )
        assert all(
            len(a) in (0, n) for a in (self.phase, self.unevenness, self.ahead, self.step_number)
        )
        assert bool((self.end_ns >= self.start_ns).all())
        assert bool((np.diff(self.start_ns) >= 0).all())
        assert not n or int(self.kind.max()) < len(self.kinds)
        assert not len(self.exposed_of) or int(self.exposed_of.max()) < n


class Matched(Struct, frozen=True, kw_only=True):
    """The collectives of a job: who takes part in each, on one clock."""

    ranks: tuple[int, ...]
    offset_ns: dict[int, int]
    """Added to a rank's clock gives that of its set of ranks. Collectives tie ranks to sets; each
    counts by the clock of its lowest rank, from the reference rank's base. Only times of one set
    can be compared."""
    unaligned: tuple[int, ...]
    """Ranks outside the reference rank's set."""
    of: dict[int, Int64]
    """Number of the collective, per rank and entry of its records; NONE: no other rank's was
    matched."""
    num: int
    arrival_ns: dict[int, Int64]
    """Arrival per rank and entry of its records, on its set's clock."""
    last_ns: Int64
    """Time when the last rank arrived, per collective."""
    end_ns: Int64
    """Time when each collective ended, the median over the ranks."""
    complete: Bool
    """Whether all ranks of its group were recorded, per collective."""
    notes: tuple[str, ...] = ()

    def wait_ns(self, collective_records: CollectiveRecords) -> Int64:
        """Wait for the last rank, per entry of a rank's collective records; 0 where nothing was
        matched."""
        ids = self.of[collective_records.rank]
        matched = ids != NONE
        waited = np.zeros(len(ids), np.int64)
        arrived = self.arrival_ns[collective_records.rank][matched]
        waited[matched] = np.clip(
            self.last_ns[ids[matched]] - arrived,
            0,
            (collective_records.end_ns - collective_records.start_ns)[matched],
        )
        return waited


NO_COLLECTIVES = Matched(
    ranks=(),
    offset_ns={},
    unaligned=(),
    of={},
    num=0,
    arrival_ns={},
    last_ns=_no_entries(),
    end_ns=_no_entries(),
    complete=np.empty(0, np.bool_),
)
"""Result for a rank that exchanges nothing with others."""


class Lateness(Struct, frozen=True, kw_only=True):
    """How late one rank arrives at the collectives of the measured steps, against the median
    arrival, of two in the middle the earlier."""

    rank: int
    median_ns: int
    share_last: float
    """Share of the complete collectives at which it arrived last by more than the clocks' noise."""
    per_step_ns: tuple[int, ...] = field(default=())
    """Greatest lateness of the rank in each step."""


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
    """Ranks of one group."""
    dtype: str | None
    bytes: int | None
    """Bytes of the whole message; the median where sizes differ (all-to-all)."""
    num_sizes: int
    count_per_step: float | None
    """Calls a step on one rank; None when no step was measured."""
    ns_per_step: float | None
    """Time a step on one rank, from its own arrival: waits are in it."""
    wait_ns_per_step: float | None
    """Part of `ns_per_step` until the last rank arrived; None when the other ranks were not
    recorded."""
    exposed_share: float | None
    """Share of its time with no compute beside it; None on the host."""
    moving_ns: int
    """Time from the last arrival to the end, the median; a rank's whole kernel when
    `includes_waits`."""
    includes_waits: bool
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    slowest_group: str | None = None
    """Where the row joins several: the ranks, or the name, of the one with the lowest bus
    bandwidth."""
    slowest_busbw_bytes_per_s: float | None = None
    imbalance: float | None = None
    """Ratio of the greatest part to the mean part of all-to-alls, by the recorded splits, else by
    what each rank sends; the median."""
    crosses_nodes: bool | None = None
    on_device: bool = True


class LinkFit(Struct, frozen=True, kw_only=True):
    """T = steps * alpha + volume / beta, for one operation in one family of groups."""

    op: str
    group: str
    num_ranks: int
    alpha_ns: float
    """Nanoseconds of one step of a ring; 0 when it cannot be distinguished from nothing."""
    beta_bytes_per_s: float
    """Bus bandwidth."""
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
    """Time from that kernel to the end of the last one of the backward pass."""
    tail_ns: int
    """Time from the end of the last backward kernel to the end of the last bucket; negative when
    that came first."""


class Gathers(Struct, frozen=True, kw_only=True):
    """All-gathers of sharded parameters in one part of a step, on one rank."""

    phase: str
    group: str
    count_per_step: float
    bytes_per_step: float | None
    hidden_share: float
    """Share of their time under compute: what prefetching achieves."""
    ahead: float | None
    """The prefetch distance: modules that compute between a gather's launch and its use, the
    median; 0 is no prefetching. None where FSDP marked nothing (FSDP1)."""


class RankComms(Struct, frozen=True, kw_only=True):
    """One rank's part. Waits and transfers are of its median step, and exposed."""

    rank: int
    wait_ns: float | None
    transfer_ns: float | None
    late_ns: int | None
    """Median arrival of the rank against the median rank's, of two in the middle the earlier one's;
    None when nothing of it was matched."""
    share_last: float | None
    """Share of the collectives that it came last to by more than the clocks' noise."""
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
    """Rows by time, most costly first."""
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
