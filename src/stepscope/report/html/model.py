"""What the HTML report shows, as plain values: from the contract alone, and more of it where the whole diagnosis is at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stepscope import __version__
from stepscope.core.contract import SCHEMA
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import PARTS, RankFacts
from stepscope.errors import InputError
from stepscope.pipeline.page import Page
from stepscope.report.html.beside import beside_of, beside_of_contract, explained
from stepscope.report.html.charts import link_chart, rank_chart, roofline_chart
from stepscope.report.html.tables import kernel_rows, op_rows
from stepscope.report.json import contract, median_place
from stepscope.report.kernel_view import COLLECTIVE
from stepscope.report.names import clean
from stepscope.report.step_view import PART_WORDS, UNSPLIT_COMMS
from stepscope.report.terminal import BOUND_WORDS, SOURCE_WORDS
from stepscope.report.timeline_json import timeline_values
from stepscope.report.units import digits_after_point, number, plural

Contract = Mapping[str, Any]
LEAST_MORE = 0.001
"""Of the step, from which a fix is said to add to those above it."""
MAX_STEPS_DOWN = 8
"""Fixes in the picture of the step; the cards have them all."""


def page_of(recorded: Page) -> dict[str, Any]:
    """The page of a diagnosis just made, and of what is drawn beside it."""
    diagnosis = recorded.diagnosis
    rank = diagnosis.facts.median_rank if diagnosis.facts.ranks else None
    page = page_of_contract(contract(diagnosis), floor_ms=_floor_ms(rank))
    page["title"] = _title(diagnosis)
    page["beside"] = beside_of(diagnosis)
    if rank is not None:
        page["kernels"], page["num_kernels_left_out"] = kernel_rows(rank)
        page["ops"] = op_rows(rank)
        page["where"] = rank.steps.where
        page["data"]["roofline"] = roofline_chart(rank, recorded.roofs)
        page["chips"] += _chips(rank)
    if diagnosis.facts.comms is not None:
        page["data"]["links"] = link_chart(diagnosis.facts.comms)
    page["data"]["ranks"] = rank_chart(diagnosis.facts, recorded.peak_memory_bytes)
    page["data"]["curves"] = {name: asdict(curve) for name, curve in recorded.curves.items()}
    cleaned: dict[str, Any] = _cleaned(page)
    # Its names are clean already, and are many.
    timeline = recorded.timeline
    cleaned["data"]["timeline"] = None if timeline is None else timeline_values(timeline)
    return cleaned


def page_of_contract(told: Contract, floor_ms: float | None = None) -> dict[str, Any]:
    """The page of a diagnosis that was kept as JSON: its verdict, findings, ranks and notes."""
    if told.get("schema") != SCHEMA:
        raise InputError(
            f"this is not a diagnosis that stepscope wrote: its schema is {str(told.get('schema'))[:60]!r}, not {SCHEMA}"
        )
    try:
        _check(told)
        page: dict[str, Any] = _cleaned(_page(told, floor_ms))
        return page
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
        raise InputError(
            f"the diagnosis is damaged: {type(problem).__name__}: {problem}. Make it anew: stepscope diagnose"
        ) from None


def _check(told: Contract) -> None:
    """Raises where the page would tell nonsense: numbers that are none, gains of nothing, text that is none."""
    _check_finite(told)
    if not isinstance(told["findings"], list) or not isinstance(told["notes"], list):
        raise TypeError("findings and notes are lists")
    if not all(isinstance(note, str) for note in told["notes"]):
        raise TypeError("a note is text")
    gains = [finding["predicted_speedup"] for finding in told["findings"]] + list(told.get("ladder") or ())
    if not all(gain > 0 for gain in gains):
        raise ValueError("a speedup is above 0")


def _check_finite(value: Any) -> None:
    if isinstance(value, Mapping):
        for one in value.values():
            _check_finite(one)
    elif isinstance(value, list | tuple):
        for one in value:
            _check_finite(one)
    elif isinstance(value, float | int) and not abs(value) < 1e300:
        raise ValueError("a number that is not finite")


def _cleaned(value: Any) -> Any:
    """The same with nothing in its text that cannot be shown: control characters, half characters, changes of direction."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(name): _cleaned(one) for name, one in value.items()}
    return [_cleaned(one) for one in value] if isinstance(value, list | tuple) else value


