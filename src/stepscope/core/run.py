"""What is known of a recorded run beside its traces: how long steps took with no profiler, and how
the job was set up.

A field is None when it was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Struct

from stepscope.core.codec import AtLeastZero, Count, Share, one_of
from stepscope.core.memory import RecordedFailure
from stepscope.core.recordings.system import PortSeries

MIN_CORES = 0.05
"""Cores that the scheduler leaves to a run, however much other processes take."""
RUN_PARTS = (
    "start_up", "first_batch", "compile", "warm_up", "steady", "waits", "saves", "evaluation",
    "epoch_start", "gc", "logging", "stalls", "idle", "recording", "shutdown", "other",
)  # fmt: skip
"""Parts of a run from its start to its end; each moment is in one of them."""


class UnprofiledSteps(Struct, frozen=True, kw_only=True):
    """Steps timed with no profiler attached, on one rank. A step reaches from one optimizer step's
    end to the next one's."""

    num: int
    num_left_out: int
    """Unlike most: they held a save, an evaluation, another number of batches."""
    step_ns: int
    """The mean of the middle nine tenths: a loader that delivers in bursts counts, a hiccup does
    not."""
    low_ns: int
    high_ns: int
    """What the mean of as many other steps would be, nine times in ten."""
    median_ns: int
    slowest_ns: int
    on_device: bool
    """Whether they are by the device's own clock: the host's may run ahead."""
    wait_ns: int | None
    """Time a step in next() of a DataLoader; of the same steps as `step_ns`. None: more than the
    steps themselves took."""
    backward_ns: int | None
    optimizer_ns: int | None
    num_batches: float | None
    """Batches a step."""
    num_backwards: float | None
    """Backward passes a step: more than one where gradients are accumulated."""
    dur_ns: int | None = None
    """A step by the host's clock, of the same steps; the parts above are parts of it."""
    wait_cpu_ns: int | None = None
    """Part of `wait_ns` that the training thread spent on a core: the rest it slept, for a disk or
    for workers."""
    save_ns: int | None = None
    gc_ns: int | None = None
    """Time a step in saves and in collections of garbage; of the same steps as `step_ns`."""
    host_ns: int | None = None
    """What a step takes the host, from steps in which it ran ahead of the device; None: it never
    did, or that was not seen."""
    host_share: tuple[float, float, float] | None = None
    """Ratio of what the host takes otherwise to what it took while it was recorded: the middle, and
    where four fifths of the steps lie; of backward passes in which it ran ahead of the device.
    None: it did not, or that was not seen."""


class OwnTime(Struct, frozen=True, kw_only=True):
    """One rank's step less what it waited for the others in backward passes: medians over the steps
    that all ranks timed with no profiler."""

    num_steps: int
    step_ns: int
    own_ns: int
    loader_ns: int
    """Part of `own_ns` in next() of a DataLoader."""
    backward_ns: int
    """Part of `own_ns` in backward passes; what moving the gradients takes is in it."""
    share_longest: float
    """Share of the steps in which no other rank's own time was longer."""
    spread: float
    """Share of the step by which the longest own time exceeds the ranks' mean, the mean over the
    steps; the same for all ranks."""


class Stalls(Struct, frozen=True, kw_only=True):
    """What some of the steps held beside what all of them do: saves, evaluations, collections of
    garbage, starts of the loader."""

    num: int
    """Steps that held one."""
    every: float
    """Steps from one to the next."""
    once_ns: int
    """What one adds to its step."""
    step_ns: int
    """Time that the stalls add to a step, over all of them."""
    lines: Mapping[str, float] = {}
    """Lines that asked for them, as the profiler names frames, and the share of each, the most
    first."""


class Saves(Struct, frozen=True, kw_only=True):
    """What one step's saves take in the mean, of all steps that hold any."""

    num: int
    """Steps."""
    once_ns: int
    cpu_ns: int
    """Part of `once_ns` that the training thread spent on a core: the rest it waited, for a disk or
    a core."""
    size_bytes: int
    """Written."""


