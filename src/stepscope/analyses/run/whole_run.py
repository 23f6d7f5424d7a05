"""Where a run's time went from its start to its end, from a rank's folder.

The run is cut into spans that follow one another: its start up to the end of the first step, each
step, what lies between two of them, and what follows the last. Each span is divided among the
parts of core.run.RUN_PARTS, so the parts sum to the run by construction. A step's part of `steady`
is what the usual step takes; only what it takes longer can be anything else.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from stepscope.analyses.run.slow_steps import TIMED, Turn, Usual, turns_of, usual_step
from stepscope.analyses.run.step_extras import Extra, step_extras
from stepscope.analyses.steps.unprofiled import Row
from stepscope.core.run import RUN_PARTS, OwnTime, RunFacts, RunPart, SlowSteps, WholeRun
from stepscope.protocol.untrusted import LARGEST_INT, finite, whole
from stepscope.readers.run_folder.folder import RankRecord, RunRecord

FIRST, PROFILED = 1, 2
LEAST_EVALUATION = 0.2
"""Of a usual step, from which one that was told to evaluate has done so."""
IN_FULL = 0.95
"""Of what a step that is slow in its turn takes longer: as much of the job's own code after the
last step is one."""
STRETCHES = 120
"""That the run is drawn in."""
MOST_LINES = 3
BEFORE, IMPORTS = "before the process began", "until torch was imported"


class Span(Struct, frozen=True, kw_only=True):
    """From one moment to the next, on the rank's clock."""

    begin_ns: int
    end_ns: int
    parts: Mapping[str, int]
    """They sum to its length."""
    step: int | None = None
    more_wait_ns: int = 0
    """For batches, than in a usual step."""


class _Division:
    """A length of time, of which one thing after the other takes its part."""

    def __init__(self, dur_ns: int) -> None:
        self.left, self.parts = max(dur_ns, 0), Counter[str]()

    def take(self, what: str, ns: float | None = None) -> None:
        """So much of what is left; all of it where nothing is said."""
        taken = self.left if ns is None else max(min(round(ns), self.left), 0)
        self.left -= taken
        if taken:
            self.parts[what] += taken


class _Ends(Struct, frozen=True, kw_only=True):
    begun_ns: int
    ended_ns: int
    is_over: bool


COUNTED = ("saves", "evaluation", "epoch_start", "gc", "stalls")