def _step_chips(step: Mapping[str, Any]) -> list[dict[str, str]]:
    of = SOURCE_WORDS.get(step["source"], step["source"]) if step["ms"] is not None else ""
    chips = [{"word": "a step", "value": _ms(step["ms"]), "of": of}]
    if step["profiled_ms"] is not None:
        chips.append({"word": "while profiled", "value": _ms(step["profiled_ms"]), "of": f"{step['count']} steps recorded"})
    return chips


def _page(told: Contract, floor_ms: float | None) -> dict[str, Any]:
    verdict, step = told["verdict"], told["step"]
    return {
        "version": __version__,
        "title": "Training run",
        "bound": verdict["bound"],
        "headline": verdict["summary"],
        "limits": BOUND_WORDS.get(verdict["bound"], "What limits this run could not be told."),
        "chips": _step_chips(step),
        "is_judged": told["replay"] is not None,
        "where": "device",
        "findings": [_card(place, finding) for place, finding in enumerate(told["findings"], 1)],
        "beside": beside_of_contract(told),
        "picture": _picture(told, floor_ms),
        "ranks": [_rank(rank) for rank in told["ranks"]],
        "notes": list(told["notes"]),
        "unknown_events": told["unknown_events"],
        "kernels": [],
        "num_kernels_left_out": 0,
        "ops": [],
        "data": {
            "picture": _picture(told, floor_ms),
            "ranks": None,
            "roofline": None,
            "links": None,
            "timeline": None,
            "curves": {},
        },
    }


def _picture(told: Contract, floor_ms: float | None) -> dict[str, Any]:
    """The step as recorded by its parts, today's step, and what it becomes after each fix, down to the floor."""
    place = median_place([_total(rank) for rank in told["ranks"]])
    parts = {} if place is None else told["ranks"][place]["partition_ms"] or {}
    unsplit = parts.get("comms_wait", 0) is None
    shown = [(part, parts[part]) for part in PARTS if parts.get(part)]
    bars: list[dict[str, Any]] = []
    if shown:
        bars.append({"name": "recorded, with the profiler", "ms": sum(ms for _, ms in shown), "parts": dict(shown)})
    name, today = _today(told)
    if today is not None:
        bars.append({"name": name, "ms": today, "is_today": True})
        before = 1.0
        for gain, finding in zip(_ladder(told), told["findings"], strict=False):
            name = f"after {finding['code']}" if gain > before * (1 + LEAST_MORE) else f"{finding['code']}: no more after these"
            bars.append({"name": name, "ms": today / gain, "code": finding["code"]})
            before = gain
        if floor_ms is not None and floor_ms < min(bar["ms"] for bar in bars):
            bars.append({"name": "floor: the device's work at its roofs", "ms": floor_ms, "is_floor": True})
    return {
        # Today's step alone is a number, and no picture.
        "bars": bars if len(bars) > 1 or shown else [],
        "parts": [{"part": part, "word": _part_word(part, unsplit=unsplit)} for part, _ in shown],
    }


def _today(told: Contract) -> tuple[str, float | None]:
    """The step that gains are gains of: where only the trace tells it, less what the profiler costs, as the replay has it."""
    known = told["step"]["ms"] or told["step"]["profiled_ms"]
    if told["step"]["source"] != "trace" or not told["findings"]:
        return "today", known
    first = told["findings"][0]
    return "without the profiler's usual cost", first["predicted_step_ms"] * first["predicted_speedup"]


def _total(rank: Mapping[str, Any]) -> float | None:
    parts = rank["partition_ms"]
    return None if parts is None else sum(ms for ms in parts.values() if ms is not None)


def _ladder(told: Contract) -> list[float]:
    """With one finding, or an older file, what is known of it alone."""
    gains = [float(gain) for gain in told.get("ladder") or ()]
    if not gains and told["findings"]:
        gains = [float(told["findings"][0]["predicted_speedup"])]
    return gains[:MAX_STEPS_DOWN]


