"""What the HTML report shows, as plain values: from the contract alone, and more of it where the
whole diagnosis is at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, to_builtins
from msgspec.structs import asdict

from stepscope import __version__
from stepscope.core.diagnosis import (
    Diagnosis,
    DiagnosisDocument,
    Finding,
    Rank,
    ReplayCheck,
    StepTime,
    median_rank,
    unanswered_share,
    unjudged_fixes,
)
from stepscope.core.facts import RankFacts
from stepscope.core.numbers import WIDE_RANGE
from stepscope.core.predicted_steps import (
    PredictedSteps,
    has_unprofiled_gains,
    is_of_rare_steps,
    predicted_steps,
    unprofiled_ms,
)
from stepscope.pipeline.page import Page
from stepscope.report.diagnosis.json import document_of
from stepscope.report.diagnosis.view import (
    OF_THE_RUN,
    SOURCE_WORDS,
    damage_warnings,
    limit_words,
    memory_words,
    part_words,
)
from stepscope.report.html.auxiliary import auxiliary_of
from stepscope.report.html.charts import link_chart, rank_chart, roofline_chart
from stepscope.report.html.flame import flame_section
from stepscope.report.html.memory import memory_page, out_of_memory_page
from stepscope.report.html.peak import peak_picture
from stepscope.report.html.tables import kernel_rows, op_rows
from stepscope.report.html.timeline import timeline_values
from stepscope.report.html.views import views_page
from stepscope.report.html.whole_run import whole_run_page
from stepscope.report.words import clean, digits_after_point, number, plural


def page_of(recorded: Page) -> dict[str, Any]:
    """The page of a diagnosis just made, and of what is drawn beside it."""
    diagnosis = recorded.diagnosis
    rank = diagnosis.facts.median_rank if diagnosis.facts.ranks else None
    page = page_of_document(
        document_of(diagnosis), floor_ms=None if rank is None else rank.floor_ms
    )
    page["title"] = _title(diagnosis)
    if rank is not None:
        page["kernels"], page["num_kernels_left_out"] = kernel_rows(rank, recorded.views)
        page["ops"] = op_rows(rank, recorded.views)
        page["where"] = rank.steps.where
        page["views"] = views_page(rank, recorded.views, diagnosis.facts.ranks)
        page["data"]["roofline"] = roofline_chart(rank, recorded.roofs)
        page["chips"] += _chips(rank)
    if diagnosis.facts.comms is not None:
        page["data"]["links"] = link_chart(diagnosis.facts.comms)
    page["data"]["ranks"] = rank_chart(diagnosis, recorded.peak_memory_bytes)
    page["data"]["curves"] = {name: asdict(curve) for name, curve in recorded.curves.items()}
    cleaned: dict[str, Any] = _cleaned(page)
    # Its names are clean already, and are many.
    timeline = recorded.timeline
    cleaned["data"]["timeline"] = None if timeline is None else timeline_values(timeline)
    cleaned["data"]["timelines"] = list(map(timeline_values, recorded.more_timelines))
    cleaned["flame"] = flame_section(recorded.host_flame)
    return cleaned


def page_of_document(contract: DiagnosisDocument, floor_ms: float | None = None) -> dict[str, Any]:
    """The page of a diagnosis that was kept as JSON: its verdict, findings, ranks and notes."""
    page: dict[str, Any] = _cleaned(_page(contract, floor_ms))
    return page


def _cleaned(value: Any) -> Any:
    """The same with nothing in its text that cannot be shown: control characters, half characters,
    changes of direction."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(name): _cleaned(item) for name, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list | tuple) else value


def _step_chips(step: StepTime, replay: ReplayCheck | None) -> list[tuple[str, str, str]]:
    of = SOURCE_WORDS.get(step.source, step.source) if step.ms is not None else ""
    chips = [("a step", _ms(step.ms), of)]
    if step.profiled_ms is not None:
        recorded = f"{plural(step.count, 'step')} recorded"
        chips.append(("while profiled", _ms(step.profiled_ms), recorded))
    usual_ms = unprofiled_ms(step, replay)
    if usual_ms is not None:
        chips.append(("without the profiler", f"about {_ms(usual_ms)}", "gains are of it"))
    return chips


def _page(contract: DiagnosisDocument, floor_ms: float | None) -> dict[str, Any]:
    bound = contract.verdict.bound
    return {
        "version": __version__,
        "title": "Training run",
        "bound": bound,
        "headline": contract.verdict.summary,
        "limits": limit_words(contract.verdict),
        "chips": _step_chips(contract.step, contract.replay),
        "is_judged": contract.replay is not None,
        "unjudged": to_builtins(unjudged_fixes(contract.abstentions)),
        "unanswered": to_builtins(unanswered_share(contract.abstentions, contract.ladder)),
        "where": _where(contract),
        "findings": [_card(finding, contract) for finding in contract.findings],
        "auxiliary": auxiliary_of(contract),
        "whole_run": None if contract.whole_run is UNSET else whole_run_page(contract.whole_run),
        "picture": _picture(contract, floor_ms),
        "peak": peak_picture(contract),
        "memory": memory_page(contract),
        "out_of_memory": out_of_memory_page(contract),
        "ranks": [_rank(rank) for rank in contract.ranks],
        "warnings": [warning.text for warning in damage_warnings(contract.notes)],
        "notes": list(contract.notes),
        "unknown_events": contract.unknown_events,
        "flame": None,
        "kernels": [],
        "num_kernels_left_out": 0,
        "ops": [],
        "views": {"steps": None, "ranks": None, "recorded": None},
        "data": {
            "picture": _picture(contract, floor_ms),
            "ranks": None,
            "roofline": None,
            "links": None,
            "timeline": None,
            "timelines": [],
            "curves": {},
        },
    }


