"""Where a run's time went from its start to its end, from a rank's folder.

The parts are those of its spans, and so sum to the run by construction.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stepscope.analyses.run.idle import Rest, rests
from stepscope.analyses.run.phases import Phases, phases_of
from stepscope.analyses.run.run_spans import RunEnds, Span, run_ends, spans_of, turns_in
from stepscope.analyses.run.slow_steps import Turn
from stepscope.analyses.run.step_extras import step_extras
from stepscope.core.run import RUN_PARTS, OwnTime, RunFacts, RunPart, RunPhase, SlowSteps, WholeRun
from stepscope.protocol.untrusted import whole
from stepscope.readers.run_folder.folder import RankRecord, RunRecord

STRETCHES = 120
"""Stretches that the run is drawn in."""
MAX_LINES = 3
BEFORE, IMPORTS = "before the process began", "until torch was imported"
COUNTED = ("saves", "evaluation", "epoch_start", "gc", "logging", "stalls", "idle")


def whole_run(record: RunRecord, facts: RunFacts) -> WholeRun | None:
    """Whole run of the rank with the median productive share; None where too few steps were timed
    on any."""
    own = {rank.rank: rank.own for rank in facts.ranks}
    resting = rests(record.ranks)
    ranks = [
        rank_whole_run(rank, record.metadata, own.get(rank.rank), resting[rank.rank])
        for rank in record.ranks
    ]
    found = sorted(
        (each for each in ranks if each is not None), key=lambda each: each.productive_share
    )
    return found[(len(found) - 1) // 2] if found else None


def rank_whole_run(
    record: RankRecord,
    run: Mapping[str, Any],
    own: OwnTime | None = None,
    rest: Rest | None = None,
) -> WholeRun | None:
    """`run` is RUN/run.json; None where too few steps were timed. Without `rest` nothing is known
    of the other ranks."""
    phases = phases_of(record)
    if phases is None:
        return None
    ends = run_ends(record, run)
    extras = step_extras(record, phases)
    turns = turns_in(record.rows, phases, extras)
    rest = rests([record])[record.rank] if rest is None else rest
    spans = spans_of(record, phases, extras, turns, ends, rest)
    parts = Counter[str]()
    for span in spans:
        parts.update(span.parts)
    if own is not None and own.step_ns:
        waits = round(parts["steady"] * max(1 - own.own_ns / own.step_ns, 0.0))
        parts.update({"steady": -waits, "waits": waits})
    dur_ns = spans[-1].end_ns - spans[0].begin_ns
    found = WholeRun(
        rank=record.rank,
        seconds=dur_ns / 1e9,
        productive_share=parts["steady"] / dur_ns,
        parts=tuple(
            _part(what, parts[what], parts[what] / dur_ns, spans, record, ends)
            for what in RUN_PARTS
            if parts[what] > 0
        ),
        stalls=_slow(spans, turns, record.events),
        over_time=_over_time(spans),
        step_ms=phases.step_ns / 1e6,
        num_clean_steps=phases.num,
        phases=_phases(phases),
        num_steps=_num_steps(record),
        is_over=ends.is_over,
    )
    found.self_check()
    return found


def _phases(phases: Phases) -> tuple[RunPhase, ...]:
    """None where the run is of one."""
    if len(phases.each) == 1:
        return ()
    return tuple(
        RunPhase(
            first_step=phase.first_step,
            num_clean_steps=phase.usual.num,
            step_ms=phase.usual.step_ns / 1e6,
        )
        for phase in phases.each
    )


def _slow(
    spans: Sequence[Span],
    turns: Sequence[Turn],
    events: Sequence[Mapping[str, Any]],
) -> tuple[SlowSteps, ...]:
    groups: dict[tuple[Turn | None, bool], list[tuple[int, int, bool]]] = {}
    for span in spans:
        ns, step = span.parts.get("stalls", 0), span.step
        if step is None or not ns:
            continue
        of_one = turns if span.num_steps == 1 else ()
        turn = next((turn for turn in of_one if turn.is_one(step, ns)), None)
        is_input = 2 * span.more_wait_ns >= ns
        key = (turn, turn is None and is_input)
        groups.setdefault(key, []).append((step, ns, is_input))
    found = [_group(turn, members, events) for (turn, _), members in groups.items()]
    return tuple(sorted(found, key=lambda each: -each.seconds))


def _group(
    turn: Turn | None,
    members: Sequence[tuple[int, int, bool]],
    events: Sequence[Mapping[str, Any]],
) -> SlowSteps:
    steps = {step for step, _, _ in members}
    seen = _lines(events, steps)
    total = sum(ns for _, ns, _ in members)
    by_input = sum(ns for _, ns, is_input in members if is_input)
    return SlowSteps(
        cause="input" if 2 * by_input > total else None,
        every_steps=None if turn is None else turn.every,
        num=len(members),
        once_seconds=round(statistics.median(ns for _, ns, _ in members)) / 1e9,
        seconds=total / 1e9,
        lines={line: num / seen.total() for line, num in seen.most_common(MAX_LINES)},
    )


def _lines(events: Sequence[Mapping[str, Any]], steps: Collection[int]) -> Counter[str]:
    """Where the training thread was seen in these steps."""
    return Counter(
        str(each["line"])
        for each in events
        if each.get("kind") == "slow" and each.get("step") in steps and each.get("line")
    )


def _over_time(spans: Sequence[Span]) -> tuple[Mapping[str, float], ...]:
    """Equal stretches. In which order a span's parts came is not known: each has its share of
    every moment of it."""
    begun_ns, dur_ns = spans[0].begin_ns, spans[-1].end_ns - spans[0].begin_ns
    num = min(STRETCHES, dur_ns)
    ends = [begun_ns + dur_ns * (number + 1) // num for number in range(num)]
    stretches: list[Counter[str]] = [Counter() for _ in ends]
    index = 0
    for span in spans:
        length, done_ns, done = span.end_ns - span.begin_ns, 0, Counter[str]()
        while done_ns < length:
            done_ns = min(ends[index], span.end_ns) - span.begin_ns
            reached = {what: ns * done_ns // length for what, ns in span.parts.items()}
            for what, ns in reached.items():
                stretches[index][what] += ns - done[what]
            done = Counter(reached)
            index += span.begin_ns + done_ns == ends[index] and index + 1 < num
    return tuple({what: ns / 1e9 for what, ns in (+each).items()} for each in stretches)


def _part(
    what: str,
    dur_ns: int,
    share: float,
    spans: Sequence[Span],
    record: RankRecord,
    ends: RunEnds,
) -> RunPart:
    num = sum(bool(span.parts.get(what)) for span in spans) if what in COUNTED else None
    of_it: Mapping[str, int] = {}
    if what == "start_up":
        of_it = _start_up(record, ends.begun_ns, dur_ns)
    elif what == "idle":
        of_it = _idle(spans, record.events)
    of_it_s = {name: ns / 1e9 for name, ns in of_it.items()}
    return RunPart(what=what, seconds=dur_ns / 1e9, share=share, num=num, of_it=of_it_s)


def _start_up(record: RankRecord, begun_ns: int, dur_ns: int) -> dict[str, int]:
    """Parts of the start-up, as far as known: until the process was there, and until it had
    imported torch."""
    started = whole(record.metadata.get("started_ns"))
    imported = whole(record.metadata.get("imported_ns"))
    if started is None or imported is None:
        return {}
    before = min(max(started - begun_ns, 0), dur_ns)
    until = min(max(imported - max(started, begun_ns), 0), dur_ns - before)
    return {BEFORE: before, IMPORTS: until}


def _idle(spans: Sequence[Span], events: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Idle time by the line that the training thread was most often seen at."""
    found = Counter[str]()
    for span in spans:
        ns = span.parts.get("idle", 0)
        steps = range(span.step or 0, (span.step or 0) + span.num_steps)
        for line, _ in _lines(events, steps).most_common(1) if ns else ():
            found[line] += ns
    return dict(found.most_common(MAX_LINES))


def _num_steps(record: RankRecord) -> int:
    """Number of steps of the run; of a long one some stand in both rows and stretches."""
    last = [(each["first_step"] or 0) + (each["num_steps"] or 0) for each in record.stretches]
    return max(last, default=0) or len(record.rows) + 1
