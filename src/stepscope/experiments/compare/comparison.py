"""Two runs of a job compared: the ratio of their steps, and where the difference lies."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.comms import CommsFacts
from stepscope.core.diagnosis import Finding
from stepscope.core.experiments.comparison import (
    Account,
    Changed,
    ComparedRun,
    Comparison,
    DeviceChange,
    PredictionOutcome,
    RankChange,
    RankMemory,
    RanksChange,
    Speedup,
)
from stepscope.core.scaling import SCALING_PARTS, UNPROFILED
from stepscope.experiments.compare.comparability import growth, unequal, width
from stepscope.experiments.compare.differences import (
    account,
    device_accounts,
    device_change,
    tells_modules,
)
from stepscope.experiments.compare.knobs import changed_knobs
from stepscope.experiments.compare.side import CompareSide
from stepscope.experiments.compare.speed import (
    Timed,
    alone,
    both_timed,
    bursts,
    is_host_slowed,
    scaled,
    speedup_of,
    uneven,
    with_odd,
)

NO_STEPS = (
    "no step was timed in the same way in both: give --step-ms for both, or record both with "
    "`stepscope run`"
)
NO_STEPS_IN = "no step of {} was timed: record it with `stepscope run`, or give --step-ms for both"
PROFILED = (
    "the steps were recorded under a profiler, which slows the host: a run that the host limits "
    "seems slower than it is. --step-ms gives the times without one"
)
NOT_HELD = (
    "whether what was predicted held is not told: the device of one of the two waits for the "
    "host, which the profiler slows"
)
ONE_RUN_EACH = (
    "one run against one run tells nothing of how runs differ by themselves (clocks, placement, "
    "neighbours); `stepscope verify` runs both several times and does"
)


def compare(before: CompareSide, after: CompareSide) -> Comparison:
    """The second against the first."""
    first, second, profiled = both_timed(before, after)
    speedup = speedup_of(first, second, why=_why_not(before, after))
    pieces = (before.pieces, after.pieces)
    accounts: dict[str, Account] = {}
    parts = [_parts(before, first), _parts(after, second)]
    if parts[0] and parts[1]:
        if any(
            side.parts_ns is not None and side.parts_ns["comms_wait"] is None
            for side in (before, after)
        ):
            parts = [_waits_as_transfers(side_parts) for side_parts in parts]
        accounts["part"] = account(_used(parts[0], parts[1]), _used(parts[1], parts[0]))
    device: DeviceChange | None = None
    changed: tuple[Changed, ...] = ()
    if pieces[0] is not None and pieces[1] is not None and pieces[0].where == pieces[1].where:
        accounts |= device_accounts(pieces[0], pieces[1])
        device, changed = device_change(pieces[0], pieces[1])
    if before.comms is not None or after.comms is not None:
        accounts["collective"] = account(_collectives(before.comms), _collectives(after.comms))
    held = held_findings(before, after, speedup, profiled=profiled)
    ratio, unit = growth(before.work, after.work, device, changed)
    other_work = unequal(before, after, device, changed)
    notes = _notes(before, after, speedup, first, second, held, profiled=profiled)
    made = Comparison(
        before=_run(before, first),
        after=_run(after, second),
        speedup=speedup,
        throughput=scaled(speedup, ratio, unit) if ratio is not None else None,
        same_work=not other_work,
        unequal=other_work,
        changed=changed,
        device=device,
        accounts=accounts,
        ranks=_ranks(before, after),
        memory=tuple(
            RankMemory(
                rank=rank, before_bytes=before.peaks.get(rank), after_bytes=after.peaks.get(rank)
            )
            for rank in sorted(set(before.peaks) | set(after.peaks))
        ),
        held=held,
        predicted_together=predicted_together(before, held),
        knobs=changed_knobs(before.knobs, after.knobs),
        notes=tuple(dict.fromkeys(notes)),
    )
    made.self_check()
    return made


def _parts(side: CompareSide, compared: Timed | None) -> dict[str, float]:
    """The step's parts, which sum to the step that is compared, of whichever kind it is; empty
    where there are none."""
    if side.parts_ns is None:
        return {}
    parts = {part: float(side.parts_ns[part] or 0) for part in SCALING_PARTS if part != UNPROFILED}
    if compared is None or compared.ns is None or compared.source == "recorded":
        return parts | {UNPROFILED: 0.0}
    return parts | {UNPROFILED: compared.ns - sum(parts.values())}


def _waits_as_transfers(parts: dict[str, float]) -> dict[str, float]:
    """Where one run's waits are not separated from its transfers, those of both are one."""
    return parts | {
        "comms_transfer": parts["comms_transfer"] + parts["comms_wait"],
        "comms_wait": 0.0,
    }


