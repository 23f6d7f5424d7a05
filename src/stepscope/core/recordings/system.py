"""The machine under a run, as its tools recorded it: devices over time, where the host's threads
stood, counters of its cores; and what the processes of a job did for some seconds, as the system
counts it from outside.

None is "not recorded"; shares are of 1, cores of time on a core, a second. Nothing here is a
vendor's: readers of nvidia-smi, DCGM, rocm-smi and amd-smi fill the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct, field

from stepscope.core.codec import Count, one_of
from stepscope.core.hardware import DeviceRates
from stepscope.core.recordings.host_load import HostLoad
from stepscope.core.recordings.recording import Recording

RANK, WORKER, COMPILER, HELPER, PROCESS = "rank", "worker", "compiler", "helper", "process"
ROLES = (RANK, WORKER, COMPILER, HELPER, PROCESS)
"""What a process is to its job: it trains; it makes batches for one that does; it compiles; it does
something else for the job; or nothing says which."""


class ProcessUse(Struct, frozen=True, kw_only=True):
    """One process of the job, over the time it was looked at."""

    pid: int
    role: Annotated[str, one_of(*ROLES)]
    """process where nothing says what it does for the job."""
    name: str
    parent: int | None = None
    """The rank that it belongs to, by its number in the system."""
    rank: int | None = None
    """Rank of the process, where its environment has one."""
    num_threads: int | None = field(default=None, name="threads")
    cores: float | None = None
    """Cores used on average over its threads together."""
    queued_cores: float | None = None
    """Threads that were ready to run and had no core, on average."""
    kernel_share: float | None = None
    """Share of its time on cores that is spent in the operating system's kernel."""
    io_wait_share: float | None = None
    """Share of the looks in which its main thread was in an uninterruptible wait: for a disk, a
    network file system or a driver."""
    wakes_per_s: float | None = None
    """How often its main thread went to sleep of its own accord: it woke as often."""
    read_bytes_s: float | None = None
    """Bytes a second read from anywhere: files that memory holds, pipes."""
    disk_read_bytes_s: float | None = None
    disk_write_bytes_s: float | None = None
    uses_device: bool | None = None
    """Whether it has a GPU's file open."""

    @property
    def wanted_cores(self) -> float | None:
        """Cores that it would use if nobody else did."""
        return None if self.cores is None else self.cores + (self.queued_cores or 0.0)


class HostUse(Struct, frozen=True, kw_only=True):
    """The processes of one job, and the machine around them."""

    seconds: float | None
    num_looks: Count = field(name="looks")
    processes: tuple[ProcessUse, ...]
    num_cores: float | None = field(default=None, name="cores")
    """Cores that the job may use: its affinity and its control group's quota."""
    quota_cores: float | None = None
    """What the control group's quota alone grants; None where there is none."""
    busy_cores: float | None = None
    """Busy cores of the whole machine."""
    other_cores: float | None = None
    """Used by processes that are not the job's."""
    io_wait_share: float | None = None
    """Share of the machine's cores that is idle with a disk's answer outstanding."""
    held_back_share: float | None = None
    """Share of the time in which the control group's quota held its processes back."""
    not_measured: tuple[str, ...] = ()
    """What could not be, and why."""

    def of_role(self, role: str) -> tuple[ProcessUse, ...]:
        return tuple(process for process in self.processes if process.role == role)


POWER = ("sw_power_cap", "power_violation")
HEAT = ("sw_thermal_slowdown", "hw_thermal_slowdown", "thermal_violation")
FAULT = ("hw_slowdown", "hw_power_brake_slowdown")
IDLE = "gpu_idle"
"""Why a clock is below its highest, in the words of NVIDIA's driver. The violations are what dmon
writes, and what other vendors' monitors do: held down by power or by heat, and no more is known."""


class Spread(Struct, frozen=True, kw_only=True):
    """Spread of many samples: the tenth percentile, the median, the ninetieth, and the mean."""

    num: int
    low: float
    median: float
    high: float
    mean: float | None = None
    """None in files that older versions saved."""


