"""Is this job fit to be left alone? A few questions to the first steps of all its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from msgspec import Struct

from stepscope.core.diagnosis import Finding
from stepscope.core.numbers import ms_words, number_ranges
from stepscope.live.samples import last_step
from stepscope.live.shapes.triage import BAD, OK, UNKNOWN, Check, Health, RankTimes
from stepscope.readers.run_folder.tail import RankTail
from stepscope.readers.run_folder.values import Row

STRAGGLERS = ("late-rank", "uneven-work", "throttled-gpu")
"""Findings that name ranks which the others wait for."""
SLOWED = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
"""Reasons of the driver that say a device is unwell;
a power cap or an idle clock says nothing of the kind."""
SPREAD = 0.1
"""Difference between ranks' steps, as a share of the middle one: ranks in step differ by far
less."""
MIN_STEPS = 3
PARTS = {"loader": "wait_ns", "backward": "backward_ns", "optimizer": "optimizer_ns"}
"""Parts of a step by the column of a row."""


class Outcome(Struct, frozen=True, kw_only=True):
    """How the trial went."""

    ranks: tuple[RankTail, ...]
    expected: frozenset[int]
    """Ranks that should have made steps, as far as those that did have recorded it."""
    num_steps: int
    """Steps that every rank was to make."""
    exit_code: int | None
    """None where the job ran until we ended it."""
    has_timed_out: bool
    silent: tuple[int, ...]
    """Ranks that had stopped writing samples when we ended it."""
    findings: tuple[Finding, ...] | None
    """None where there was no diagnosis."""
    not_diagnosed: str = ""
    """Why."""


def expected_ranks(tails: Sequence[RankTail]) -> frozenset[int]:
    """The whole world; where only one of its machines is seen here
    and its launcher numbered its ranks, those of that machine."""
    world = max(
        (size for tail in tails if isinstance(size := tail.metadata.get("world_size"), int)),
        default=0,
    )
    if len({tail.metadata.get("host") for tail in tails}) != 1:
        return frozenset(range(world))
    local: set[int] = set()
    for tail in tails:
        first, num = tail.metadata.get("local_rank"), tail.metadata.get("local_world_size")
        if not isinstance(first, int) or not isinstance(num, int):
            return frozenset(range(world))
        local |= set(range(tail.rank - first, tail.rank - first + num))
    return frozenset(local)


def health(outcome: Outcome) -> Health:
    if not outcome.ranks:
        return Health(checks=(_nothing(outcome),))
    checks = (
        _ended(outcome),
        _stepped(outcome),
        _silent(outcome),
        _straggler(outcome),
        _spread(outcome),
        _devices(outcome),
    )
    times = (rank_times(tail) for tail in sorted(outcome.ranks, key=lambda tail: tail.rank))
    return Health(
        checks=tuple(check for check in checks if check is not None),
        ranks=tuple(each for each in times if each is not None),
    )


def _nothing(outcome: Outcome) -> Check:
    code = outcome.exit_code
    if code:
        return Check("job", BAD, f"it ended with exit code {code} before any rank made a step")
    if code == 0:
        return Check(
            "job", UNKNOWN, "it ended without an optimizer step: there is nothing to judge"
        )
    return Check(
        "job",
        UNKNOWN,
        "no rank made a step in the time given; it may need more (--timeout), or hang",
    )


def _ended(outcome: Outcome) -> Check:
    if outcome.exit_code:
        return Check("job", BAD, f"it failed with exit code {outcome.exit_code}")
    if outcome.exit_code is None:
        return Check("job", OK, "ran until it was ended")
    return Check("job", OK, "ended by itself, exit code 0")


def _stepped(outcome: Outcome) -> Check:
    expected = len(outcome.expected)
    missing = sorted(outcome.expected - {tail.rank for tail in outcome.ranks})
    name = "ranks"
    if missing:
        return Check(name, BAD, f"{_ranks(missing)} of {expected} made no step")
    behind = [tail.rank for tail in outcome.ranks if (last_step(tail) or 0) < outcome.num_steps]
    if behind and outcome.has_timed_out:
        return Check(
            name, BAD, f"{_ranks(behind)} did not reach step {outcome.num_steps} in the time given"
        )
    if behind:
        reached = min(last_step(tail) or 0 for tail in outcome.ranks)
        return Check(
            name,
            UNKNOWN,
            f"the job made {reached} steps, fewer than {outcome.num_steps}: too few to judge",
        )
    return Check(name, OK, f"{expected} of {expected} stepped")


def _silent(outcome: Outcome) -> Check:
    off = [tail for tail in outcome.ranks if tail.problem is not None]
    if outcome.silent:
        return Check("signs of life", BAD, f"{_ranks(outcome.silent)} went silent")
    if off:
        words = (
            f"the capture switched itself off on {_ranks([tail.rank for tail in off])}: "
            f"{off[0].problem}"
        )
        return Check("signs of life", UNKNOWN, words)
    return Check("signs of life", OK, "every rank wrote samples to the end")


def _straggler(outcome: Outcome) -> Check | None:
    if len(outcome.expected | {tail.rank for tail in outcome.ranks}) < 2:
        return None
    name = "straggler"
    if outcome.findings is None:
        return Check(
            name, UNKNOWN, f"not judged: {outcome.not_diagnosed or 'nothing was recorded'}"
        )
    stragglers = [finding for finding in outcome.findings if finding.code in STRAGGLERS]
    if stragglers:
        return Check(
            name,
            BAD,
            "; ".join(
                f"{finding.code} ({_ranks(finding.ranks)}): {finding.summary}"
                for finding in stragglers
            ),
        )
    return Check(name, OK, "no rank keeps the others waiting")


def _spread(outcome: Outcome) -> Check | None:
    if len(outcome.ranks) < 2:
        return None
    steps = {tail.rank: ns for tail in outcome.ranks if (ns := early_step_ns(tail)) is not None}
    name = "step times"
    if len(steps) < 2:
        return Check(name, UNKNOWN, "too few steps were timed to compare ranks")
    middle = median(steps.values())
    apart = {rank: ns / middle - 1 for rank, ns in steps.items()}
    far = [rank for rank, share in apart.items() if abs(share) > SPREAD]
    most = max(apart.values(), key=abs)
    words = f"{ms_words(middle)} in the middle, {most:+.1%} at most"
    return Check(name, BAD if far else OK, f"{words}: {_ranks(far)} apart" if far else words)


def _devices(outcome: Outcome) -> Check:
    troubles: dict[str, list[int]] = {}
    num_asked = 0
    for tail in outcome.ranks:
        for sample in tail.samples:
            num_asked += bool(sample.get("devices"))
            for trouble in _troubles(sample):
                troubles.setdefault(trouble, []).append(tail.rank)
    if troubles:
        words = "; ".join(f"{trouble} ({_ranks(ranks)})" for trouble, ranks in troubles.items())
        return Check("devices", BAD, words)
    return Check(
        "devices",
        OK,
        "no errors reported" if num_asked else "no device counters here; no errors reported",
    )


def _troubles(sample: dict[str, Any]) -> list[str]:
    troubles = []
    for device in sample.get("devices") or []:
        reasons = device.get("throttle_reasons") if isinstance(device, dict) else None
        troubles += [f"clocks lowered: {reason}" for reason in reasons or [] if reason in SLOWED]
    for allocator in sample.get("allocators") or []:
        if isinstance(allocator, dict) and allocator.get("num_ooms"):
            troubles.append("out of memory")
    troubles += [str(note) for note in sample.get("notes") or [] if "lost" in str(note).lower()]
    return troubles


def early_step_ns(tail: RankTail) -> float | None:
    """The middle of the steps that no profiler slowed, the very first left out:
    it compiles and allocates."""
    lengths = [row["dur_ns"] or 0 for row in _early_rows(tail)]
    return median(lengths) if len(lengths) >= MIN_STEPS else None


def rank_times(tail: RankTail) -> RankTimes | None:
    """A rank's own figures; None where no step of it was timed."""
    rows = _early_rows(tail)
    lengths = [row["dur_ns"] or 0 for row in rows]
    if not lengths:
        return None
    parts = {}
    for name, column in PARTS.items():
        known = [ns for row in rows if (ns := row[column]) is not None]
        if known:
            parts[name] = fmean(known)
    return RankTimes(
        rank=tail.rank,
        num_steps=len(lengths),
        mean_ns=fmean(lengths),
        low_ns=min(lengths),
        high_ns=max(lengths),
        parts_ns=parts,
    )


def _early_rows(tail: RankTail) -> list[Row]:
    return [
        row
        for row in tail.rows
        if row["state"] in (0, 1) and (row["step"] or 0) > 1 and row["dur_ns"]
    ]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(set(ranks)) == 1 else f"ranks {number_ranges(ranks)}"
