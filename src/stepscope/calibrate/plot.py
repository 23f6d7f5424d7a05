"""A plot of a hardware file with matplotlib: points as measured, lines as fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.core.calibrated import Calibrated, bus_factor


def draw(calibration: Calibrated, path: Path) -> None:
    """Collectives beside products, what there is of them.

    The file's ending gives the image format.
    """
    from matplotlib.figure import Figure

    panels = [
        panel
        for panel, points in ((_collectives, calibration.collectives), (_gemms, calibration.gemms))
        if points
    ]
    figure: Any = Figure(figsize=(7 * max(len(panels), 1), 5), layout="constrained")
    for index, panel in enumerate(panels):
        panel(figure.add_subplot(1, len(panels), index + 1), calibration)
    figure.savefig(path)


def _collectives(axes: Any, calibration: Calibrated) -> None:
    groups = dict.fromkeys(
        (p.kind, p.backend, p.tier, p.group_size) for p in calibration.collectives
    )
    for index, (kind, backend, tier, size) in enumerate(groups):
        points = sorted(
            (
                p
                for p in calibration.collectives
                if (p.kind, p.backend, p.tier, p.group_size) == (kind, backend, tier, size)
            ),
            key=lambda point: point.size_bytes,
        )
        color = f"C{index % 10}"
        name = f"{kind}, {size} ranks, {tier}".replace("$", "")
        axes.plot(
            [p.size_bytes for p in points],
            [p.bus_bytes_per_s / 1e9 for p in points],
            "o",
            color=color,
            ms=4,
            label=name,
        )
        fit = calibration.collective(kind, size, tier)
        if fit:
            sizes = _between(points[0].size_bytes, points[-1].size_bytes)
            fitted = [n * bus_factor(kind, size) / fit.seconds(n) / 1e9 for n in sizes]
            axes.plot(sizes, fitted, "-", color=color, lw=1)
    _frame(axes, "bytes", "bus bandwidth, GB/s", "Collectives: measured and fitted")


def _gemms(axes: Any, calibration: Calibrated) -> None:
    for index, precision in enumerate(
        dict.fromkeys(point.precision for point in calibration.gemms)
    ):
        points = sorted(
            (p for p in calibration.gemms if p.precision == precision),
            key=lambda point: point.flops,
        )
        color = f"C{index % 10}"
        rates = [p.flops / p.time.seconds / 1e12 for p in points]
        axes.plot(
            [p.flops for p in points],
            rates,
            "o",
            color=color,
            ms=4,
            label=precision.replace("$", ""),
        )
        fit = calibration.burst_gemm(precision)
        squares = sorted(p.m for p in points if p.m == p.n == p.k)
        if fit and len(squares) > 1:
            sides = [round(side) for side in _between(squares[0], squares[-1])]
            axes.plot(
                [2.0 * side**3 for side in sides],
                [2.0 * side**3 / fit.seconds(side, side, side) / 1e12 for side in sides],
                "-",
                color=color,
                lw=1,
            )
    _frame(axes, "FLOPs", "TFLOP/s", "Products: measured, and fitted for squares")


def _frame(axes: Any, x: str, y: str, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y, title=title)
    axes.legend(fontsize=7)
    axes.grid(visible=True, alpha=0.3)


def _between(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (index / 199) for index in range(200)]
