"""Two runs of a job compared: the ratio of their steps, and where the difference lies."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.comms_facts import CollectiveRow, CommsFacts
from stepscope.core.diagnosis import Finding
from stepscope.core.experiments.comparison import (
    Changed,
    ComparedRun,
    Comparison,
    DeviceChange,
    Held,
    RankChange,
    RanksChange,
    Speedup,
)
from stepscope.core.scaling import SCALING_PARTS, UNPROFILED
from stepscope.experiments.compare.differences import (
    account,
    device_accounts,
    device_change,
    tells_modules,
)
from stepscope.experiments.compare.knobs import changed_knobs
from stepscope.experiments.compare.side import CompareSide, WorkDone
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

SAME_WORK = 0.02
"""FLOPs a step within this share of one another are the same work: what is modelled of an operator
may differ by its kernel."""
REPLACED_WORK = 0.25
"""FLOPs further apart than this are other work, whatever was replaced: a fused attention that skips
what is masked saves less."""
MOST_ALONE = 0.3
"""Of the busy time: with more work that has no counterpart, FLOPs that differ are work that
differs; on both sides, it is another model's."""
AGREES = 0.15
"""A range that was predicted and comes within this share of what was measured agrees with it: how
runs differ by themselves is in no interval over steps."""
NO_STEPS = (
    "no step was timed in the same way in both: give --step-ms for both, or record both with "
    "`stepscope run`"
)
NO_STEPS_IN = "no step of {} was timed: record it with `stepscope run`, or give --step-ms for both"
PROFILED = (
    "the steps were recorded under a profiler, which slows the host: a run that the host limits "
    "seems slower than it is."
    " --step-ms gives the times without one"
)
NOT_HELD = (
    "whether what was predicted held is not told: the device of one of the two waits for the "
    "host, which the profiler slows"
)
ONE_RUN_EACH = (
    "one run against one run tells nothing of how runs differ by themselves (clocks, placement, "
    "neighbours);"
    " `stepscope verify` runs both several times and does"
)