def _where(contract: DiagnosisDocument) -> str:
    is_on_device = any(rank.gpu_busy_ms is not None for rank in contract.ranks)
    return "device" if is_on_device else "host"


def _picture(contract: DiagnosisDocument, floor_ms: float | None) -> dict[str, Any]:
    """The step as recorded by its parts, today's step, and what it becomes after each fix, down to
    the floor."""
    rank = median_rank(contract.ranks)
    shown = {} if rank is None else _shown_parts(rank)
    bars: list[dict[str, Any]] = []
    if shown:
        recorded_ms = sum(shown.values())
        bars.append({"name": "recorded, with the profiler", "ms": recorded_ms, "parts": shown})
    steps = predicted_steps(contract)
    if steps is not None:
        is_replayed = has_unprofiled_gains(contract)
        bars += _step_bars(steps, "without the profiler's usual cost" if is_replayed else "today")
        if floor_ms is not None and floor_ms < min(bar["ms"] for bar in bars):
            bars.append(
                {"name": "floor: the device's work at its roofs", "ms": floor_ms, "is_floor": True}
            )
    return {
        # Today's step alone is a number, and no picture.
        "bars": bars if len(bars) > 1 or shown else [],
        "parts": [{"part": part, "word": _part_word(part, rank)} for part in shown],
    }


def _step_bars(steps: PredictedSteps, name: str) -> Iterator[dict[str, Any]]:
    """Today's step, and what it is after each fix and those before it."""
    if steps.over_all_steps:
        name += ", over all steps"
    yield {"name": name, "ms": steps.today_ms, "is_today": True}
    for after in steps.after:
        code = after.finding.code
        name = f"after {code}" if after.is_more else f"{code}: no more after these"
        if after.finding.samples_times > 1:
            name += ", for today's samples"
        yield {"name": name, "ms": after.ms, "code": code}


def _shown_parts(rank: Rank) -> dict[str, float]:
    """The parts that took any time."""
    return {part: ms for part, ms in rank.parts_ms.items() if ms}


def _card(finding: Finding, contract: DiagnosisDocument) -> dict[str, Any]:
    low, high, times = finding.predicted_low, finding.predicted_high, finding.samples_times
    step = f": {_ms(finding.predicted_step_ms * times)} a step"
    if times != 1:
        step += f" of {times:.0f} times the samples"
    if len(contract.ranks) == 1 and is_of_rare_steps(finding, contract.replay):
        step = f" {OF_THE_RUN}"
    first = next((each for each in contract.findings if each.changes_training), None)
    return {
        "finding": finding,
        "is_first_of_training": finding is first,
        "is_rough": high >= WIDE_RANGE * low,
        "between": None if high - low < 0.005 else f"{low:.2f} to {high:.2f}",
        "step": step,
        "memory": None if finding.memory is None else memory_words(finding.memory),
    }


def _rank(rank: Rank) -> dict[str, Any]:
    shown, busy_ms = _shown_parts(rank), rank.gpu_busy_ms
    total = sum(shown.values())
    most = sorted(shown.items(), key=lambda part: -part[1])[:3]
    return {
        "rank": rank.rank,
        "step": _ms(total) if shown else None,
        "step_ms": total if shown else None,
        "busy": f"{busy_ms / total:.0%}" if total and busy_ms is not None else None,
        "mfu": None if rank.mfu is None else f"{rank.mfu:.1%}",
        "most": "; ".join(f"{_part_word(part, rank)} {ms / total:.1%}" for part, ms in most),
        "parts": [
            {
                "part": part,
                "word": _part_word(part, rank),
                "ms": _ms(ms),
                "share": f"{ms / total:.1%}",
            }
            for part, ms in shown.items()
        ],
    }


def _part_word(part: str, rank: Rank | None) -> str:
    parts = None if rank is None else rank.partition_ms
    return part_words(
        part,
        is_split=parts is None or parts.comms_wait is not None,
        on_host=rank is not None and rank.gpu_busy_ms is None,
    )


def _chips(rank: RankFacts) -> list[tuple[str, str, str]]:
    busy, step_interval = rank.steps.typical(rank.busy_ns), rank.steps.step_interval_ns
    chips = []
    if busy is not None and step_interval and rank.steps.where == "device":
        chips.append(("device busy", f"{busy / step_interval:.0%}", "of the recorded step"))
    if rank.roofline.mfu is not None:
        of = f"of {rank.roofline.peak_precision} peak, {rank.roofline.device}"
        chips.append(("MFU", f"{rank.roofline.mfu:.1%}", of))
    return chips


def _title(diagnosis: Diagnosis) -> str:
    run, ranks, auxiliary = diagnosis.facts.run, diagnosis.facts.ranks, diagnosis.facts.auxiliary
    if run is not None:
        return " ".join(run.command) or run.path
    if not ranks and auxiliary is not None:
        paths = [path for recording in auxiliary.recordings for path in recording.paths]
        return paths[0] if len(paths) == 1 else f"{plural(len(paths), 'recording')}, no trace"
    if not ranks:
        return "Training run"
    return ranks[0].path if len(ranks) == 1 else f"{len(ranks)} ranks"


def _ms(ms: float | None) -> str:
    if ms is None:
        return "not measured"
    return f"{ms:,.{max(digits_after_point(ms), 1)}f} ms" if ms >= 0.05 else f"{number(ms)} ms"
