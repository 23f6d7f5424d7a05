"""A rank's run as spans that follow one another, each divided among the parts of a run.

The start up to the end of the first step, each step, what lies between two of them, and what
follows the last. A step's part of `steady` is what the usual step takes; only what it takes longer
can be anything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from stepscope.analyses.run.idle import Rest
from stepscope.analyses.run.phases import Phases, phases_of
from stepscope.analyses.run.slow_steps import FIRST, REST, TIMED, Turn, Usual, host_parts, turns_of
from stepscope.analyses.run.step_extras import Extra, step_extras
from stepscope.analyses.steps.unprofiled import Row
from stepscope.core.run import RUN_PARTS
from stepscope.protocol.untrusted import LARGEST_INT, as_object, finite, whole
from stepscope.readers.run_folder.folder import RankRecord

MIN_EVALUATION = 0.2
"""Share of a usual step from which one that was told to evaluate has done so."""
MIN_HELD, QUIET_PARTS = 0.1, ("between_ns", "wait_ns")
"""Share of what a slow step takes longer from which a part in which it computes holds some of it,
for there a machine that others use shows; and the parts in which it computes little, which need no
such share."""
IN_FULL = 0.95
"""Share of what a step that is slow in its turn takes longer: as much of the job's own code after
the last step is one. And of what nothing explains: as much rest, and all of it is."""
UNEXPLAINED = ("stalls", "warm_up", "shutdown", "other")
"""Parts that may be rest."""


class Span(Struct, frozen=True, kw_only=True):
    """Span from one moment to the next, on the rank's clock."""

    begin_ns: int
    end_ns: int
    parts: Mapping[str, int]
    """Lengths of the parts, which sum to the span's."""
    step: int | None = None
    """The first one, of several."""
    num_steps: int = 1
    more_wait_ns: int = 0
    """Extra wait for batches over a usual step's."""


class _Division:
    """A length of time, of which one thing after the other takes its part."""

    def __init__(self, dur_ns: int) -> None:
        self.left, self.parts = max(dur_ns, 0), Counter[str]()

    def take(self, what: str, ns: float | None = None) -> None:
        """Take so much of what is left; all of it where nothing is said."""
        taken = self.left if ns is None else max(min(round(ns), self.left), 0)
        self.left -= taken
        if taken:
            self.parts[what] += taken


class RunEnds(Struct, frozen=True, kw_only=True):
    """Ends of the run by the rank's clock."""

    begun_ns: int
    ended_ns: int
    is_over: bool


def run_ends(record: RankRecord, run: Mapping[str, Any]) -> RunEnds:
    """When the run began and ended, by this rank's clock."""
    notes = record.metadata
    perf_ns, wall_ns = whole(notes.get("perf_ns")), whole(notes.get("wall_ns"))
    rows = [row for row in record.rows if row["end_ns"] is not None]
    first_ns = _begin_ns(rows[0])
    last_ns = max(_end_ns(row) for row in (rows[-1], *record.stretches))
    begun = whole(notes.get("started_ns"))
    ended = whole(notes.get("ended_ns"))
    if perf_ns is not None and wall_ns is not None:
        started, over = whole(run.get("started_wall_ns")), whole(run.get("ended_wall_ns"))
        begun = begun if started is None else started - wall_ns + perf_ns
        ended = ended if over is None else over - wall_ns + perf_ns
    seen = [whole(each.get("at_ns")) or 0 for each in (*record.samples, *record.events)]
    return RunEnds(
        begun_ns=min(first_ns if begun is None else begun, first_ns),
        ended_ns=max(last_ns, *seen, 0) if ended is None else max(ended, last_ns),
        is_over=ended is not None,
    )


def spans_of(
    record: RankRecord,
    phases: Phases,
    extras: Mapping[int, Extra],
    turns: Sequence[Turn],
    ends: RunEnds,
    rest: Rest,
) -> list[Span]:
    rows = [row for row in record.rows if row["end_ns"] is not None]
    first = as_object(record.metadata.get("first_step"))
    first_ns = min(whole(first.get("end_ns")) or LARGEST_INT, _begin_ns(rows[0]))
    head = _head(first, phases.each[0].usual, ends.begun_ns, max(first_ns, ends.begun_ns))
    spans = [Span(begin_ns=ends.begun_ns, end_ns=ends.begun_ns, parts={}), *_in_turn(head)]
    before = rows[0]
    for row in sorted((*rows, *record.stretches), key=_begin_ns):
        last_ns, end_ns = spans[-1].end_ns, _end_ns(row)
        begin_ns = max(_begin_ns(row), last_ns)
        if end_ns <= last_ns:
            continue
        if begin_ns > last_ns:
            is_timed = before.get("state", TIMED) == row.get("state", TIMED) == TIMED
            parts = {"other" if is_timed else "recording": begin_ns - last_ns}
            spans.append(Span(begin_ns=last_ns, end_ns=begin_ns, parts=parts))
        span = _span(row, begin_ns, end_ns, phases, extras, turns)
        spans.append(_rested(span, rest, end_ns, turns))
        before = row
    turn = next((each for each in turns if each.holds((rows[-1]["step"] or 0) + 1)), None)
    if record.stretches:
        turn = None
    tail = _tail(record, spans[-1].end_ns, ends, turn)
    sampled_ns = whole(record.metadata.get("ended_ns")) or ends.ended_ns
    tail = _rested(tail, rest, min(sampled_ns, tail.end_ns))
    return [span for span in (*spans, *_in_turn(tail)) if span.end_ns > span.begin_ns]