def _card(place: int, finding: Mapping[str, Any]) -> dict[str, Any]:
    low, likely, high = (finding[f"predicted_{name}"] for name in ("low", "speedup", "high"))
    places = finding.get("places") or []
    return {
        "place": place,
        "code": finding["code"],
        "bound": finding["bound"],
        "summary": finding["summary"],
        "action": finding["action"],
        "evidence": list(finding["evidence"]),
        "gain": f"{likely:.2f}",
        "between": None if high - low < 0.005 else f"{low:.2f} to {high:.2f}",
        "step": _ms(finding["predicted_step_ms"]),
        "changes_numerics": bool(finding.get("changes_numerics")),
        "ranks": ", ".join(map(str, finding["ranks"][:16])) + (" ..." if len(finding["ranks"]) > 16 else ""),
        "num_ranks": len(finding["ranks"]),
        "places": [
            {
                "where": one["line"] or f"module {one['module']}",
                "module": one["module"] if one["line"] else None,
                "share": f"{one['share']:.0%}",
            }
            for one in places
        ],
        "explain": explained(str(finding["code"])),
    }


def _rank(told: Mapping[str, Any]) -> dict[str, Any]:
    parts = told["partition_ms"]
    unsplit = bool(parts) and parts.get("comms_wait") is None
    shown = [] if not parts else [(part, parts[part]) for part in PARTS if parts.get(part)]
    total = sum(ms for _, ms in shown)
    return {
        "rank": told["rank"],
        "step": _ms(total) if shown else None,
        "step_ms": total if shown else None,
        "busy": None if told["gpu_busy_ms"] is None or not total else f"{told['gpu_busy_ms'] / total:.0%}",
        "mfu": None if told["mfu"] is None else f"{told['mfu']:.1%}",
        "most": "; ".join(
            f"{_part_word(part, unsplit=unsplit)} {ms / total:.1%}" for part, ms in sorted(shown, key=lambda one: -one[1])[:3]
        ),
        "parts": [
            {"part": part, "word": _part_word(part, unsplit=unsplit), "ms": _ms(ms), "share": f"{ms / total:.1%}"}
            for part, ms in shown
        ],
    }


def _part_word(part: str, *, unsplit: bool) -> str:
    return UNSPLIT_COMMS if part == "comms_transfer" and unsplit else PART_WORDS[part]


def _chips(rank: RankFacts) -> list[dict[str, str]]:
    busy, step_interval = rank.steps.typical(rank.busy_ns), rank.steps.step_interval_ns
    chips = []
    if busy is not None and step_interval and rank.steps.where == "device":
        chips.append({"word": "device busy", "value": f"{busy / step_interval:.0%}", "of": "of the recorded step"})
    if rank.roofline.mfu is not None:
        chips.append(
            {
                "word": "MFU",
                "value": f"{rank.roofline.mfu:.1%}",
                "of": f"of {rank.roofline.peak_precision} peak, {rank.roofline.device}",
            }
        )
    return chips


def _title(diagnosis: Diagnosis) -> str:
    run, ranks, beside = diagnosis.facts.run, diagnosis.facts.ranks, diagnosis.facts.beside
    if run is not None:
        return " ".join(run.command) or run.path
    if not ranks and beside is not None:
        paths = [path for one in beside.recordings for path in one.paths]
        return paths[0] if len(paths) == 1 else f"{plural(len(paths), 'recording')}, no trace"
    return "Training run" if not ranks else (ranks[0].path if len(ranks) == 1 else f"{len(ranks)} ranks")


def _floor_ms(rank: RankFacts | None) -> float | None:
    """A step of the kernels' least times, those whose work is not known as they are, communication hidden behind them. None where
    the work of less than half is known."""
    if rank is None or not rank.kernels or not rank.steps.windows or (rank.roofline.modelled_share or 0) < 0.5:
        return None
    least = sum(
        min(row.floor_ns, row.total_ns) if row.floor_ns is not None else row.total_ns
        for row in rank.kernels
        if row.category != COLLECTIVE
    )
    return least / len(rank.steps.windows) / 1e6


def _ms(ms: float | None) -> str:
    if ms is None:
        return "not measured"
    return f"{ms:,.{max(digits_after_point(ms), 1)}f} ms" if ms >= 0.05 else f"{number(ms)} ms"