def whole_run(record: RunRecord, facts: RunFacts) -> WholeRun | None:
    """Of the rank with the median productive share; None where too few steps were timed on any."""
    own = {rank.rank: rank.own for rank in facts.ranks}
    ranks = [rank_whole_run(rank, record.metadata, own.get(rank.rank)) for rank in record.ranks]
    found = sorted(
        (each for each in ranks if each is not None), key=lambda each: each.productive_share
    )
    return found[(len(found) - 1) // 2] if found else None


def rank_whole_run(
    record: RankRecord, run: Mapping[str, Any], own: OwnTime | None = None
) -> WholeRun | None:
    """`run` is RUN/run.json; None where too few steps were timed."""
    usual = usual_step(record.rows)
    if usual is None:
        return None
    ends = _ends(record, run)
    extras = step_extras(record, usual)
    turns = _turns(record.rows, usual, extras)
    spans = _spans(record, usual, extras, turns, ends)
    parts = Counter[str]()
    for span in spans:
        parts.update(span.parts)
    if own is not None and own.step_ns:
        waits = round(parts["steady"] * max(1 - own.own_ns / own.step_ns, 0.0))
        parts.update({"steady": -waits, "waits": waits})
    found = WholeRun(
        rank=record.rank,
        dur_ns=spans[-1].end_ns - spans[0].begin_ns,
        parts=tuple(
            _part(what, parts[what], spans, record, ends) for what in RUN_PARTS if parts[what] > 0
        ),
        slow=_slow(spans, turns, record.events),
        over_time=_over_time(spans),
        step_ns=usual.step_ns,
        num_clean=usual.num,
        num_steps=len(record.rows) + 1,
        is_over=ends.is_over,
    )
    found.self_check()
    return found


def _ends(record: RankRecord, run: Mapping[str, Any]) -> _Ends:
    """When the run began and ended, by this rank's clock."""
    notes = record.metadata
    perf_ns, wall_ns = whole(notes.get("perf_ns")), whole(notes.get("wall_ns"))
    rows = [row for row in record.rows if row["end_ns"] is not None]
    first_ns, last_ns = _begin_ns(rows[0]), rows[-1]["end_ns"] or 0
    begun = whole(notes.get("started_ns"))
    ended = whole(notes.get("ended_ns"))
    if perf_ns is not None and wall_ns is not None:
        started, over = whole(run.get("started_wall_ns")), whole(run.get("ended_wall_ns"))
        begun = begun if started is None else started - wall_ns + perf_ns
        ended = ended if over is None else over - wall_ns + perf_ns
    seen = [whole(each.get("at_ns")) or 0 for each in (*record.samples, *record.events)]
    return _Ends(
        begun_ns=min(first_ns if begun is None else begun, first_ns),
        ended_ns=max(last_ns, *seen, 0) if ended is None else max(ended, last_ns),
        is_over=ended is not None,
    )


def _spans(
    record: RankRecord,
    usual: Usual,
    extras: Mapping[int, Extra],
    turns: Sequence[Turn],
    ends: _Ends,
) -> list[Span]:
    rows = [row for row in record.rows if row["end_ns"] is not None]
    noted = record.metadata.get("first_step")
    first: Mapping[str, Any] = noted if isinstance(noted, dict) else {}
    first_ns = min(whole(first.get("end_ns")) or LARGEST_INT, _begin_ns(rows[0]))
    head = _head(first, usual, ends.begun_ns, max(first_ns, ends.begun_ns))
    spans = [Span(begin_ns=ends.begun_ns, end_ns=ends.begun_ns, parts={}), *_in_turn(head)]
    before = rows[0]
    for row in rows:
        last_ns, end_ns = spans[-1].end_ns, row["end_ns"] or 0
        begin_ns = max(_begin_ns(row), last_ns)
        if end_ns <= last_ns:
            continue
        if begin_ns > last_ns:
            what = "other" if before["state"] == row["state"] == TIMED else "recording"
            parts = {what: begin_ns - last_ns}
            spans.append(Span(begin_ns=last_ns, end_ns=begin_ns, parts=parts))
        extra = extras.get(row["step"] or 0, Extra())
        parts = _divided(row, end_ns - begin_ns, usual, extra, turns)
        spans.append(
            Span(
                begin_ns=begin_ns,
                end_ns=end_ns,
                parts=parts,
                step=row["step"],
                more_wait_ns=(row["wait_ns"] or 0) - usual.wait_ns,
            )
        )
        before = row
    turn = next((each for each in turns if each.holds((before["step"] or 0) + 1)), None)
    tail = _tail(record, spans[-1].end_ns, ends, turn)
    return [span for span in (*spans, *_in_turn(tail)) if span.end_ns > span.begin_ns]


def _in_turn(span: Span) -> Iterator[Span]:
    """A span for each of its parts, in the order of RUN_PARTS."""
    begin_ns = span.begin_ns
    for what in RUN_PARTS:
        if what in span.parts:
            end_ns = begin_ns + span.parts[what]
            yield replace(span, begin_ns=begin_ns, end_ns=end_ns, parts={what: span.parts[what]})
            begin_ns = end_ns


def _head(first: Mapping[str, Any], usual: Usual, begun_ns: int, ended_ns: int) -> Span:
    """Up to the end of the first step."""
    division = _Division(ended_ns - begun_ns)
    fed_ns = whole(first.get("begun_ns"))
    division.take("first_batch", _ns(first, "iter_ns") + _ns(first, "wait_ns"))
    division.take("compile", 1e9 * (finite(first.get("dynamo_compile_s")) or 0.0))
    division.take("saves", _ns(first, "save_ns"))
    division.take("steady", usual.step_ns)
    if fed_ns is not None:
        has_more = _ns(first, "num_batches") > usual.num_batches + 0.5
        what = "evaluation" if first.get("num_evals") and has_more else "warm_up"
        division.take(what, ended_ns - fed_ns - division.parts.total())
    division.take("start_up")
    return Span(begin_ns=begun_ns, end_ns=ended_ns, parts=division.parts)


def _divided(
    row: Row, dur_ns: int, usual: Usual, extra: Extra, turns: Sequence[Turn]
) -> Counter[str]:
    """A step: what the usual one takes, and why it takes longer."""
    over_ns = max(dur_ns - usual.step_ns - extra.lead_ns, 0)
    # A save that waits for the device waits for what the step does anyway.
    saved_ns = min(row["save_ns"] or 0, over_ns if usual.is_on_device else dur_ns)
    division = _Division(over_ns - saved_ns)
    division.parts["saves"] = saved_ns
    more_wait_ns = (row["wait_ns"] or 0) - usual.wait_ns
    has_evaluated = _has_evaluated(row, usual)
    division.take("compile", extra.compile_ns)
    division.take("gc", (row["gc_ns"] or 0) - usual.gc_ns)
    if extra.num_epochs:
        waited = extra.first_wait_ns if has_evaluated else more_wait_ns
        division.take("epoch_start", extra.iter_ns + max(waited, 0))
    is_slow = division.left + usual.step_ns > usual.slow_ns
    turn = next((each for each in turns if each.holds(row["step"] or 0)), None)
    is_clear = row["state"] == TIMED and not has_evaluated
    if turn is not None and not is_clear and 2 * division.left >= turn.once_ns:
        division.take("stalls", turn.once_ns)
    if has_evaluated and division.left > LEAST_EVALUATION * usual.step_ns:
        division.take("evaluation")
    if row["state"] == FIRST:
        division.take("warm_up", division.left if is_slow else 0)
    elif row["state"] != TIMED:
        division.take("recording")
    else:
        division.take("stalls", division.left if is_slow else 0)
    parts = division.parts
    parts["steady"] = dur_ns - parts.total()
    return +parts


def _tail(record: RankRecord, last_ns: int, ends: _Ends, turn: Turn | None) -> Span:
    """What follows the last step; `turn` is that of slow steps to which the next one belonged."""
    division = _Division(ends.ended_ns - last_ns)
    until_ns = whole(record.metadata.get("ended_ns")) or last_ns
    after = [each for each in record.events if (whole(each.get("at_ns")) or 0) > last_ns]
    saves = [each for each in after if each.get("kind") == "save"]
    division.take("saves", sum(_ns(each, "dur_ns") for each in saves))
    division.take("recording", sum(_ns(each, "saved_ns") for each in after))
    evaluated = [_ns(each, "at_ns") for each in after if each.get("kind") == "evaluation"]
    if evaluated:
        later = sum(_ns(each, "dur_ns") for each in saves if _ns(each, "at_ns") > evaluated[0])
        division.take("evaluation", until_ns - evaluated[0] - later)
    own_ns = until_ns - last_ns - division.parts.total()
    if turn is not None and own_ns >= IN_FULL * turn.once_ns:
        division.take("stalls", turn.once_ns)
    division.take("shutdown" if ends.is_over else "other")
    return Span(
        begin_ns=last_ns,
        end_ns=max(ends.ended_ns, last_ns),
        parts=division.parts,
        step=(record.rows[-1]["step"] or 0) + 1,
    )


def _turns(rows: Sequence[Row], usual: Usual, extras: Mapping[int, Extra]) -> tuple[Turn, ...]:
    """Of the steps that hold nothing else: in the others a period tells the one from the other."""
    slow = []
    for row in rows:
        if row["state"] == TIMED and not _has_evaluated(row, usual):
            step = row["step"] or 0
            parts = _divided(row, row["dur_ns"] or 0, usual, extras.get(step, Extra()), ())
            if parts["stalls"]:
                slow.append((step, parts["stalls"]))
    return turns_of(slow)


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
        turn = next((t for t in turns if t.holds(step) and 2 * ns >= t.once_ns), None)
        is_input = 2 * span.more_wait_ns >= ns
        key = (turn, turn is None and is_input)
        groups.setdefault(key, []).append((step, ns, is_input))
    found = [_group(turn, members, events) for (turn, _), members in groups.items()]
    return tuple(sorted(found, key=lambda each: -each.dur_ns))


def _group(
    turn: Turn | None,
    members: Sequence[tuple[int, int, bool]],
    events: Sequence[Mapping[str, Any]],
) -> SlowSteps:
    steps = {step for step, _, _ in members}
    seen = Counter(
        str(each["line"])
        for each in events
        if each.get("kind") == "slow" and each.get("step") in steps and each.get("line")
    )
    total = sum(ns for _, ns, _ in members)
    by_input = sum(ns for _, ns, is_input in members if is_input)
    return SlowSteps(
        cause="input" if 2 * by_input > total else None,
        every=None if turn is None else turn.every,
        num=len(members),
        once_ns=round(statistics.median(ns for _, ns, _ in members)),
        dur_ns=total,
        lines={line: num / seen.total() for line, num in seen.most_common(MOST_LINES)},
    )


def _over_time(spans: Sequence[Span]) -> tuple[Mapping[str, int], ...]:
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
    return tuple(+stretch for stretch in stretches)


def _part(
    what: str, dur_ns: int, spans: Sequence[Span], record: RankRecord, ends: _Ends
) -> RunPart:
    num = sum(bool(span.parts.get(what)) for span in spans) if what in COUNTED else None
    of_it = _start_up(record, ends.begun_ns, dur_ns) if what == "start_up" else {}
    return RunPart(what=what, dur_ns=dur_ns, num=num, of_it=of_it)


def _start_up(record: RankRecord, begun_ns: int, dur_ns: int) -> dict[str, int]:
    """What is known of it: until the process was there, and until it had imported torch."""
    started = whole(record.metadata.get("started_ns"))
    imported = whole(record.metadata.get("imported_ns"))
    if started is None or imported is None:
        return {}
    before = min(max(started - begun_ns, 0), dur_ns)
    until = min(max(imported - max(started, begun_ns), 0), dur_ns - before)
    return {BEFORE: before, IMPORTS: until}


def _has_evaluated(row: Row, usual: Usual) -> bool:
    """Whether a module was told so, or more batches were taken for the same backward passes."""
    is_fed = (row["num_batches"] or 0) > usual.num_batches + 0.5
    is_same = abs((row["num_backwards"] or 0) - usual.num_backwards) < 0.5
    return bool(row["num_evals"]) or (is_fed and is_same)


def _begin_ns(row: Row) -> int:
    return (row["end_ns"] or 0) - (row["dur_ns"] or 0)


def _ns(values: Mapping[str, Any], name: str) -> int:
    return whole(values.get(name)) or 0