class SlowSteps(Struct, frozen=True, kw_only=True):
    """Slow steps of one kind: they held nothing that was seen to be the reason, or waited for
    input."""

    cause: Annotated[str, one_of("input")] | None = None
    """`input`: they waited that much longer for a batch. None: not known."""
    every_steps: Count | None = None
    """Steps from one to the next, where they come in turn."""
    num: Count
    once_seconds: AtLeastZero
    """What one of them takes longer than a clean step, in the median."""
    seconds: AtLeastZero
    """What all of them take longer."""
    lines: Mapping[str, Share] = {}
    """Where the training thread was seen in them, and how often of all times, the most first."""


class RunPart(Struct, frozen=True, kw_only=True):
    """What the run spent on one thing."""

    what: Annotated[str, one_of(*RUN_PARTS)]
    seconds: AtLeastZero
    share: Share
    """Share of the run."""
    num: Count | None = None
    """How often; null where that is not counted."""
    of_it: Mapping[str, AtLeastZero] = {}
    """Seconds of it that are known by a name."""

    @property
    def dur_ns(self) -> int:
        return in_ns(self.seconds)


class RunPrice(Struct, frozen=True, kw_only=True):
    """What would likely be saved, less what stays, and between what that lies."""

    seconds: AtLeastZero
    """Seconds of this run."""
    low_seconds: AtLeastZero
    high_seconds: AtLeastZero
    hours_a_day: AtLeastZero | None = None
    """Hours of a day of such steps; null as in the advice."""


class RunAdvice(Struct, frozen=True, kw_only=True):
    """What would shorten the run, and by how much at most."""

    what: Annotated[str, one_of(*RUN_PARTS)]
    action: str
    seconds: AtLeastZero
    """Seconds of this run."""
    hours_a_day: AtLeastZero | None
    """Hours of a day of such steps; null for what a run pays once, and what was seen once."""
    likely: RunPrice | None = None
    """null where it is not known how much of the part would stay."""

    @property
    def likely_seconds(self) -> float:
        return self.seconds if self.likely is None else self.likely.seconds


class RunPhase(Struct, frozen=True, kw_only=True):
    """Steps that are alike, and unlike those before: a larger batch, longer sequences."""

    first_step: Count
    num_clean_steps: Count
    step_ms: AtLeastZero
    """The mean of its clean steps."""


class WholeRun(Struct, frozen=True, kw_only=True):
    """One rank's run from the start of its command to the end, on the host's clock; its parts sum
    to its seconds."""

    seconds: AtLeastZero
    productive_share: Share
    """Share of the run that clean steps take of `steady`."""
    rank: Count
    """The one with the median productive share."""
    parts: tuple[RunPart, ...]
    """Parts that took any time, in the order of RUN_PARTS."""
    stalls: tuple[SlowSteps, ...] = ()
    """What the part `stalls` is made of, the longest first."""
    advice: tuple[RunAdvice, ...] = ()
    """The most that can be saved first."""
    over_time: tuple[Mapping[str, AtLeastZero], ...] = ()
    """Seconds by part in equal stretches of the run, one after the other."""
    step_ms: AtLeastZero
    """The mean clean step."""
    num_clean_steps: Count
    """Steps with no profiler about that held nothing beside what all of them do."""
    num_steps: Count
    phases: tuple[RunPhase, ...] = ()
    """One after the other, where there is more than one; all of them are `steady`."""
    is_over: bool = True
    """Whether the end of the run was seen; else it is accounted for up to the last that was."""

    @property
    def dur_ns(self) -> int:
        return in_ns(self.seconds)

    def ns_of(self, *names: str) -> int:
        return sum(part.dur_ns for part in self.parts if part.what in names)

    def self_check(self) -> None:
        self._check_sum(self.dur_ns, [part.dur_ns for part in self.parts])
        assert all(part.dur_ns > 0 for part in self.parts)
        self._check_sum(self.ns_of("stalls"), [in_ns(each.seconds) for each in self.stalls])
        if self.over_time:
            stretches = [in_ns(s) for stretch in self.over_time for s in stretch.values()]
            self._check_sum(self.dur_ns, stretches)

    def _check_sum(self, whole_ns: int, parts_ns: Sequence[int]) -> None:
        """Assert that parts sum to the whole, as far as seconds are exact: a clock that was set may
        make a run of years."""
        slack_ns = (self.dur_ns >> EXACT_BITS) * (len(parts_ns) + 1)
        assert abs(sum(parts_ns) - whole_ns) <= slack_ns