def compare(before: CompareSide, after: CompareSide) -> Comparison:
    """The second against the first."""
    first, second, profiled = both_timed(before, after)
    speedup = speedup_of(first, second, why=_why_not(before, after))
    pieces = (before.pieces, after.pieces)
    accounts = []
    parts = [_parts(before, first), _parts(after, second)]
    if parts[0] and parts[1]:
        if any(
            side.parts_ns is not None and side.parts_ns["comms_wait"] is None
            for side in (before, after)
        ):
            parts = [_waits_as_transfers(side_parts) for side_parts in parts]
        accounts.append(account("part", _used(parts[0], parts[1]), _used(parts[1], parts[0])))
    device = None
    if pieces[0] is not None and pieces[1] is not None and pieces[0].where == pieces[1].where:
        accounts += device_accounts(pieces[0], pieces[1])
        device = device_change(pieces[0], pieces[1])
    if before.comms is not None or after.comms is not None:
        accounts.append(
            account("collective", _collectives(before.comms), _collectives(after.comms))
        )
    held = _held(before, after, speedup, profiled=profiled)
    growth, unit = _growth(before.work, after.work, device)
    made = Comparison(
        before=_run(before, first),
        after=_run(after, second),
        speedup=speedup,
        throughput=scaled(speedup, growth) if growth is not None else None,
        throughput_unit=unit,
        unequal=_unequal(before, after, device),
        accounts=tuple(accounts),
        device=device,
        ranks=_ranks(before, after),
        memory={
            rank: (before.peaks.get(rank), after.peaks.get(rank))
            for rank in sorted(set(before.peaks) | set(after.peaks))
        },
        held=held,
        predicted_together=_together(before, held),
        knobs=changed_knobs(before.knobs, after.knobs),
        notes=tuple(
            dict.fromkeys(_notes(before, after, speedup, first, second, profiled=profiled))
        ),
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
    """Without the parts that neither has."""
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
        step_ns=step_ns,
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
            name = _collective_name(row)
            times[name] = times.get(name, 0.0) + row.ns_per_step
    return times


def _collective_name(row: CollectiveRow) -> str:
    size = "" if row.bytes is None else f" {row.bytes / 1e6:.4g} MB"
    return f"{row.op} {row.dtype or ''}{size}".strip() + (f" ({row.group})" if row.group else "")


def _is_same_flops(before: WorkDone, after: WorkDone, device: DeviceChange | None) -> bool:
    """Whether the model's FLOPs are the same, or differ in work that was replaced: no shape changed
    then, and what is counted of a fused operator is not what is counted of its pieces."""
    if (
        not before.all_flops
        or not after.all_flops
        or abs(after.all_flops / before.all_flops - 1) <= SAME_WORK
    ):
        return True
    if (
        device is None
        or not device.before_ns
        or abs(after.all_flops / before.all_flops - 1) > REPLACED_WORK
    ):
        return False
    reshaped = sum(changed.before_ns for changed in device.changed if "shape" in changed.how)
    alone = [
        sum(share(changed) for changed in device.changed if changed.paired_by == "none")
        for share in (_before_ns, _after_ns)
    ]
    return (
        reshaped <= SAME_WORK * device.before_ns
        and alone[0] + alone[1] <= MOST_ALONE * device.before_ns
    )


def _before_ns(changed: Changed) -> int:
    return changed.before_ns


def _after_ns(changed: Changed) -> int:
    return changed.after_ns


def _strangers(before: WorkDone, after: WorkDone, device: DeviceChange | None) -> str | None:
    """Says when much of either run has no counterpart in the other; with the same FLOPs it was only
    put otherwise."""
    if device is None or not device.before_ns or not device.after_ns:
        return None
    if (
        before.all_flops
        and after.all_flops
        and abs(after.all_flops / before.all_flops - 1) <= SAME_WORK
    ):
        return None
    went = (
        sum(changed.before_ns for changed in device.changed if changed.how == ("went",))
        / device.before_ns
    )
    came = (
        sum(changed.after_ns for changed in device.changed if changed.how == ("came",))
        / device.after_ns
    )
    if min(went, came) < MOST_ALONE:
        return None
    return (
        f"{went:.0%} of the first one's work and {came:.0%} of the second's have no counterpart "
        "in the other: another model?"
    )


def _growth(
    before: WorkDone, after: WorkDone, device: DeviceChange | None
) -> tuple[float | None, str]:
    """How much more work a step of the second does, where that is known and is not the same."""
    if before.samples and after.samples:
        return (
            after.samples / before.samples if before.samples != after.samples else None
        ), "samples"
    if before.all_flops and after.all_flops and not _is_same_flops(before, after, device):
        return after.all_flops / before.all_flops, "FLOPs"
    return None, "samples" if before.samples else "FLOPs"


def _width(side: CompareSide) -> int | None:
    return side.work.world_size or side.num_ranks or None


def _unequal(
    before: CompareSide, after: CompareSide, device: DeviceChange | None
) -> tuple[str, ...]:
    """Why the two are not the same work."""
    reasons = []
    first, second = before.work, after.work
    for word, a, b in (
        ("batch size", first.batch_size, second.batch_size),
        ("batches a step", first.num_batches, second.num_batches),
        ("parameters", first.num_parameters, second.num_parameters),
        ("model", first.model, second.model),
        ("ranks", _width(before), _width(after)),
        ("device", before.device_name, after.device_name),
    ):
        if a is not None and b is not None and a != b:
            is_text = isinstance(a, str) or isinstance(b, str)
            reasons.append(f"{word}: {a} -> {b}" if is_text else f"{word}: {a:g} -> {b:g}")
    if first.all_flops and second.all_flops and not _is_same_flops(first, second, device):
        reasons.append(
            f"FLOPs a step: {first.all_flops / 1e12:.3g} -> {second.all_flops / 1e12:.3g} TFLOP"
        )
    strange = _strangers(first, second, device)
    return (*reasons, strange) if strange else tuple(reasons)


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


def _is_host_slowed(before: CompareSide, after: CompareSide, *, profiled: bool) -> bool:
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


def _held(
    before: CompareSide, after: CompareSide, speedup: Speedup, *, profiled: bool
) -> tuple[Held, ...]:
    """The first run's findings against the second's, then those that are new."""
    codes = {finding.code for finding in after.findings}
    held = []
    statuses = [_status(finding, codes, before, after) for finding in before.findings]
    is_shown = statuses.count("gone") == 1 and not _is_host_slowed(before, after, profiled=profiled)
    for finding, status in zip(before.findings, statuses, strict=True):
        measured = speedup.value if status == "gone" else None
        agrees = None
        if measured is not None and is_shown:
            agrees = _agrees(finding.predicted_low, finding.predicted_high, speedup)
        held.append(
            Held(
                code=finding.code,
                status=status,
                predicted=finding.predicted_speedup,
                predicted_low=finding.predicted_low,
                predicted_high=finding.predicted_high,
                measured=measured,
                agrees=agrees,
            )
        )
    old = {finding.code for finding in before.findings}
    held += [
        Held(
            code=finding.code,
            status="new",
            predicted=finding.predicted_speedup,
            predicted_low=finding.predicted_low,
            predicted_high=finding.predicted_high,
            measured=None,
            agrees=None,
        )
        for finding in after.findings
        if finding.code not in old
    ]
    return tuple(held)


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


def _together(before: CompareSide, held: Sequence[Held]) -> float | None:
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


def _notes(
    before: CompareSide,
    after: CompareSide,
    speedup: Speedup,
    first: Timed | None,
    second: Timed | None,
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
    if before.num_ranks and after.num_ranks and _width(before) != _width(after):
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
        if first.is_mean or second.is_mean:
            notes.append(
                "a kept diagnosis has the mean of its steps and not their median, so the means of "
                "both are compared"
            )
    fixed = [
        finding.code
        for finding in _held(before, after, speedup, profiled=profiled)
        if finding.status == "gone"
    ]
    if fixed and _is_host_slowed(before, after, profiled=profiled):
        notes.append(NOT_HELD)
    if len(fixed) > 1:
        notes.append(
            f"{len(fixed)} findings are gone at once ({', '.join(fixed)}): what was measured is of "
            "all of them together"
        )
    if (before.pieces is None) != (after.pieces is None):
        notes.append("operators could not be paired: only one of the two has a table of them")
    if (
        before.pieces is not None
        and after.pieces is not None
        and tells_modules(before.pieces) != tells_modules(after.pieces)
    ):
        notes.append(
            "modules were not compared: only one of the two recorded stacks (with_stack=True in "
            "the profiler)"
        )
    if before.knobs is None or after.knobs is None:
        which = "neither was" if before.knobs is None and after.knobs is None else "only one was"
        notes.append(f"settings were not compared: {which} recorded by `stepscope run`")
    return [*notes, ONE_RUN_EACH]