def _used(parts: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Parts without those that neither has."""
    return {part: ns for part, ns in parts.items() if ns or other[part]}


def _why_not(before: CompareSide, after: CompareSide) -> str:
    """Why steps could not be compared, if they could not."""
    lacking = [
        word
        for word, side in (("the first", before), ("the second", after))
        if alone(side) is None and not side.step_ns
    ]
    if not lacking:
        return NO_STEPS
    return NO_STEPS_IN.format("either" if len(lacking) > 1 else lacking[0])


def _run(side: CompareSide, compared: Timed | None) -> ComparedRun:
    steps = compared or alone(side)
    step_ns, num_steps, source = side.step_ns, 0, "kept"
    if steps is not None:
        step_ns, num_steps, source = steps.ns, len(steps.steps), steps.source
        if not num_steps and source == "kept" and side.kept:
            num_steps = side.kept.num
    elif side.step_source == "trace":
        source = "recorded"
    return ComparedRun(
        label=side.label,
        kind=side.kind,
        step_ms=None if step_ns is None else step_ns / 1e6,
        num_steps=num_steps,
        source=source,
        bound=side.bound,
        num_ranks=side.num_ranks,
        world_size=side.work.world_size,
        device_name=side.device_name,
        samples=side.work.samples,
        flops=side.work.flops,
        peak_bytes=max(side.peaks.values(), default=None),
        is_mean=steps is not None and (steps.is_mean or steps.source == "kept"),
    )


def _collectives(comms: CommsFacts | None) -> dict[str, float]:
    times: dict[str, float] = {}
    for row in comms.rows if comms is not None else ():
        if row.ns_per_step is not None:
            size = "" if row.bytes is None else f" {row.bytes / 1e6:.4g} MB"
            name = f"{row.op} {row.dtype or ''}{size}".strip() + (
                f" ({row.group})" if row.group else ""
            )
            times[name] = times.get(name, 0.0) + row.ns_per_step
    return times


def _ranks(before: CompareSide, after: CompareSide) -> RanksChange | None:
    if max(len(before.ranks), len(after.ranks)) < 2:
        return None
    sides = [{rank.rank: rank for rank in side.ranks} for side in (before, after)]

    def own(side: int, rank: int) -> float | None:
        rank_side = sides[side].get(rank)
        if rank_side is None or rank_side.step_ns is None or rank_side.wait_ns is None:
            return None
        return rank_side.step_ns - rank_side.wait_ns

    def wait(side: int, rank: int) -> float | None:
        rank_side = sides[side].get(rank)
        return None if rank_side is None else rank_side.wait_ns

    def spread(side: int) -> float | None:
        values = [value for rank in sides[side] if (value := own(side, rank)) is not None]
        return max(values) - min(values) if len(values) > 1 else None

    rows = tuple(
        RankChange(
            rank=rank,
            before_ns=own(0, rank),
            after_ns=own(1, rank),
            wait_before_ns=wait(0, rank),
            wait_after_ns=wait(1, rank),
        )
        for rank in sorted(set(sides[0]) | set(sides[1]))
    )
    return RanksChange(
        rows=rows,
        late_before=before.late,
        late_after=after.late,
        spread_before_ns=spread(0),
        spread_after_ns=spread(1),
    )


def _notes(
    before: CompareSide,
    after: CompareSide,
    speedup: Speedup,
    first: Timed | None,
    second: Timed | None,
    held: Sequence[PredictionOutcome],
    *,
    profiled: bool,
) -> Sequence[str]:
    notes = [*before.notes, *after.notes]
    # Readers name the ranks that are missing where there are several.
    notes += [
        f"{side.label}: 1 of its {side.num_missing + 1} ranks was read: its parts are that rank's"
        for side in (before, after)
        if side.num_ranks == 1 and side.num_missing
    ]
    if before.num_ranks and after.num_ranks and width(before) != width(after):
        notes.append(
            "the two are of different widths: --scaling tells how the job scales, and where that "
            "is lost"
        )
    if profiled:
        notes.append(PROFILED)
    if first is not None and second is not None:
        burst_note = bursts(first, second, speedup)
        notes += [*([burst_note] if burst_note else []), *uneven(first, second)]
        if first.steps and second.steps and not profiled:
            odd_note = with_odd(before, after)
            notes += [odd_note] if odd_note else []
    fixed = [finding.code for finding in held if finding.status == "gone"]
    if fixed and slowed_by_profiler(before, after, profiled=profiled):
        notes.append(NOT_HELD)
    if len(fixed) > 1:
        notes.append(
            f"{len(fixed)} findings are gone at once ({', '.join(fixed)}): what was measured is of "
            "all of them together"
        )
    return [*notes, *_not_compared(before, after), ONE_RUN_EACH]


def _not_compared(before: CompareSide, after: CompareSide) -> list[str]:
    """What one of the two lacks."""
    notes = []
    first, second = before.pieces, after.pieces
    if first is not None and second is not None:
        if tells_modules(first) != tells_modules(second):
            notes.append(
                "modules were not compared: only one of the two recorded stacks (with_stack=True "
                "in the profiler)"
            )
    elif first is not second:
        notes.append("operators could not be paired: only one of the two has a table of them")
    if before.knobs is None or after.knobs is None:
        which = "neither was" if before.knobs is None and after.knobs is None else "only one was"
        notes.append(f"settings were not compared: {which} recorded by `stepscope run`")
    return notes


AGREES = 0.15
"""A range that was predicted and comes within this share of what was measured agrees with it: how
runs differ by themselves is in no interval over steps."""


def slowed_by_profiler(before: CompareSide, after: CompareSide, *, profiled: bool) -> bool:
    """Whether the ratio is not that of the steps without a profiler: it slows the host, and the
    device waits for the host."""
    return profiled and any(
        is_host_slowed(
            None if side.parts_ns is None else side.parts_ns["idle_launch"],
            side.recorded_ns,
            side.bound,
        )
        for side in (before, after)
    )


def held_findings(
    before: CompareSide, after: CompareSide, speedup: Speedup, *, profiled: bool
) -> tuple[PredictionOutcome, ...]:
    """The first run's findings compared with the second's, then those that are new."""
    codes = {finding.code for finding in after.findings}
    statuses = [_status(finding, codes, before, after) for finding in before.findings]
    # A larger batch is other work, which is not compared: where it no longer pays, another fix was
    # made.
    gone = [
        finding
        for finding, status in zip(before.findings, statuses, strict=True)
        if status == "gone" and finding.samples_times == 1
    ]
    # Of fixes that exclude one another one was made: the first of them is what was promised.
    is_one = bool(gone) and all(f.code in gone[0].excludes for f in gone[1:])
    is_shown = is_one and not slowed_by_profiler(before, after, profiled=profiled)
    held = []
    for finding, status in zip(before.findings, statuses, strict=True):
        measured = speedup.value if status == "gone" else None
        agrees = None
        if measured is not None and is_shown and finding is gone[0]:
            agrees = _agrees(finding.predicted_low, finding.predicted_high, speedup)
        held.append(_held(finding, status, measured, agrees))
    old = {finding.code for finding in before.findings}
    held += [_held(finding, "new") for finding in after.findings if finding.code not in old]
    return tuple(held)


def _held(
    finding: Finding, status: str, measured: float | None = None, agrees: bool | None = None
) -> PredictionOutcome:
    return PredictionOutcome(
        code=finding.code,
        status=status,
        predicted=finding.predicted_speedup,
        predicted_low=finding.predicted_low,
        predicted_high=finding.predicted_high,
        measured=measured,
        agrees=agrees,
    )


def _status(finding: Finding, codes: set[str], before: CompareSide, after: CompareSide) -> str:
    if finding.code in codes:
        return "still there"
    # What several ranks tell together is not seen in the trace of one.
    is_blind = (
        finding.code in after.abstained
        or not after.is_judged
        or after.num_missing > before.num_missing
    )
    return "not judged" if is_blind else "gone"


def predicted_together(before: CompareSide, held: Sequence[PredictionOutcome]) -> float | None:
    """The ladder has the gain of the first findings at once."""
    fixed = {finding.code for finding in held if finding.status == "gone"}
    first = {finding.code for finding in before.findings[: len(fixed)]}
    if len(fixed) < 2 or fixed != first or len(before.ladder) < len(fixed):
        return None
    return before.ladder[len(fixed) - 1]


def _agrees(low: float, high: float, speedup: Speedup) -> bool:
    value = speedup.value or 0.0
    least, most = speedup.low or value, speedup.high or value
    return least <= high * (1 + AGREES) and most >= low * (1 - AGREES)