EXACT_BITS = 52
"""Nanoseconds of so many bits are exact in a number of seconds: those of fifty days."""


def in_ns(seconds: float) -> int:
    """Whole nanoseconds, exact for runs of up to a hundred days."""
    return round(seconds * 1e9)


class HostGrowth(Struct, frozen=True, kw_only=True):
    """Memory of the host that one rank's process holds more of from step to step."""

    num_samples: int
    first_step: int
    last_step: int
    first_bytes: float
    last_bytes: float
    bytes_per_step: float


class LoaderKnobs(Struct, frozen=True, kw_only=True):
    """The DataLoader that feeds the steps."""

    num_workers: int | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    batch_size: int | None = None
    is_iterable: bool | None = None
    """Whether its dataset is an IterableDataset, of which each worker iterates a copy."""
    splits_itself: bool | None = None
    """Whether that dataset's code asks which worker it runs in, as one does that gives each its own
    samples."""
    is_bare: bool | None = None
    """Whether there is no DataLoader: the training loop iterates the dataset itself."""
    batch_tensors: int | None = None
    batch_bytes: int | None = None
    """Bytes that the tensors of the first batch hold; `batch_tensors` says how many they are."""


class DeviceSample(Struct, frozen=True, kw_only=True):
    """The device's counters over the timed steps: medians, but for what was ever seen."""

    busy_share: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    throttled_share: Mapping[str, float] | None = None
    """Share of the samples in which each reason to run slower was reported."""


