"""A triage: the answer, what to do first, a line for each device and process, and what was not
measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from stepscope.core.recordings.system import IDLE, PROCESS, HostUse, ProcessUse
from stepscope.live.shapes.triage import Triage, TriagedDevice
from stepscope.report.document.blocks import (
    Action,
    Block,
    Column,
    Headline,
    Items,
    Prose,
    Section,
    Table,
    as_document,
    more,
    numbers,
)

MAX_ROWS = 24
UNITS = "queued: threads ready and without a core; read (from disks), written: MB/s"


@as_document
def triage_document(triage: Triage) -> Iterator[Block]:
    yield Headline(command="stepscope triage", text=triage.summary)
    yield Section(title="First", blocks=(Action(triage.first),))
    if triage.also:
        yield Section(title="Also", blocks=(Items(triage.also),))
    if triage.devices:
        yield Section(title="Devices", blocks=(_device_table(triage.devices),))
    yield from map(_host_section, triage.hosts)
    if triage.functions:
        names = {process.pid: process for host in triage.hosts for process in host.processes}
        rows = tuple(
            (_whose(spot.pid, names), f"{spot.share:.0%}", spot.name) for spot in triage.functions
        )
        columns = (
            Column(title="process", fit="shorten"),
            *numbers("samples"),
            Column(title="in", fit="wrap", most=100),
        )
        yield Section(title="Functions", blocks=(Table(columns=columns, rows=rows),))
    if triage.not_measured:
        yield Section(title="Not measured", blocks=(Items(triage.not_measured),))


def _device_table(devices: Sequence[TriagedDevice]) -> Table:
    columns = (
        Column(title="device", fit="shorten"),
        *numbers("busy", "median", "power", "clock", "heat"),
        Column(title="held down by", fit="wrap"),
    )
    return Table(columns=columns, rows=tuple(map(_device_row, devices[:MAX_ROWS])))


def _device_row(device: TriagedDevice) -> tuple[str, ...]:
    busy, median = device.busy_share, device.busy_median_share
    held = [
        f"{reason} {share:.0%}"
        for reason, share in (device.throttled or {}).items()
        if reason != IDLE
    ]
    return (
        device.device,
        "-" if busy is None else f"{busy:.0%}",
        "-" if median is None else f"{median:.0%}",
        _of(device.power_w, device.power_limit_w, "W"),
        _of(device.sm_clock_mhz, device.max_sm_clock_mhz, "MHz"),
        _of(device.temperature_c, None, "C"),
        "-" if device.throttled is None else ", ".join(held[:2]) or "nothing",
    )


def _of(value: float | None, limit: float | None, unit: str) -> str:
    if value is None:
        return "-"
    most = "" if limit is None else f" of {limit:.0f}"
    return f"{value:.0f}{most} {unit}"


def _host_section(host: HostUse) -> Section:
    columns = (
        Column(title="process", fit="shorten"),
        *numbers("pid", "threads", "cores", "queued", "io wait", "read", "disk", "written"),
    )
    # Each rank before what it started.
    ordered = sorted(
        host.processes,
        key=lambda process: (process.parent or process.pid, process.parent is not None),
    )
    rows = tuple(map(_process_row, ordered[:MAX_ROWS]))
    title, aside = "Processes", ", ".join(_host_words(host))
    table = Table(columns=columns, rows=rows)
    return Section(
        title=title,
        aside=aside,
        blocks=(table, *more(len(ordered) - len(rows), "process"), Prose(UNITS, "quiet")),
    )


def _host_words(host: HostUse) -> Iterator[str]:
    if host.seconds is not None:
        yield f"{host.seconds:.0f} s"
    if host.num_cores is not None:
        yield f"{host.num_cores:g} cores for the job"
    if host.other_cores is not None:
        yield f"{host.other_cores:.1f} used by others"
    if host.held_back_share:
        yield f"held back {host.held_back_share:.0%} by the quota"


def _name(process: ProcessUse) -> str:
    if process.role == PROCESS:
        return process.name
    is_numbered = process.rank is not None and process.parent is None
    return f"rank {process.rank}" if is_numbered else process.role


def _process_row(process: ProcessUse) -> tuple[str, ...]:
    return (
        _name(process),
        str(process.pid),
        _cell(process.num_threads, str),
        _cell(process.cores, "{:.2f}".format),
        _cell(process.queued_cores, "{:.2f}".format),
        _cell(process.io_wait_share, "{:.0%}".format),
        _cell(process.read_bytes_s, _rate),
        _cell(process.disk_read_bytes_s, _rate),
        _cell(process.disk_write_bytes_s, _rate),
    )


def _cell(value: float | None, words: Callable[[float], str]) -> str:
    return "-" if value is None else words(value)


def _rate(value: float) -> str:
    return f"{value / 1e6:.1f}"


def _whose(pid: int | None, names: Mapping[int, ProcessUse]) -> str:
    if pid is None:
        return "-"
    return f"{_name(names[pid])}, {pid}" if pid in names else str(pid)