class DeviceSeries(Struct, frozen=True, kw_only=True):
    """One device, over all samples of it."""

    index: int | None
    """Number of the device on the machine; None where the recording does not number its devices."""
    name: str | None = None
    host: str | None = None
    num_samples: int = 0
    num_working: int | None = None
    """Samples in which it was at work (`device_samples.AT_WORK`); None where its use was not
    recorded."""
    span_s: float | None = None
    """Seconds from the first sample to the last."""
    busy_share: Spread | None = None
    """Share of the time in which a kernel ran: what nvidia-smi calls utilization."""
    busy_run_share: Spread | None = None
    """The same, from the first sample at work to the last: what was sampled before and after is not
    of the run. None where it never was at work."""
    memory_busy_share: Spread | None = None
    sm_clock_mhz: Spread | None = None
    sm_clock_working_mhz: Spread | None = None
    """Clock in the samples at work alone: an idle device lowers its clock."""
    max_sm_clock_mhz: float | None = None
    memory_clock_mhz: Spread | None = None
    power_w: Spread | None = None
    power_working_w: Spread | None = None
    power_limit_w: float | None = None
    temperature_c: Spread | None = None
    memory_used_bytes: Spread | None = None
    memory_total_bytes: float | None = None
    pcie_rx_bytes_per_s: Spread | None = None
    pcie_tx_bytes_per_s: Spread | None = None
    nvlink_rx_bytes_per_s: Spread | None = None
    nvlink_tx_bytes_per_s: Spread | None = None
    engine_active_share: Spread | None = None
    """DCGM 1001: graphics or compute engine."""
    sm_active_share: Spread | None = None
    """DCGM 1002: of the time, over all multiprocessors, with a warp on them."""
    sm_occupancy_share: Spread | None = None
    """DCGM 1003: warps resident, of the most."""
    tensor_active_share: Spread | None = None
    """DCGM 1004."""
    dram_active_share: Spread | None = None
    """DCGM 1005."""
    throttled: Mapping[str, float] | None = None
    """Share of the samples at work (of all, where its use was not recorded) that named each reason;
    empty: none did; None: not recorded, or never at work."""

    @property
    def used_share(self) -> float | None:
        """How busy the run kept it: each sample is a share of its time, and the mean of them is
        that of the whole, which in bursts no median shows. None where that was not recorded, and
        for a device that nobody used."""
        share = self.busy_run_share or self.busy_share
        if share is None or not self.num_working:
            return None
        return share.median if share.mean is None else share.mean

    @property
    def label(self) -> str:
        host = "" if self.host is None else f"{self.host} "
        index = "" if self.index is None else f" {self.index}"
        return f"{host}device{index}"


class HotSpot(Struct, frozen=True, kw_only=True):
    """One function, over all stacks."""

    name: str
    file: str | None = None
    line: int | None = None
    """Where the function, or the sampled line of it, stands: as the tool writes it."""
    self_share: float
    """Share of the samples (or the time) in which it was the innermost call."""
    total_share: float
    """Share in which it was anywhere in the stack, counted once."""

    @property
    def label(self) -> str:
        if not self.file:
            return self.name
        line = "" if self.line is None else f":{self.line}"
        return f"{self.name} ({self.file}{line})"


class HostThread(Struct, frozen=True, kw_only=True):
    name: str
    share: float
    """Share of all that was sampled."""
    gil_wait_share: float | None = None
    """Share of its own samples that stand in the wait for the interpreter's lock; None where no
    native frames show it."""


class HostStacks(Struct, frozen=True, kw_only=True):
    """Where threads stood in one recording."""

    tool: str
    """py-spy, pyinstrument, viztracer, perf, or speedscope where nothing names it."""
    path: str
    pid: int | None = None
    """Process id, where one that runs was sampled."""
    unit: str
    """Unit of `amount`: "samples" or "seconds"."""
    amount: float
    functions: tuple[HotSpot, ...] = ()
    """The hottest by their own share, and by the whole of theirs."""
    training: tuple[HotSpot, ...] = ()
    """The innermost call of each stack that is neither a library's nor the interpreter's, with its
    share of the same whole as `total_share`; `self_share` is of the stacks in which the interpreter
    itself ran for it, or it was innermost."""
    threads: tuple[HostThread, ...] = ()
    """The busiest first."""
    num_threads: int | None = None
    has_native: bool = False
    """Native frames were recorded: an innermost call of Python is then the interpreter's own
    work."""
    interpreter_share: float | None = None
    """Share of the samples in which the interpreter itself ran: no compiled function below; None
    without native frames."""
    kernel_share: float | None = None
    """Share of the samples in which the operating system's kernel ran."""
    gil_wait_share: float | None = None
    page_fault_share: float | None = None
    """Share of the samples in which the kernel served a page fault."""
    page_read_share: float | None = None
    """Share of the samples in which it read a file's page from the disk or waited for one."""
    num_cores: int | None = None
    """Cores that samples were taken on; None where they were not recorded."""
    busy_cores: float | None = None
    """Cores that were busy on average, where the recording has time and period."""
    even_threads: int | None = None
    """Threads with at least half of an even share: those that all want to run."""


