"""Data of the HTML report's charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.analyses.collectives.link_fit import bus_factor, ring_steps
from stepscope.core.comms import CommsFacts, LinkFit
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import RankFacts
from stepscope.core.hardware import DeviceRates
from stepscope.hardware.lookup import load_specs
from stepscope.report.words import kernel_name

MAX_POINTS = 200
LINE_POINTS = 24


def roofline_chart(rank: RankFacts, measured: DeviceRates | None = None) -> dict[str, Any] | None:
    """Each known kernel's FLOP/s against its FLOPs a byte, under the device's roofs, measured ones
    where they are given; None when no roof or no work is known."""
    roofs = measured or _datasheet(rank.roofline.device)
    if roofs is None:
        return None
    modelled = [row for row in rank.kernels if row.flops and row.bytes and row.total_ns]
    points = [
        {
            "name": kernel_name(row.name)[:120],
            "op": row.op,
            "x": row.flops / row.bytes,
            "y": row.flops / (row.total_ns * 1e-9),
            "ms": row.total_ns / max(len(rank.steps.windows), 1) / 1e6,
        }
        for row in sorted(modelled, key=lambda row: -row.total_ns)[:MAX_POINTS]
        if row.flops is not None and row.bytes is not None
    ]
    if not points:
        return None
    used = {row.precision for row in modelled if row.precision} | (
        {rank.roofline.peak_precision} - {None}
    )
    peaks = {name: peak for name, peak in roofs.peak_flops.items() if name in used}
    return {
        "device": roofs.device,
        "bandwidth": roofs.bandwidth_bytes_per_s,
        "peaks": peaks or dict(roofs.peak_flops),
        "source": roofs.source,
        "points": points,
    }


def _datasheet(device: str | None) -> DeviceRates | None:
    spec = next((spec for spec in load_specs() if device in (spec.name, spec.key)), None)
    return None if spec is None else spec.rates("datasheet")


def rank_chart(diagnosis: Diagnosis, peaks: Mapping[int, float]) -> dict[str, Any] | None:
    """What differs between ranks, a row each; None with fewer than two. Every value is a number or
    null."""
    facts = diagnosis.facts
    if len(facts.ranks) < 2:
        return None
    comms = {} if facts.comms is None else {rank.rank: rank for rank in facts.comms.ranks}
    ordered = sorted(facts.ranks, key=lambda rank: rank.rank)
    numbers = [rank.rank for rank in ordered]
    steps = [
        rank.steps.step_interval_ns / 1e6
        if rank.steps.step_interval_ns is not None and rank.steps.is_step_interval
        else None
        for rank in ordered
    ]
    busy = [ns / 1e6 if (ns := _busy(rank)) is not None else None for rank in ordered]
    rows: list[dict[str, Any]] = [
        {"word": "step", "values": steps},
        {"word": "device busy", "values": busy},
    ]
    for word, field in (("late", "late_ns"), ("waits", "wait_ns"), ("moves bytes", "transfer_ns")):
        times = [getattr(comms.get(rank), field, None) for rank in numbers]
        rows.append({"word": word, "values": [None if ns is None else ns / 1e6 for ns in times]})
    for row in rows:
        row["unit"] = "ms"
    rows.append(
        {
            "word": "peak memory",
            "unit": "GB",
            "values": [peaks[rank] / 1e9 if rank in peaks else None for rank in numbers],
        }
    )
    return {
        "ranks": numbers,
        "rows": [row for row in rows if any(value is not None for value in row["values"])],
        "outliers": sorted(
            {rank.rank for rank in comms.values() if rank.is_straggler}
            | {rank for rank, _ in diagnosis.holding_up}
        ),
    }


def _busy(rank: RankFacts) -> float | None:
    return rank.steps.typical(rank.busy_ns) if rank.steps.where == "device" else None


def link_chart(comms: CommsFacts) -> dict[str, Any] | None:
    """Bus bandwidth against message size, with the fitted lines; None when no size and bandwidth is
    known."""
    points = [
        {
            "op": row.op,
            "group": row.group,
            "bytes": row.bytes,
            "busbw": row.busbw_bytes_per_s,
            "count": row.count_per_step,
            "has_waits": row.includes_waits,
        }
        for row in comms.rows[:MAX_POINTS]
        if row.bytes and row.busbw_bytes_per_s
    ]
    if not points:
        return None
    fits = [
        {
            "op": fit.op,
            "group": fit.group,
            "ranks": fit.num_ranks,
            "alpha_ns": fit.alpha_ns,
            "beta": fit.beta_bytes_per_s,
            "r2": fit.goodness,
            "line": _line(fit),
        }
        for fit in comms.fits
    ]
    link = None
    if comms.link is not None:
        link = {
            "name": comms.link.name,
            "bytes_per_s": comms.link.bytes_per_s,
            "source": comms.link.source,
        }
    return {"points": points, "fits": fits, "link": link}


def _line(fit: LinkFit) -> list[tuple[float, float]]:
    """Message sizes and the bus bandwidth that the fit gives each."""
    steps, factor = ring_steps(fit.op, fit.num_ranks), bus_factor(fit.op, fit.num_ranks)
    grow = max(fit.max_bytes / fit.min_bytes, 1.0) if fit.min_bytes else 1.0
    sizes = [fit.min_bytes * grow ** (index / (LINE_POINTS - 1)) for index in range(LINE_POINTS)]
    times_s = [steps * fit.alpha_ns * 1e-9 + size * factor / fit.beta_bytes_per_s for size in sizes]
    return [
        (size, size * factor / time_s)
        for size, time_s in zip(sizes, times_s, strict=True)
        if time_s > 0
    ]