class RankMetadata(Struct, frozen=True, kw_only=True):
    """One rank, from its folder."""

    rank: int
    steps: UnprofiledSteps | None = None
    num_steps: int = 0
    """Timed one by one, profiled or not."""
    loader: LoaderKnobs | None = None
    cores: float | None = None
    """Cores that this process may use: affinity, and the container's quota."""
    machine_cores: float | None = None
    """Cores of the machine, whoever may use them; None: as many as this process."""
    local_ranks: int | None = None
    """Ranks of the job on this machine."""
    threads: int | None = None
    """Threads of torch's operators on the host."""
    cudnn_benchmark: bool | None = None
    tf32: bool | None = None
    optimizers: tuple[str, ...] = ()
    made_at: Mapping[str, str] = {}
    """Line by class that made the loader that feeds the steps, and the job's only optimizer of that
    class, as the profiler names a frame."""
    ddp: Mapping[str, float | bool | str | None] | None = None
    model: str | None = None
    num_parameters: int | None = None
    device: DeviceSample | None = None
    has_device: bool = False
    device_id: str | None = None
    """Identifier of the device that it uses, the world over."""
    own: OwnTime | None = None
    """None on a device, where the host does not wait for other ranks; and where that is not
    known."""
    cores_used: float | None = None
    """Cores used by this process and its workers, while steps were timed."""
    children_cores: float | None = None
    """Part of `cores_used` by its child processes."""
    worker_bytes: float | None = None
    """Bytes of memory that one of its child processes has to itself."""
    own_bytes: float | None = None
    """Bytes of memory that the process has to itself: a worker that is forked from it may come to
    hold as much. None: not known."""
    growth: HostGrowth | None = None
    """None where the process holds no more from step to step, or that was not seen."""
    num_given_up: int | None = None
    """Functions that TorchDynamo gave up at its limit of compilations; None: not counted."""
    num_recompiles: int | None = None
    num_windows: int = 0
    """Recordings that were made."""
    num_kept_off: int = 0
    """Recordings that a profiler of the job's own kept from being made."""
    memory_available_bytes: float | None = None
    """Bytes available on the machine, while steps were timed."""
    busiest_worker_cores: float | None = None
    """Share of one core used by the child process that used most: a loader worker near 1 has no
    room left."""
    held_back_share: float | None = None
    """Share of the time in which the container's quota kept the process from running."""
    queued_share: float | None = None
    """Share of the time in which the main thread was ready to run and had no core."""
    pressure_share: float | None = None
    """The same of any thread of the machine."""
    other_cores: float | None = None
    """Cores in use on the machine by processes that are not of this run."""
    stalls: Mapping[str, Stalls] = {}
    """Stalls by kind: save, gc, evaluation."""
    saves: Saves | None = None
    """None where there were none, or their sizes are not known."""
    save_ns: int = 0
    gc_ns: int = 0
    timed_ns: int = 0
    """Length of the timed steps in all; `save_ns` and `gc_ns` are what saves and collections of
    garbage take of it."""
    num_epochs: int = 0
    """Times that a loader was begun anew after the first step."""
    problem: str | None = None
    """Why the capture switched itself off, where it did."""

    @property
    def held_up_share(self) -> float | None:
        """Share of the time in which the main thread could have run and did not: other threads had
        the cores, or the container's quota was used up. None where neither is known."""
        known = [each for each in (self.queued_share, self.held_back_share) if each is not None]
        return min(max(known), 1.0) if known else None

    @property
    def own_cores(self) -> float | None:
        """Part of the cores that is this rank's; None when that is not known."""
        return None if self.cores is None else self.cores / max(self.local_ranks or 1, 1)

    @property
    def free_cores(self) -> float | None:
        """Part of `own_cores` that processes which are not of the run leave to it."""
        if self.cores is None or self.own_cores is None or self.other_cores is None:
            return self.own_cores
        left = (self.machine_cores or self.cores) - self.other_cores
        return min(self.own_cores, max(left, MIN_CORES) / max(self.local_ranks or 1, 1))


class RunFacts(Struct, frozen=True, kw_only=True):
    """A recorded run as a whole."""

    path: str
    command: tuple[str, ...]
    exit_code: int | None
    """None while it runs, or where nobody saw its end."""
    ranks: tuple[RankMetadata, ...]
    ports: tuple[PortSeries, ...] = ()
    """InfiniBand's and RoCE's of its machines; empty where there are none."""
    failures: tuple[RecordedFailure, ...] = ()
    """Processes that died of memory that ran out."""

    @property
    def step_ns(self) -> int | None:
        """The job's step: the median over ranks of each one's."""
        steps_ns = sorted(rank.steps.step_ns for rank in self.ranks if rank.steps is not None)
        return steps_ns[(len(steps_ns) - 1) // 2] if steps_ns else None

    @property
    def most_held_up(self) -> RankMetadata | None:
        """The rank that could have run and did not for most of the time; None where that is known
        of none."""
        known = [rank for rank in self.ranks if rank.held_up_share is not None]
        return max(known, key=lambda rank: rank.held_up_share or 0.0, default=None)

    @property
    def is_kept_off(self) -> bool:
        """Whether a profiler of the job's own kept every recording of some rank from being made."""
        return any(rank.num_kept_off for rank in self.ranks) and not any(
            rank.num_windows for rank in self.ranks
        )

    @property
    def by_rank(self) -> Mapping[int, RankMetadata]:
        return {rank.rank: rank for rank in self.ranks}
