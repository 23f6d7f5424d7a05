"""Facts: what the analyses measured.

A field is None when it was not measured, 0 when it was measured to be zero. Times are integer
nanoseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from stepscope.core.codec import Count
from stepscope.core.comms import CommsFacts
from stepscope.core.memory import MemoryUse, OutOfMemoryReport, use_of
from stepscope.core.numbers import number_ranges
from stepscope.core.peak import IDLE_PARTS, ComputeSplit, PeakWaterfall
from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.nccl import NcclLog
from stepscope.core.run import RunFacts, WholeRun

MAX_UNKNOWN = 6
"""Kinds of unknown events that are named."""

PARTS = ("compute", "comms_wait", "comms_transfer", "transfer", *IDLE_PARTS)
"""The parts of a step, in the order they are shown. Every nanosecond of a step is in exactly
one."""


class DeviceTotals(Struct, frozen=True, kw_only=True):
    """The device over the whole trace, by category of event: lengths of unions, in exact
    nanoseconds."""

    span: Count
    busy: Count
    compute: Count
    comms: Count
    copy: Count
    comms_under_compute: Count

    def self_check(self) -> None:
        assert 0 <= self.busy <= self.span
        assert (
            max(self.compute, self.comms, self.copy)
            <= self.busy
            <= self.compute + self.comms + self.copy
        )
        assert self.comms_under_compute <= min(self.comms, self.compute)


class Steps(Struct, frozen=True, kw_only=True):
    """Where the run's steps lie. A window reaches from the end of one step's work to the end of the
    next one's."""

    source: str
    """What separates the steps: ProfilerStep, a mark's name, Optimizer.step, launch pattern, whole
    trace."""
    where: str
    """device, or host when nothing ran on a device."""
    num_seen: int
    """Steps that launched work; n of them in a row give n - 1 whole windows."""
    num_marked: int
    """Steps the host went through, whether or not they launched work."""
    windows: tuple[tuple[int, int], ...]
    is_step_interval: bool = field(name="is_pitch")
    """Whether a window is the distance between the same point of two steps, or merely all there
    is."""
    host_ns: tuple[int, ...] = ()
    """How long the host spent in each step: says nothing about the step when the host runs
    ahead."""

    @property
    def step_intervals(self) -> tuple[int, ...]:
        return tuple(end - start for start, end in self.windows)

    @property
    def median_windows(self) -> tuple[int, ...]:
        """Windows of the median length: one, or the two in the middle; none without windows."""
        intervals = self.step_intervals
        order = sorted(range(len(intervals)), key=intervals.__getitem__)
        return tuple(order[(len(order) - 1) // 2 : len(order) // 2 + 1])

    @property
    def step_interval_ns(self) -> float | None:
        """The median length of a window."""
        return self.typical(self.step_intervals)

    def typical(self, per_window: tuple[int, ...]) -> float | None:
        """A figure of each window, for the median step: so that parts of a step still sum to it."""
        chosen = self.median_windows
        return sum(per_window[i] for i in chosen) / len(chosen) if chosen else None

    def self_check(self) -> None:
        assert all(end >= start for start, end in self.windows)
        assert all(a[1] <= b[0] for a, b in zip(self.windows, self.windows[1:], strict=False))


class Partition(Struct, frozen=True, kw_only=True):
    """Each window of the steps, split into PARTS; rows follow `Steps.windows`."""

    parts: Mapping[str, tuple[int, ...]]
    totals: tuple[int, ...]
    waits_split: bool
    """Whether waiting for other ranks is separate from moving bytes, which needs their traces. If
    not, all of it is transfer."""

    def self_check(self) -> None:
        assert set(self.parts) == set(PARTS)
        for i, total in enumerate(self.totals):
            values = [self.parts[part][i] for part in PARTS]
            assert min(values) >= 0, "a negative part"
            assert sum(values) == total, f"window {i}: the parts sum to {sum(values)}, not {total}"


COLLECTIVE = "collective"
"""The category of kernels that communicate."""
CLOCK_MARGIN = 0.05
"""How far above its peak a device may seem to work: peaks are told for one clock, and it has
several."""


class KernelRow(Struct, frozen=True, kw_only=True):
    """Kernels of one name launched by one operator, inside the measured windows."""

    name: str
    category: str
    op: str | None
    count: int
    total_ns: int
    tensor_core: bool | None
    """None when the name does not tell."""
    precision: str | None
    flops: float | None
    bytes: float | None
    floor_ns: float | None
    """The least time its arithmetic or its traffic needs on this device."""

    @property
    def roof_share(self) -> float | None:
        """Share of the time it took that its floor is. None where that is not known, and where it
        took clearly less: its bytes lay in a cache, or it did other work than was counted."""
        if self.floor_ns is None or not self.total_ns:
            return None
        share = self.floor_ns / self.total_ns
        return min(share, 1.0) if share <= 1 + CLOCK_MARGIN else None


class CategoryRow(Struct, frozen=True, kw_only=True):
    """Device time of one kind of kernel, inside the measured windows."""

    category: str
    count: int
    total_ns: int


class RangeRow(Struct, frozen=True, kw_only=True):
    """Device time launched inside one host range: an operator, a mark or a module."""

    name: str
    count: int
    device_ns: int
    host_ns: int | None = None
    projected_ns: int | None = None
    """Time from the start of the first work launched inside one such range to the end of the last,
    the median over them; as Nsight Systems projects NVTX ranges."""


class CallRow(Struct, frozen=True, kw_only=True):
    """Host calls of one name inside the measured windows."""

    name: str
    count: int
    total_ns: int
    longest_ns: int


class CopyRow(Struct, frozen=True, kw_only=True):
    """Copies of one kind inside the measured windows."""

    kind: str
    count: int
    total_ns: int
    bytes: int | None
    num_blocking: int
    """How many held the host until they were done."""

    @property
    def bytes_per_s(self) -> float | None:
        return (
            None
            if self.bytes is None or self.total_ns == 0
            else self.bytes / (self.total_ns * 1e-9)
        )


class Launches(Struct, frozen=True, kw_only=True):
    """How far the host ran ahead of the device, inside the measured windows."""

    num_device_events: int
    num_unlinked: int
    num_graph_launches: int
    num_in_graphs: int
    num_lost: int = 0
    """Device events whose launching call was not recorded, and launching calls whose work was
    not."""
    median_delay_ns: int | None
    """Time from the start of the launching call to the start of the work."""
    median_queue_depth: float | None
    """Work launched and not yet begun, at the moment of a launch."""
    starved_share: float | None
    """Share of launches that found the device with nothing left to do."""
    median_call_ns: int | None
    median_kernel_ns: int | None
    cut_share: float = 0.0
    """Share of the device's work that is missing in a file that ends before its end: of the host's
    operators those after the last call of their thread into the runtime, which recorders write
    later, or of the launching calls those without their work, whichever is more."""
    silent_share: float | None = None
    """Share of the device's idle time that fell into long stretches of the host with no runtime
    call; None without idle time."""

    @property
    def lost_share(self) -> float:
        """Share of the device events there should be that are not there or whose launch is not."""
        return self.num_lost / max(self.num_device_events, self.num_lost, 1)


class Host(Struct, frozen=True, kw_only=True):
    """What the host did inside the measured windows."""

    syncs: tuple[CallRow, ...]
    allocator: tuple[CallRow, ...]
    loader: tuple[CallRow, ...]
    compile: tuple[CallRow, ...]


class Phases(Struct, frozen=True, kw_only=True):
    """Device time by the part of the step that launched it, inside the measured windows; sums of
    durations."""

    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    unknown_ns: int
    recomputed_ns: int
    """Part of backward: forward operators run again (activation checkpointing)."""
    num_recomputed_ops: int


class Roofline(Struct, frozen=True, kw_only=True):
    """Arithmetic and traffic against the device's roofs. FLOPs are of one step."""

    device: str | None
    """The device whose roofs were used; None when it is not in our tables."""
    model_flops: float | None
    hardware_flops: float | None
    mfu: float | None
    hfu: float | None
    peak_precision: str | None
    modelled_share: float | None
    """Share of compute time whose work is known."""
    bandwidth_bound_ns: int | None
    """Kernel time under the memory roof, inside the measured windows."""
    arithmetic_bound_ns: int | None
    """Kernel time under the arithmetic roof, inside the measured windows."""
    tensor_core_share: float | None
    """Share of matrix-kernel time spent in tensor-core kernels."""
    arithmetic_share: float | None = None
    """Share of kernel time that the arithmetic units hold up, not device memory: by the roofs, else
    by the kernels' names."""


class Replayed(Struct, frozen=True, kw_only=True):
    """The recorded steps, simulated."""

    recorded_error: float
    """Error of the replay of what was recorded, unchanged, against the recorded step time."""
    step_interval_ns: float
    """The step of the unprofiled run, replayed."""
    error: float | None
    """Error of the replayed unprofiled step against the given step time; None when none was
    given."""
    cost_ns: float
    """Taken off the host's time per recorded event: what the profiler itself cost."""
    shares: Mapping[str, float]
    """Share of the step by which it would be shorter if the resource were free, for each
    resource."""


class RankFacts(Struct, frozen=True, kw_only=True):
    """Everything measured on one rank."""

    rank: int
    path: str
    device_name: str | None
    num_events: int
    device: DeviceTotals
    steps: Steps
    partition: Partition | None
    launches: Launches | None
    categories: tuple[CategoryRow, ...]
    kernels: tuple[KernelRow, ...]
    ops: tuple[RangeRow, ...]
    modules: tuple[RangeRow, ...] | None
    marks: tuple[RangeRow, ...]
    phases: Phases | None
    copies: tuple[CopyRow, ...]
    host: Host
    roofline: Roofline
    busy_ns: tuple[int, ...]
    """Device time with any work, per window."""
    comms_hidden_ns: tuple[int, ...]
    replayed: Replayed | None = None
    """None when fewer than two steps in a row were recorded with their launches."""
    has_marks: bool = True
    """Whether any named range of the host was recorded: the step's, the loader's, the
    optimizer's."""
    compute_split: ComputeSplit | None = None
    """None without a device or a whole step."""
    peak_waterfall: PeakWaterfall | None = None
    """None for the same reasons."""
    memory: MemoryUse | None = None
    """Memory of its device; None where the allocator's events were not recorded."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def uses_device(self) -> bool:
        """Whether it has one, recorded at work or only named."""
        return self.steps.where == "device" or self.device_name is not None

    @property
    def typical_parts_ns(self) -> dict[str, float] | None:
        """The parts of the median step; they sum to its length."""
        if self.partition is None or not self.steps.windows:
            return None
        typical = {part: self.steps.typical(self.partition.parts[part]) for part in PARTS}
        return {part: value for part, value in typical.items() if value is not None}

    @property
    def floor_ms(self) -> float | None:
        """A step of the kernels' least times, those whose work is not known as they are,
        communication hidden behind them. None where the work of less than half is known."""
        is_known = (self.roofline.modelled_share or 0) >= 0.5
        if not self.kernels or not self.steps.windows or not is_known:
            return None
        least = sum(
            row.total_ns if row.floor_ns is None else min(row.floor_ns, row.total_ns)
            for row in self.kernels
            if row.category != COLLECTIVE
        )
        return least / len(self.steps.windows) / 1e6

    def self_check(self) -> None:
        """Assert that the times add up."""
        self.device.self_check()
        self.steps.self_check()
        if self.partition is not None:
            self.partition.self_check()
            assert self.partition.totals == self.steps.step_intervals
        if self.peak_waterfall is not None:
            self.peak_waterfall.self_check()
        if self.memory is not None:
            self.memory.self_check()


class Facts(Struct, frozen=True, kw_only=True):
    """The ranks of one job."""

    ranks: tuple[RankFacts, ...]
    given_step_ns: int | None = None
    """The step with no profiler attached; None when it is not known."""
    is_step_measured: bool = False
    """Whether the capture measured that time; else the user gave it, or a log had it."""
    is_step_logged: bool = False
    """Whether the job's own log had it."""
    run: RunFacts | None = None
    """The recorded run; None for traces that came without one."""
    whole_run: WholeRun | None = None
    """Where its time went from its start to its end; None where too few steps were timed."""
    nccl: NcclLog | None = None
    """What NCCL's own logs tell; None when none was given."""
    comms: CommsFacts | None = None
    """What the ranks' collectives tell; None when none was recorded."""
    auxiliary: Auxiliary | None = field(default=None, name="beside")
    """What other tools recorded of the run; None when nothing was given."""
    out_of_memory: tuple[OutOfMemoryReport, ...] = ()
    """Every time memory ran out, where that was recorded."""
    peak_waterfall: PeakWaterfall | None = None
    """Waterfall of all ranks, or of a log; None where no step on a device was measured."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The ranks' notes, each once, with the ranks it is of where it is not of all."""
        of_rank: dict[str, list[int]] = {}
        for rank in self.ranks:
            for note in rank.notes:
                of_rank.setdefault(note, []).append(rank.rank)
        everywhere = len(self.ranks)
        return tuple(
            note if len(where) == everywhere else f"{note} (rank {number_ranges(where)})"
            for note, where in of_rank.items()
        )

    @property
    def memory(self) -> tuple[MemoryUse, ...]:
        """Memory of each rank whose trace has it, then of each recording of memory."""
        ranks = (
            replace(rank.memory, rank=rank.rank) for rank in self.ranks if rank.memory is not None
        )
        report = None if self.auxiliary is None else self.auxiliary.memory
        if report is None or self.auxiliary is None:
            return tuple(ranks)
        return (*ranks, *map(use_of, report.sized(self.auxiliary.system).records))

    @property
    def unknown_note(self) -> str | None:
        """Note on what was recorded and is not understood, by name; None when all is."""
        counts: Counter[str] = Counter()
        for rank in self.ranks:
            counts.update(rank.unknown)
        if not counts:
            return None
        named = ", ".join(
            f"{name if len(name) <= 40 else name[:37] + '...'} ({n})"
            for name, n in counts.most_common(MAX_UNKNOWN)
        )
        more = f" and {len(counts) - MAX_UNKNOWN} other kinds" if len(counts) > MAX_UNKNOWN else ""
        return (
            f"{counts.total()} events of kinds not known to stepscope, counted and left out: "
            f"{named}{more}"
        )

    @property
    def step_source(self) -> str:
        """Where the step time comes from: given, measured, the job's own log, or the trace
        alone."""
        if self.given_step_ns is None:
            return "trace"
        return "measured" if self.is_step_measured else "log" if self.is_step_logged else "given"

    @property
    def median_rank(self) -> RankFacts:
        """The rank whose step time is the median (the lower of the two middle ones); one without
        steps only if none has any, one with no two in a row only if none has those."""
        timed = [r for r in self.ranks if r.steps.step_interval_ns is not None]
        # The span of a rank that shows no step of its own is no step time, and one step may have
        # been cut off with its file.
        stepping = [r for r in timed if r.steps.is_step_interval]
        timed = sorted(
            [r for r in stepping if r.steps.num_seen > 1] or stepping or timed,
            key=lambda r: (r.steps.step_interval_ns or 0, r.rank),
        )
        return timed[(len(timed) - 1) // 2] if timed else self.ranks[0]

    def self_check(self) -> None:
        for rank in self.ranks:
            rank.self_check()
        if self.peak_waterfall is not None:
            self.peak_waterfall.self_check()
        if self.whole_run is not None:
            self.whole_run.self_check()