class HostCounters(Struct, frozen=True, kw_only=True):
    """`perf stat` of one process, or of the machine."""

    path: str
    command: str | None = None
    elapsed_s: float | None = None
    cpu_s: float | None = None
    """task-clock: time on cores."""
    busy_cores: float | None = None
    """CPUs utilized."""
    instructions: float | None = None
    cycles: float | None = None
    context_switches: float | None = None
    migrations: float | None = None
    page_faults: float | None = None
    major_faults: float | None = None
    cache_references: float | None = None
    cache_misses: float | None = None
    branches: float | None = None
    branch_misses: float | None = None
    c2c_read_bytes: float | None = None
    """Bytes read over NVLink-C2C, between a Grace CPU and its GPU."""
    c2c_written_bytes: float | None = None
    c2c_bytes: float | None = None
    """Both, where they were counted as one."""

    @property
    def instructions_per_cycle(self) -> float | None:
        return _ratio(self.instructions, self.cycles)

    @property
    def cache_miss_share(self) -> float | None:
        return _ratio(self.cache_misses, self.cache_references)

    @property
    def branch_miss_share(self) -> float | None:
        return _ratio(self.branch_misses, self.branches)

    @property
    def misses_per_1000(self) -> float | None:
        """Cache misses for each thousand instructions."""
        share = _ratio(self.cache_misses, self.instructions)
        return None if share is None else 1000 * share

    @property
    def switches_per_cpu_s(self) -> float | None:
        return _ratio(self.context_switches, self.cpu_s)


class DeviceLinks(Struct, frozen=True, kw_only=True):
    """How one device is connected in its machine."""

    name: str
    """Name that the tool gives it: GPU0."""
    peers: Mapping[str, str]
    """Kind of link to each other device, by name, as it is written: NV18, SYS, XGMI."""
    networks: Mapping[str, str] = field(default_factory=dict)
    """Kind of link to each network device, by name."""
    cores: str | None = None
    """Cores that are near it, as it is written: 0-23,96-119."""
    numa: str | None = None


class Topology(Struct, frozen=True, kw_only=True):
    """How the devices of one machine are joined."""

    path: str
    tool: str
    devices: tuple[DeviceLinks, ...]

    @property
    def pairs(self) -> Mapping[tuple[str, str], str]:
        """Each pair of devices once, with its link."""
        index = {device.name: i for i, device in enumerate(self.devices)}
        return {
            (device.name, peer): kind
            for device in self.devices
            for peer, kind in device.peers.items()
            if peer in index and index[device.name] < index[peer]
        }


class MeasuredRates(Struct, frozen=True, kw_only=True):
    """A file of rates that were measured on a machine."""

    path: str
    roofs: DeviceRates
    is_hardware: bool = False
    """Whether `stepscope calibrate` wrote it, which a diagnosis can judge by."""
    made: str = ""
    """When and by what, as such a file has it."""
    products: tuple[tuple[str, int, float], ...] = ()
    """Precision, size and TFLOP/s of products of square matrices."""
    copies: tuple[tuple[str, float], ...] = ()
    """GB/s between the host and the device, by the file's own names."""
    launch_us: float | None = None
    torch: str | None = None


class CounterGrowth(Struct, frozen=True, kw_only=True):
    """One counter of a port, over the samples of it."""

    last: int
    """Count since the port's counters began: it may be of months."""
    growth: int | None = None
    """Growth from the first sample to the last; None with one sample, and where it began anew."""
    per_s: float | None = None
    """None where the samples have no times."""
    most_per_s: float | None = None
    """Largest growth a second between two samples."""
    most_at_s: float | None = None
    """When that was, from the first sample on."""
    num_grew: int = 0
    """Pairs of samples between which it grew."""