def _span(
    row: Row,
    begin_ns: int,
    end_ns: int,
    phases: Phases,
    extras: Mapping[int, Extra],
    turns: Sequence[Turn],
) -> Span:
    """A step, or a stretch of steps of a long run."""
    if "num_steps" in row:
        usual = phases.at(row["first_step"] or 0)
        parts = _stretch(row, end_ns - begin_ns, usual, extras)
        return Span(
            begin_ns=begin_ns,
            end_ns=end_ns,
            parts=parts,
            step=row["first_step"] or 0,
            num_steps=row["num_steps"] or 0,
        )
    usual, extra = phases.at(row["step"] or 0), extras.get(row["step"] or 0, Extra())
    return Span(
        begin_ns=begin_ns,
        end_ns=end_ns,
        parts=_divided(row, end_ns - begin_ns, usual, extra, turns),
        step=row["step"],
        more_wait_ns=(row["wait_ns"] or 0) - usual.wait_ns,
    )


def _stretch(row: Row, dur_ns: int, usual: Usual, extras: Mapping[int, Extra]) -> Counter[str]:
    """What its slow steps took longer is no more than what all of it did: where a host runs ahead
    of its device, a step that waits for it is no loss."""
    division = _Division(dur_ns)
    num, first = row["num_steps"] or 0, row["first_step"] or 0
    division.take("saves", row["save_ns"] or 0)
    over_ns = division.left - num * usual.step_ns
    slow_ns = max(min(row["slow_ns"] or 0, over_ns), 0)
    begun = [extra for step, extra in extras.items() if first <= step < first + num]
    epochs_ns = min(sum(each.iter_ns + each.first_wait_ns for each in begun), slow_ns)
    division.take("epoch_start", epochs_ns)
    logged_ns = max((row["log_ns"] or 0) - num * usual.log_ns, 0)
    logged_ns = min(logged_ns, slow_ns - epochs_ns)
    division.take("logging", logged_ns)
    division.take("evaluation" if row["num_evals"] else "stalls", slow_ns - epochs_ns - logged_ns)
    division.take("steady")
    return division.parts


def _rested(span: Span, rest: Rest, until_ns: int, turns: Sequence[Turn] = ()) -> Span:
    """Move to rest what of its unexplained time, up to then, was rest. Slow steps in turn stay so
    where all ranks rest: a period says more."""
    what = next((name for name in reversed(UNEXPLAINED) if span.parts.get(name)), None)
    if what is None or until_ns <= span.begin_ns:
        return span
    if span.num_steps == 1:
        shares = rest.in_step(span.begin_ns, until_ns)
        rested = [round(share * (until_ns - span.begin_ns)) for share in shares]
        is_in_turn = any(turn.is_one(span.step or 0, span.parts[what]) for turn in turns)
    else:
        rested, is_in_turn = list(rest.in_steps(span.begin_ns, until_ns)), bool(turns)
    if is_in_turn:
        rested[0] = 0
    left = span.parts[what]
    division = _Division(left)
    for name, ns in zip(("idle", "waits"), rested, strict=True):
        division.take(name, left if ns >= IN_FULL * left else ns)
    division.take(what)
    others = {name: ns for name, ns in span.parts.items() if name != what}
    return replace(span, parts=Counter(others) + division.parts)


def _in_turn(span: Span) -> Iterator[Span]:
    """A span for each of its parts, in the order of RUN_PARTS."""
    begin_ns = span.begin_ns
    for what in RUN_PARTS:
        if what in span.parts:
            end_ns = begin_ns + span.parts[what]
            yield replace(span, begin_ns=begin_ns, end_ns=end_ns, parts={what: span.parts[what]})
            begin_ns = end_ns


