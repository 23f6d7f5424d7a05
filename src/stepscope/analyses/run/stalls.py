"""What some of a run's steps held beside what all of them do: saves, evaluations, collections of
garbage, starts of the loader."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from stepscope.analyses.run.run_spans import evaluated_ns
from stepscope.analyses.run.step_extras import Extra, epochs_of, within_epochs
from stepscope.analyses.steps.unprofiled import Row, middle_rows, usual_rows
from stepscope.core.run import Saves, Stalls, UnprofiledSteps
from stepscope.protocol.untrusted import whole
from stepscope.readers.run_folder.folder import RankRecord

TIMED = 0
NOTED_NS = 1_000_000
"""A collection of garbage this long is counted."""
MIN_TURNS = 2
"""Turns from one of a kind to the next, all as many steps long, from which they come in turn."""
MAX_LINES = 3


def stalls_of(record: RankRecord, steps: UnprofiledSteps | None) -> dict[str, Stalls]:
    """Stalls by kind: what they add to a run whose usual step is `steps`, and that is not in it."""
    rows, events = record.rows, record.events
    timed = [row for row in rows if row["state"] == TIMED and row["dur_ns"]]
    within = {row["step"] for row in within_epochs(record)}
    usual = usual_rows([row for row in timed if row["step"] in within])
    if steps is None or not usual:
        return {}
    # The run as a whole may be faster or slower than the steps before the recording.
    step_ns = _mean(middle_rows(usual, "dur_ns"), "dur_ns")
    kept = {row["step"] for row in usual}
    others = [row for row in timed if row["step"] not in kept]
    epochs, wait_ns = epochs_of(record), _mean(usual, "wait_ns")
    begun = [
        _beginning(row, epochs[step], step_ns, wait_ns)
        for row in others
        if (step := _value(row, "step")) in epochs and not row["num_evals"] and not row["save_ns"]
    ]
    saves = [_saving(row, step_ns) for row in others if row["save_ns"]]
    evaluated = evaluated_ns(record)
    evaluations = [
        float(evaluated[step]) for row in others if (step := _value(row, "step")) in evaluated
    ]
    collections = [float(ns) for row in usual if (ns := _value(row, "gc_ns")) >= NOTED_NS]
    # Of all rows: one that was recorded holds one, too.
    held = {
        "save": [_value(row, "step") for row in rows if row["save_ns"]],
        "evaluation": [_value(row, "step") for row in rows if row["num_evals"]],
        "epoch": list(epochs),
    }
    every = {kind: _period(each) for kind, each in held.items()}
    by_kind = {
        kind: (lengths, sum(lengths) / (len(lengths) * (every[kind] or 0.0) or len(timed)))
        for kind, lengths in (("save", saves), ("evaluation", evaluations), ("epoch", begun))
    } | {"gc": (collections, _collected_ns(usual))}
    scale = steps.step_ns / step_ns
    return {
        kind: Stalls(
            num=len(lengths),
            every=every.get(kind) or len(timed) / len(lengths),
            once_ns=round(scale * statistics.fmean(lengths)),
            step_ns=round(scale * added_ns),
            lines=_lines(events, kind),
        )
        for kind, (lengths, added_ns) in by_kind.items()
        if lengths and added_ns > 0
    }


def _period(steps: Sequence[float]) -> float | None:
    """Steps from one to the next, where they come in turn: a few hundred steps may begin and end
    anywhere between two."""
    apart = [after - before for before, after in pairwise(sorted(set(steps)))]
    is_regular = len(apart) >= MIN_TURNS and max(apart) - min(apart) <= 1
    return statistics.fmean(apart) if is_regular else None


def saves_of(events: Sequence[Mapping[str, Any]]) -> Saves | None:
    """Saves of the run; those of one step are one: a model's, its optimizer's."""
    saves = [each for each in events if each.get("kind") == "save"]
    steps = {whole(each.get("step")) for each in saves}
    totals = Counter[str]()
    for each in saves:
        for name in ("dur_ns", "cpu_ns", "bytes"):
            value = whole(each.get(name), low=0)
            if value is None:
                return None
            totals[name] += value
    if not saves:
        return None
    return Saves(
        num=len(steps),
        once_ns=totals["dur_ns"] // len(steps),
        cpu_ns=totals["cpu_ns"] // len(steps),
        size_bytes=totals["bytes"] // len(steps),
    )


def _saving(row: Row, step_ns: float) -> float:
    """Time by which a step's saves make it longer than the usual one: a save that waits for the
    device waits for what the step does anyway."""
    return max(0.0, min(_value(row, "save_ns"), _value(row, "dur_ns") - step_ns))


def _beginning(row: Row, epoch: Extra, step_ns: float, wait_ns: float) -> float:
    """Time by which starting the loader and waiting for its first batch make a step that begins an
    epoch longer than the usual one."""
    longer = epoch.iter_ns + max(epoch.first_wait_ns - wait_ns, 0.0)
    return max(0.0, min(longer, _value(row, "dur_ns") - step_ns))


def _collected_ns(usual: Sequence[Row]) -> float:
    """Time a step in collections that the mean step does not have, since it leaves out the
    longest."""
    middle = middle_rows(usual, "dur_ns")
    collected = _mean(usual, "gc_ns") - _mean(middle, "gc_ns")
    longer = _mean(usual, "dur_ns") - _mean(middle, "dur_ns")
    return min(collected, longer)


def _mean(rows: Sequence[Row], name: str) -> float:
    return statistics.fmean(_value(row, name) for row in rows)


def _lines(events: Sequence[Mapping[str, Any]], kind: str) -> dict[str, float]:
    """Lines that asked for it, and their shares of its time; of an evaluation, whose length is not
    in its event, of their number."""
    spent: Counter[str] = Counter()
    for event in events:
        line, dur_ns = event.get("line"), event.get("dur_ns")
        if event.get("kind") == kind:
            weight = 1 if kind == "evaluation" or not isinstance(dur_ns, int) else dur_ns
            spent[line if isinstance(line, str) else ""] += weight
    total = max(spent.total(), 1)
    return {line: ns / total for line, ns in spent.most_common(MAX_LINES) if line}


def _value(row: Row, name: str) -> int:
    return row[name] or 0