class PortSeries(Struct, frozen=True, kw_only=True):
    """One network port."""

    name: str
    """mlx5_0/1, eth0."""
    layer: str | None = None
    """InfiniBand or Ethernet, as ibstat has it."""
    state: str | None = None
    """Active, Down, ..., likewise."""
    rate_bytes_per_s: float | None = None
    """Rate that it came up at; one direction."""
    num_samples: int = 0
    span_s: float | None = None
    counters: Mapping[str, CounterGrowth] = field(default_factory=dict)
    """Growth of counters by our names for them (protocol.port_counters)."""

    def growth(self, name: str) -> int:
        """0 where it was not counted."""
        counter = self.counters.get(name)
        return 0 if counter is None or counter.growth is None else counter.growth

    def per_s(self, name: str) -> float | None:
        counter = self.counters.get(name)
        return None if counter is None else counter.per_s


class LinkRow(Struct, frozen=True, kw_only=True):
    """One size of a test."""

    size_bytes: int
    seconds: float
    """Out of place, where that was measured; else in place."""
    in_place_s: float | None
    bus_bytes_per_s: float
    """Bus bandwidth of `seconds`: what each rank's link moves, whatever the collective (nccl-tests'
    doc/PERFORMANCE.md)."""


class LinkTest(Struct, frozen=True, kw_only=True):
    """What nccl-tests or rccl-tests measured of one collective."""

    path: str
    kind: str
    """all_reduce and the like."""
    device: str | None
    num_ranks: int
    num_nodes: int
    rows: tuple[LinkRow, ...]
    """Rows by size."""
    num_wrong: int
    """Sizes whose results were wrong; they are not among the rows."""


class CopyRate(Struct, frozen=True, kw_only=True):
    """What copies from one place of a machine to another reached, alone."""

    source: str
    """A device's number and name, or the host's."""
    target: str
    bytes_per_s: float
    is_from_host: bool = False
    is_to_host: bool = False

    @property
    def is_between_devices(self) -> bool:
        return not (self.is_from_host or self.is_to_host)


class CopyTest(Struct, frozen=True, kw_only=True):
    """All pairs of a machine, as a test of copies measured them."""

    path: str
    tool: str
    copies: tuple[CopyRate, ...]
    """One direction at a time; no place to itself."""


class SystemRecording(Recording, frozen=True, kw_only=True):
    """What was read of a machine."""

    devices: tuple[DeviceSeries, ...] = ()
    stacks: tuple[HostStacks, ...] = ()
    counters: tuple[HostCounters, ...] = ()
    topologies: tuple[Topology, ...] = ()
    rates: tuple[MeasuredRates, ...] = ()
    hosts: tuple[HostUse, ...] = ()
    link_tests: tuple[LinkTest, ...] = ()
    copy_tests: tuple[CopyTest, ...] = ()
    ports: tuple[PortSeries, ...] = ()
    loads: tuple[HostLoad, ...] = ()


class SystemReport(Struct, frozen=True, kw_only=True):
    recordings: tuple[SystemRecording, ...] = ()

    @property
    def devices(self) -> tuple[DeviceSeries, ...]:
        return tuple(device for recording in self.recordings for device in recording.devices)

    @property
    def stacks(self) -> tuple[HostStacks, ...]:
        return tuple(stacks for recording in self.recordings for stacks in recording.stacks)

    @property
    def counters(self) -> tuple[HostCounters, ...]:
        return tuple(counters for recording in self.recordings for counters in recording.counters)

    @property
    def topologies(self) -> tuple[Topology, ...]:
        return tuple(topology for recording in self.recordings for topology in recording.topologies)

    @property
    def rates(self) -> tuple[MeasuredRates, ...]:
        return tuple(rates for recording in self.recordings for rates in recording.rates)

    @property
    def hosts(self) -> tuple[HostUse, ...]:
        return tuple(host for recording in self.recordings for host in recording.hosts)

    @property
    def link_tests(self) -> tuple[LinkTest, ...]:
        return tuple(test for recording in self.recordings for test in recording.link_tests)

    @property
    def copy_tests(self) -> tuple[CopyTest, ...]:
        return tuple(test for recording in self.recordings for test in recording.copy_tests)

    @property
    def ports(self) -> tuple[PortSeries, ...]:
        return tuple(port for recording in self.recordings for port in recording.ports)

    @property
    def loads(self) -> tuple[HostLoad, ...]:
        return tuple(load for recording in self.recordings for load in recording.loads)

    def joined(self, other: SystemReport) -> SystemReport:
        return SystemReport(recordings=(*self.recordings, *other.recordings))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