def _head(first: Mapping[str, Any], usual: Usual, begun_ns: int, ended_ns: int) -> Span:
    """Span up to the end of the first step."""
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
    over_ns = _over_ns(row, dur_ns, usual, extra)
    # A save or a log that waits for the device waits for what the step does anyway.
    apart = _Division(over_ns if usual.is_on_device else dur_ns)
    apart.take("saves", row["save_ns"] or 0)
    apart.take("logging", (row["log_ns"] or 0) - usual.log_ns)
    division = _Division(over_ns - apart.parts.total())
    division.parts.update(apart.parts)
    more_wait_ns = (row["wait_ns"] or 0) - usual.wait_ns
    has_evaluated = _has_evaluated(row, usual)
    division.take("compile", extra.compile_ns)
    # Where most steps collect, one a little longer than another is steady.
    if not usual.gc_ns or over_ns + usual.step_ns > usual.slow_ns:
        division.take("gc", (row["gc_ns"] or 0) - usual.gc_ns)
    if extra.num_epochs:
        waited = extra.first_wait_ns if has_evaluated else more_wait_ns
        division.take("epoch_start", extra.iter_ns + max(waited, 0))
    is_slow = division.left + usual.step_ns > usual.slow_ns
    turn = next((each for each in turns if each.holds(row["step"] or 0)), None)
    is_clear = row["state"] == TIMED and not has_evaluated
    if turn is not None and not is_clear and 2 * division.left >= turn.once_ns:
        division.take("stalls", turn.once_ns)
    if has_evaluated and division.left > MIN_EVALUATION * usual.step_ns:
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


def _over_ns(row: Row, dur_ns: int, usual: Usual, extra: Extra) -> int:
    """Time by which it is longer than the usual step. Of a slow step only the parts that hold it:
    on a machine that others use, a thread that has just slept gets its core sooner than usual, and
    the rest of the step is shorter."""
    # What it takes where it is usual: with more backward passes it is longer. Where a second
    # training loop has an optimizer of its own, its first steps stand as one.
    times = (row["num_backwards"] or 0) / (usual.num_backwards or 1.0)
    usual_ns = round(usual.step_ns * max(times, 1.0))
    over_ns = max(dur_ns - usual_ns - extra.lead_ns, 0)
    is_slow = over_ns + usual.step_ns > usual.slow_ns or _has_evaluated(row, usual)
    if not is_slow or usual.is_on_device or usual_ns > usual.step_ns or dur_ns != row["dur_ns"]:
        return over_ns
    parts = host_parts(row)
    # A loader is begun behind the last wait for the one before.
    parts[REST] -= extra.iter_ns
    more = {
        name: ns - usual.parts[name].mean_ns
        for name, ns in parts.items()
        if ns > usual.parts[name].most_ns
    }
    held_ns = extra.iter_ns + sum(
        ns for name, ns in more.items() if name in QUIET_PARTS or ns >= MIN_HELD * over_ns
    )
    return max(min(round(held_ns), dur_ns), 0) or over_ns


def _tail(record: RankRecord, last_ns: int, ends: RunEnds, turn: Turn | None) -> Span:
    """What follows the last step; `turn` is that of slow steps to which the next one belonged."""
    division = _Division(ends.ended_ns - last_ns)
    until_ns = whole(record.metadata.get("ended_ns")) or last_ns
    after = [each for each in record.events if (whole(each.get("at_ns")) or 0) > last_ns]
    saves = [each for each in after if each.get("kind") == "save"]
    division.take("saves", sum(_ns(each, "dur_ns") for each in saves))
    logs = [each for each in after if each.get("kind") == "log"]
    division.take("logging", sum(_ns(each, "dur_ns") for each in logs))
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


def turns_in(rows: Sequence[Row], phases: Phases, extras: Mapping[int, Extra]) -> tuple[Turn, ...]:
    """Turns of the steps that hold nothing else: in the others a period tells the one from the
    other."""
    slow = []
    for row in rows:
        step = row["step"] or 0
        usual = phases.at(step)
        if row["state"] == TIMED and not _has_evaluated(row, usual):
            parts = _divided(row, row["dur_ns"] or 0, usual, extras.get(step, Extra()), ())
            if parts["stalls"]:
                slow.append((step, parts["stalls"]))
    return turns_of(slow)


def evaluated_ns(record: RankRecord) -> dict[int, int]:
    """What evaluations took of each step that held one."""
    phases = phases_of(record)
    if phases is None:
        return {}
    extras = step_extras(record, phases)
    turns = turns_in(record.rows, phases, extras)
    found = {}
    for row in record.rows:
        step = row["step"] or 0
        usual = phases.at(step)
        if row["state"] == TIMED and _has_evaluated(row, usual):
            extra = extras.get(step, Extra())
            parts = _divided(row, row["dur_ns"] or 0, usual, extra, turns)
            found[step] = parts["evaluation"]
    return {step: ns for step, ns in found.items() if ns}


def _has_evaluated(row: Row, usual: Usual) -> bool:
    """Whether a module was told so, or more batches were taken for the same backward passes."""
    is_fed = (row["num_batches"] or 0) > usual.num_batches + 0.5
    is_same = abs((row["num_backwards"] or 0) - usual.num_backwards) < 0.5
    return bool(row["num_evals"]) or (is_fed and is_same)


def _begin_ns(row: Row) -> int:
    """Begin of a step, or of a stretch of steps."""
    if "from_ns" in row:
        return row["from_ns"] or 0
    return (row["end_ns"] or 0) - (row["dur_ns"] or 0)


def _end_ns(row: Row) -> int:
    return row["to_ns" if "to_ns" in row else "end_ns"] or 0


def _ns(values: Mapping[str, Any], name: str) -> int:
    return whole(values.get(name)) or 0
