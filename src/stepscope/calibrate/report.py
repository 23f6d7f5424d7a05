"""A hardware file in few lines: tables and a small plot of plain characters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import log2

from stepscope.core.calibrated import (
    Calibrated,
    CollectivePoint,
    GemmPoint,
    best_flops,
)
from stepscope.report.document.blocks import (
    Block,
    Code,
    Column,
    Headline,
    Section,
    Table,
    as_document,
    notes,
    numbers,
)
from stepscope.report.words import NBSP, scaled

WIDTH = 60
HEIGHT = 10
MARKS = "oxv+#*"


@as_document
def calibration_document(calibrated: Calibrated) -> Iterator[Block]:
    """All of it."""
    yield Headline(command="stepscope calibrate", text=_machine(calibrated))
    made = (
        *_gemms(calibrated),
        _attention(calibrated),
        _copies(calibrated),
        _host(calibrated),
        _links(calibrated),
    )
    yield from (section for section in made if section is not None)
    if calibrated.collectives:
        yield _plot(calibrated)
    yield from notes(calibrated.notes, aside="")


def _section(title: str, titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Section | None:
    """The first column to the left, the others are numbers; nothing without rows."""
    if not rows:
        return None
    return Section(
        title=title,
        blocks=(Table(columns=(Column(fit="shorten"), *numbers(*titles)), rows=tuple(rows)),),
    )


def size_text(size: float) -> str:
    """1536 as `1.5 KB`; powers of 1024, as is usual for sizes of messages."""
    return scaled(size, ((2**30, "GB"), (2**20, "MB"), (2**10, "KB"), (1, "B")))


def time_text(seconds: float) -> str:
    return scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def rate_text(rate: float) -> str:
    return scaled(rate, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "KB/s")))


def flops_text(rate: float) -> str:
    for unit, scale in (("TFLOP/s", 1e11), ("GFLOP/s", 1e8)):
        if rate >= scale:
            return f"{rate / (1e12 if unit[0] == 'T' else 1e9):.3g} {unit}"
    return f"{rate / 1e6:.3g} MFLOP/s"


def _machine(calibrated: Calibrated) -> str:
    machine = calibrated.machine
    parts = [machine.device]
    if machine.memory_bytes:
        parts.append(f"{machine.memory_bytes / 1e9:.0f} GB")
    if machine.num_sms:
        parts.append(f"{machine.num_sms} SMs")
    if machine.torch:
        parts.append(f"torch {machine.torch}")
    if machine.num_ranks:
        parts.append(
            f"{machine.num_ranks} ranks on {machine.num_nodes} "
            f"node{'s' if machine.num_nodes != 1 else ''}"
        )
    return ", ".join(parts)


def _gemms(calibrated: Calibrated) -> tuple[Section | None, Section | None]:
    """The rates, and how well the fit has them."""
    rates, fits = [], []
    kept = best_flops(calibrated.sustained)
    for precision, best in best_flops(calibrated.gemms).items():
        points = [point for point in calibrated.gemms if point.precision == precision]
        thin = min(points, key=lambda point: point.flops / point.time.seconds)
        slowest = f"{flops_text(thin.flops / thin.time.seconds)} at {_shape(thin)}"
        for_long = flops_text(kept[precision]) if precision in kept else "-"
        rates.append((precision, flops_text(best), for_long, slowest))
        fit = calibrated.burst_gemm(precision)
        if fit:
            share = f"{fit.efficiency:.1%}" if fit.peak_source == "datasheet" else "-"
            tile = f"{fit.tile_m}x{fit.tile_n}" if fit.tile_m else "-"
            misfit = (f"{fit.median_misfit:.2f}x", f"{fit.worst_misfit:.2f}x")
            fits.append((precision, share, f"{fit.half_k:.0f}", tile, *misfit))
    return (
        _section("Products", ("bursts", "for long", "slowest shape (m, n, k)"), rates),
        _section("Fit of products", ("of datasheet", "half k", "tile", "misfit", "worst"), fits),
    )


def _shape(point: GemmPoint) -> str:
    return f"{point.m}, {point.n}, {point.k}"


def _attention(calibrated: Calibrated) -> Section | None:
    best: dict[tuple[str, int], tuple[float, int]] = {}
    for point in calibrated.attention:
        key = (point.direction, point.head_dim)
        best[key] = max(best.get(key, (0.0, 0)), (point.flops / point.time.seconds, point.length))
    rows = [
        (f"{direction}, heads of {size}", flops_text(rate), str(length))
        for (direction, size), (rate, length) in best.items()
    ]
    return _section("Causal attention", ("best", "at length"), rows)


def _copies(calibrated: Calibrated) -> Section | None:
    rows = []
    for kind in dict.fromkeys(point.kind for point in calibrated.copies):
        last = max(
            (point for point in calibrated.copies if point.kind == kind),
            key=lambda point: point.size_bytes,
        )
        rows.append(
            (kind.replace("_", " "), rate_text(last.bytes_per_s), size_text(last.size_bytes))
        )
    return _section("Copies", ("rate", "at"), rows)


def _host(calibrated: Calibrated) -> Section | None:
    rows = []
    if calibrated.launch:
        rows.append(("start of a kernel, host", time_text(calibrated.launch.host.seconds)))
        if calibrated.launch.device:
            rows.append(("shortest kernel, device", time_text(calibrated.launch.device.seconds)))
    if calibrated.host:
        rows.append(("rounds of Python", f"{calibrated.host.python_ops_per_s / 1e6:.3g} M/s"))
        rows.append(("small tensor operations", f"{calibrated.host.torch_ops_per_s / 1e6:.3g} M/s"))
    return _section("Host", ("",), rows)


def _links(calibrated: Calibrated) -> Section | None:
    rows = []
    for fit in calibrated.collective_fits:
        for index, region in enumerate(fit.regions):
            beta = rate_text(region.beta_bytes_per_s) if region.beta_bytes_per_s else "-"
            until = f"to {size_text(region.up_to_bytes)}" if region.up_to_bytes else "on"
            size = size_text(fit.worst_bytes).replace(" ", NBSP)
            worst = f"{fit.worst_misfit:.2f}x at {size}"
            mean = "-" if fit.mean_misfit is None else f"{fit.mean_misfit:.2f}x"
            fitness = (f"{fit.r2:.3f}", mean, worst) if index == 0 else ("", "", "")
            name = f"{fit.kind}, {fit.group_size} ranks, {fit.tier}" if index == 0 else ""
            rows.append((name, until, region.name, time_text(region.alpha_s), beta, *fitness))
    if not rows:
        return None
    figures = numbers("sizes", "region", "alpha", "beta (bus)", "R2", "misfit")
    columns = (Column(), *figures, Column(title="worst", right=True, fit="wrap"))
    return Section(title="Collectives", blocks=(Table(columns=columns, rows=tuple(rows)),))


def _plot(calibrated: Calibrated) -> Section:
    """Bus bandwidth over size, one mark a collective, in the group with most ranks; both axes by
    powers of two."""
    most = max(calibrated.collectives, key=lambda point: (point.group_size, point.tier == "world"))
    curves: dict[str, list[CollectivePoint]] = defaultdict(list)
    for point in calibrated.collectives:
        if (point.tier, point.group_size, point.backend) == (
            most.tier,
            most.group_size,
            most.backend,
        ):
            curves[point.kind].append(point)
    points = [point for members in curves.values() for point in members]
    low, high = min(point.size_bytes for point in points), max(point.size_bytes for point in points)
    slow, fast = (
        min(point.bus_bytes_per_s for point in points),
        max(point.bus_bytes_per_s for point in points),
    )
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for mark, members in zip(MARKS * 2, curves.values(), strict=False):
        for point in members:
            column = round(_share(point.size_bytes, low, high) * (WIDTH - 1))
            grid[HEIGHT - 1 - round(_share(point.bus_bytes_per_s, slow, fast) * (HEIGHT - 1))][
                column
            ] = mark
    labels = {0: rate_text(fast), HEIGHT - 1: rate_text(slow)}
    lines = [f"{labels.get(at, ''):>9} |{''.join(row).rstrip()}" for at, row in enumerate(grid)]
    ends = f"{size_text(low)}{size_text(high):>{WIDTH - len(size_text(low))}}"
    legend = "  ".join(f"{mark} {kind}" for mark, kind in zip(MARKS * 2, curves, strict=False))
    drawn = (*lines, f"{'':>9} +{'-' * WIDTH}", f"{'':>9}  {ends}", legend)
    aside = f"{most.group_size} ranks, {most.tier}, {most.backend}"
    return Section(title="Bus bandwidth over size", aside=aside, blocks=(Code(drawn),))


def _share(value: float, low: float, high: float) -> float:
    return log2(value / low) / log2(high / low) if high > low else 0.5
