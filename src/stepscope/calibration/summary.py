"""A hardware file in few lines: tables and a small plot of plain characters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import log2

from stepscope.core.calibrated import Calibrated, CollectiveFit, CollectivePoint, GemmPoint, best_flops

WIDTH = 60
HEIGHT = 10
MARKS = "oxv+#*"


def summary(calibration: Calibrated) -> str:
    """All of it, as plain text."""
    sections = (_machine, _gemms, _attention, _copies, _host, _links, plot)
    parts = [section(calibration) for section in sections]
    parts.append("".join(f"note: {note}\n" for note in calibration.notes))
    return "\n".join(part for part in parts if part)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    texts = []
    for line in lines:
        padded = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        padded[0] = line[0].ljust(widths[0])
        texts.append("  " + "  ".join(padded).rstrip())
    return "\n".join(texts) + "\n"


def size_text(size: float) -> str:
    """1536 as `1.5 KB`; powers of 1024, as is usual for sizes of messages."""
    for unit in ("B", "KB", "MB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GB"


def time_text(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def rate_text(rate: float) -> str:
    for unit, scale in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6)):
        if rate >= scale:
            return f"{rate / scale:.3g} {unit}"
    return f"{rate / 1e3:.3g} KB/s"


def flops_text(rate: float) -> str:
    for unit, scale in (("TFLOP/s", 1e11), ("GFLOP/s", 1e8)):
        if rate >= scale:
            return f"{rate / (1e12 if unit[0] == 'T' else 1e9):.3g} {unit}"
    return f"{rate / 1e6:.3g} MFLOP/s"


def _machine(calibration: Calibrated) -> str:
    machine = calibration.machine
    parts = [printable(machine.device)]
    if machine.memory_bytes:
        parts.append(f"{machine.memory_bytes / 1e9:.0f} GB")
    if machine.num_sms:
        parts.append(f"{machine.num_sms} SMs")
    if machine.torch:
        parts.append(f"torch {printable(machine.torch)}")
    if machine.num_ranks:
        parts.append(f"{machine.num_ranks} ranks on {machine.num_nodes} node{'s' if machine.num_nodes != 1 else ''}")
    return ", ".join(parts) + "\n"


def _gemms(calibration: Calibrated) -> str:
    rows = []
    sustained = best_flops(calibration.sustained)
    for precision, best in best_flops(calibration.gemms).items():
        points = [point for point in calibration.gemms if point.precision == precision]
        thin = min(points, key=lambda point: point.flops / point.time.seconds)
        fit = calibration.burst_gemm(precision)
        fitted = ["-"] * 5
        if fit:
            share = f"{fit.efficiency:.1%}" if fit.peak_source == "datasheet" else "-"
            tile = f"{fit.tile_m}x{fit.tile_n}" if fit.tile_m else "-"
            fitted = [share, f"{fit.half_k:.0f}", tile, f"{fit.median_misfit:.2f}x", f"{fit.worst_misfit:.2f}x"]
        for_long = flops_text(sustained[precision]) if precision in sustained else "-"
        rows.append(
            [precision, flops_text(best), for_long, f"{flops_text(thin.flops / thin.time.seconds)} at {_shape(thin)}", *fitted]
        )
    head = ("products", "bursts", "for long", "slowest shape (m, n, k)", "of datasheet", "half k", "tile", "misfit", "worst")
    return table(head, rows) if rows else ""


def _shape(point: GemmPoint) -> str:
    return f"{point.m}, {point.n}, {point.k}"


def _attention(calibration: Calibrated) -> str:
    best: dict[tuple[str, int], tuple[float, int]] = {}
    for point in calibration.attention:
        key = (point.direction, point.head_dim)
        best[key] = max(best.get(key, (0.0, 0)), (point.flops / point.time.seconds, point.length))
    rows = [
        [f"{direction}, heads of {size}", flops_text(rate), str(length)] for (direction, size), (rate, length) in best.items()
    ]
    return table(("causal attention", "best", "at length"), rows) if rows else ""


def _copies(calibration: Calibrated) -> str:
    rows = []
    for kind in dict.fromkeys(point.kind for point in calibration.copies):
        last = max((point for point in calibration.copies if point.kind == kind), key=lambda point: point.size_bytes)
        rows.append([printable(kind).replace("_", " "), rate_text(last.bytes_per_s), size_text(last.size_bytes)])
    return table(("copies", "rate", "at"), rows) if rows else ""


def _host(calibration: Calibrated) -> str:
    rows = []
    if calibration.launch:
        rows.append(["start of a kernel, host", time_text(calibration.launch.host.seconds)])
        if calibration.launch.device:
            rows.append(["shortest kernel, device", time_text(calibration.launch.device.seconds)])
    if calibration.host:
        rows.append(["rounds of Python", f"{calibration.host.python_ops_per_s / 1e6:.3g} M/s"])
        rows.append(["small tensor operations", f"{calibration.host.torch_ops_per_s / 1e6:.3g} M/s"])
    return table(("host", ""), rows) if rows else ""


def _links(calibration: Calibrated) -> str:
    rows = []
    for fit in calibration.collective_fits:
        for index, region in enumerate(fit.regions):
            beta = rate_text(region.beta_bytes_per_s) if region.beta_bytes_per_s else "-"
            until = f"to {size_text(region.up_to_bytes)}" if region.up_to_bytes else "on"
            group = r2 = worst = ""
            if index == 0:
                group, r2 = _group(fit), f"{fit.r2:.3f}"
                worst = f"{fit.worst_misfit:.2f}x at {size_text(fit.worst_bytes)}"
            rows.append([group, until, region.name, time_text(region.alpha_s), beta, r2, worst])
    head = ("collective", "sizes", "region", "alpha", "beta (bus)", "R2", "worst")
    return table(head, rows) if rows else ""


def _group(fit: CollectiveFit) -> str:
    return f"{printable(fit.kind)}, {fit.group_size} ranks, {printable(fit.tier)}"


def plot(calibration: Calibrated) -> str:
    """Bus bandwidth over size, one mark a collective, in the group with most ranks.

    Both axes by powers of two.
    """
    if not calibration.collectives:
        return ""
    most = max(calibration.collectives, key=lambda point: (point.group_size, point.tier == "world"))
    curves: dict[str, list[CollectivePoint]] = defaultdict(list)
    for point in calibration.collectives:
        if (point.tier, point.group_size, point.backend) == (most.tier, most.group_size, most.backend):
            curves[point.kind].append(point)
    points = [point for members in curves.values() for point in members]
    low, high = min(point.size_bytes for point in points), max(point.size_bytes for point in points)
    slow, fast = min(point.bus_bytes_per_s for point in points), max(point.bus_bytes_per_s for point in points)
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for mark, members in zip(MARKS * 2, curves.values(), strict=False):
        for point in members:
            column = round(_share(point.size_bytes, low, high) * (WIDTH - 1))
            grid[HEIGHT - 1 - round(_share(point.bus_bytes_per_s, slow, fast) * (HEIGHT - 1))][column] = mark
    labels = {0: rate_text(fast), HEIGHT - 1: rate_text(slow)}
    lines = [f"  {labels.get(row_index, ''):>9} |{''.join(row).rstrip()}" for row_index, row in enumerate(grid)]
    ends = f"{size_text(low)}{size_text(high):>{WIDTH - len(size_text(low))}}"
    legend = "  ".join(f"{mark} {printable(kind)}" for mark, kind in zip(MARKS * 2, curves, strict=False))
    head = f"bus bandwidth over size, {most.group_size} ranks ({printable(most.tier)}, {printable(most.backend)})"
    return "\n".join([head, *lines, f"  {'':>9} +{'-' * WIDTH}", f"  {'':>9}  {ends}", f"  {legend}"]) + "\n"


def _share(value: float, low: float, high: float) -> float:
    return log2(value / low) / log2(high / low) if high > low else 0.5


def printable(text: str) -> str:
    """A file's own text with nothing in it that moves a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:100])
