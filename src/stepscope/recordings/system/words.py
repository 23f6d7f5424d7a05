"""Recordings of the machine in words: devices' samples, links, measured rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from stepscope.api import DeviceSeries, Spread, SystemRecording, Table, table
from stepscope.core.recordings.system import IDLE, MeasuredRates, Topology
from stepscope.recordings.system.nvidia_topo import MEANS, kind_of, nearest

COPIES = {
    "h2d_pinned_GBps": "pinned host memory to the device",
    "h2d_pageable_GBps": "pageable host memory to the device",
    "d2h_pinned_GBps": "device to pinned host memory",
    "d2h_pageable_GBps": "device to pageable host memory",
}
LINKS = (
    "nvlink_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
)
USED = "the roofs of `stepscope report` (--roofs)"
JUDGED = "what `stepscope diagnose` judges by (--hardware), and the roofs of `stepscope report`"


def lines(recording: SystemRecording) -> Iterator[tuple[str, str]]:
    if recording.devices:
        yield from _sample_lines(recording.devices)
    for topology in recording.topologies:
        yield from _topology_lines(topology)
    for rates in recording.rates:
        yield from _rate_lines(rates)
    for test in recording.copy_tests:
        yield "copies", f"{len(test.copies)} pairs, one way at a time"


def tables(recording: SystemRecording) -> Iterator[Table]:
    if recording.devices:
        yield _device_table(recording.devices)
    yield from _activity(recording.devices)
    yield from map(_topology_table, recording.topologies)
    for test in recording.copy_tests:
        rows = ((copy.source, copy.target, f"{copy.bytes_per_s / 1e9:.1f}") for copy in test.copies)
        yield table("Copies", "from|to|>GB/s", rows)
    for rates in recording.rates:
        if not rates.is_hardware:
            yield _product_table(rates)


def _sample_lines(devices: Sequence[DeviceSeries]) -> Iterator[tuple[str, str]]:
    """How many samples of how many devices."""
    num = sum(device.num_samples for device in devices)
    spans = [device.span_s for device in devices if device.span_s is not None]
    span = f" in {max(spans):,.0f} s" if spans else ""
    names = Counter(device.name for device in devices if device.name is not None)
    words = (
        ", ".join(f"{count} x {name}" for name, count in names.most_common(3))
        or f"{len(devices):,}"
    )
    yield "samples", f"{num:,}{span}"
    yield "devices", words


def _device_table(devices: Iterable[DeviceSeries]) -> Table:
    """What a person wants to see of them first; a dash where it was not recorded."""
    rows = tuple(
        (
            device.label,
            f"{device.num_samples}"
            if device.num_working is None
            else f"{device.num_working} of {device.num_samples}",
            _cell(device.busy_run_share or device.busy_share, 100, "%"),
            _clock(device),
            _cell(device.power_working_w or device.power_w, 1, "W", device.power_limit_w),
            _cell(device.temperature_c, 1, "C", top=True),
            _cell(device.memory_used_bytes, 1e-9, "GB", device.memory_total_bytes, top=True),
            _reasons(device),
        )
        for device in devices
    )
    return table(
        (
            "Devices: medians; busy from the first sample at work to the last, clock and power "
            "at work; temperature and memory at the ninetieth percentile"
        ),
        "device|>at work|>busy|>clock|>power|>temperature|>memory|held down by",
        rows,
    )


def _cell(
    spread: Spread | None, scale: float, unit: str, limit: float | None = None, *, top: bool = False
) -> str:
    if spread is None:
        return "-"
    value = (spread.high if top else spread.median) * scale
    return f"{value:.3g} {unit}" if limit is None else f"{value:.3g} of {limit * scale:.3g} {unit}"


def _clock(device: DeviceSeries) -> str:
    clock = device.sm_clock_working_mhz
    if clock is None:
        return "-"
    most = "" if device.max_sm_clock_mhz is None else f" of {device.max_sm_clock_mhz:.0f}"
    return f"{clock.median:.0f}{most} MHz"


def _reasons(device: DeviceSeries) -> str:
    if device.throttled is None:
        return "-"
    named = [
        f"{share:.0%} {reason}" for reason, share in device.throttled.items() if reason != IDLE
    ]
    return ", ".join(named[:2]) or "nothing"


def _activity(devices: Sequence[DeviceSeries]) -> tuple[Table, ...]:
    """The profiling fields, where any was recorded."""
    names = (
        "engine_active_share",
        "sm_active_share",
        "sm_occupancy_share",
        "tensor_active_share",
        "dram_active_share",
    )
    rows = [
        (device.label, *(_percent(getattr(device, name)) for name in names)) for device in devices
    ]
    links = [
        (device.label, *(_rate(getattr(device, name)) for name in LINKS)) for device in devices
    ]
    link_table = table("Moved over links (medians)", "device|>NVLink in|>out|>PCIe in|>out", links)
    moved = () if all(cell == "-" for row in links for cell in row[1:]) else (link_table,)
    if all(cell == "-" for row in rows for cell in row[1:]):
        return moved
    return (
        table(
            "Active, share of the time (medians)",
            "device|>engine|>SMs|>warps|>tensor pipe|>DRAM",
            rows,
        ),
        *moved,
    )


def _rate(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median / 1e9:.3g} GB/s"


def _percent(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.0%}"


def _topology_lines(topology: Topology) -> Iterator[tuple[str, str]]:
    yield "devices", f"{len(topology.devices)}, by {topology.tool}"
    pairs = topology.pairs
    if pairs:
        counts = Counter(pairs.values())
        kinds = (
            f"{count} {link} ({MEANS.get(kind_of(link), 'not known')})"
            for link, count in counts.most_common(8)
        )
        yield "pairs", f"{len(pairs)}: {', '.join(kinds)}"
    else:
        yield "pairs", "none: one device has nobody to talk to on this machine"
    nodes: dict[str, list[str]] = {}
    for device in topology.devices:
        if device.numa is not None:
            nodes.setdefault(device.numa, []).append(device.name)
    if nodes:
        yield (
            "NUMA nodes",
            "; ".join(
                f"{node}: {', '.join(names[:16])}" for node, names in list(nodes.items())[:16]
            ),
        )
    far = [
        device.name
        for device in topology.devices
        if device.networks and nearest(device.networks)[1] not in ("PIX", "PXB")
    ]
    if far:
        words = (
            "no network card under the same PCIe switch: their bytes to other machines pass the "
            "host"
        )
        yield "network", f"{', '.join(far[:16])}: {words}"


def _topology_table(topology: Topology) -> Table:
    rows = []
    for device in topology.devices:
        kinds = Counter(device.peers.values())
        card = " ".join(nearest(device.networks)) if device.networks else ""
        peers = ", ".join(f"{count} x {link}" for link, count in kinds.most_common(6))
        rows.append((device.name, peers, card, device.cores or "", device.numa or ""))
    return table(
        "devices, the links to the others, and what is near",
        "device|links|nearest network|cores|NUMA node",
        rows,
    )


def _rate_lines(rates: MeasuredRates) -> Iterator[tuple[str, str]]:
    roofs = rates.roofs
    peaks = ", ".join(
        f"{precision} {rate / 1e12:.4g}" for precision, rate in roofs.peak_flops.items()
    )
    yield "device", roofs.device
    yield "products", f"{peaks} TFLOP/s, the best size of each"
    yield "own memory", f"{roofs.bandwidth_bytes_per_s / 1e12:.4g} TB/s, read and written together"
    if rates.made:
        yield "measured", rates.made
    if rates.copies:
        yield (
            "copies",
            f"{', '.join(f'{COPIES[name]} {rate:.4g}' for name, rate in rates.copies)} GB/s",
        )
    if rates.launch_us is not None:
        yield "launch", f"{rates.launch_us:.4g} us of the host"
    if rates.torch is not None:
        yield "torch", rates.torch
    yield "gives", JUDGED if rates.is_hardware else USED


def _product_table(rates: MeasuredRates) -> Table:
    """Precision by size."""
    rate_of = {(precision, size): rate for precision, size, rate in rates.products}
    sizes = sorted({size for _, size in rate_of})[:8]
    rows = tuple(
        (
            precision,
            *(
                f"{rate_of[precision, size]:.4g}" if (precision, size) in rate_of else ""
                for size in sizes
            ),
        )
        for precision in list(dict.fromkeys(precision for precision, _ in rate_of))[:16]
    )
    columns = ("precision", *(f"{size}" for size in sizes))
    title = "products of square matrices, TFLOP/s by size"
    return Table(title=title, columns=columns, rows=rows, right=tuple(range(1, len(columns))))
