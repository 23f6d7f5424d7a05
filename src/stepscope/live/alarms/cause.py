"""What it is that takes longer, where ranks' own times have risen: a part of the step, or the cores
that others have.

Steps before the rise are compared with those since, by medians; the host's counters likewise, a
sample a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from msgspec import Struct

from stepscope.core.numbers import ms_words, number_ranges
from stepscope.live.alarms.episodes import Trouble
from stepscope.live.alarms.level import LASTS_S, MIN_VALUES
from stepscope.live.alarms.steps import JobStep, RankStep
from stepscope.protocol.untrusted import finite

LATER = 0.15
"""Share of its own time by which a rank's must rise: three of the least deviations that level.py
counts with, and what the others then wait."""
SLOWER = 0.25
"""Where all ranks rise: a smaller jump is plain in `compare`, and no reason to call somebody. But
for the exchange: as it is a part of the step, it has become slower by far more."""
BEFORE_S = 30.0
"""Time of the steps that a rise is compared with: a level may have drifted before."""
MIN_PART = 0.5
"""Share of what a step takes more: the part that has so much of it is what is wrong."""
QUEUED_EXCHANGE = 0.25
"""Share of what an exchange takes longer: threads of their own carry it, which are queued for a
core as the training thread is, and are not sampled."""
PARTS = {
    "loader": "waiting for its loader",
    "exchange": "in its backward pass",
    "optimizer": "in its optimizer",
    "rest": "in its forward pass and around it",
}


class HostUse(Struct, frozen=True, kw_only=True):
    """One rank's process, over about a second."""

    at_s: float
    queued: float | None
    """Share of the time in which the main thread was ready and had no core."""
    cores: float | None
    is_on_device: bool


class _Change(Struct, frozen=True, kw_only=True):
    """What one rank's step takes more than before, in nanoseconds."""

    own: float
    outside: float
    """The exchange left out, in which all that wait for a rank seem slower."""
    parts: Mapping[str, float]
    queued: float | None
    computed: float | None
    """Time on cores."""

    def is_outside(self, least_ns: float) -> bool:
        return self.outside >= max(MIN_PART * self.own, least_ns)


def host_use(at_s: float, sample: Mapping[str, Any]) -> HostUse:
    used = [finite(sample.get(name)) for name in ("cpu_user_cores", "cpu_sys_cores")]
    cores = [value for value in used if value is not None]
    return HostUse(
        at_s=at_s,
        queued=finite(sample.get("main_thread_queued_share")),
        cores=sum(cores) if cores else None,
        is_on_device=bool(sample.get("devices") or sample.get("allocators")),
    )


def slow_trouble(
    ranks: tuple[int, ...],
    since_s: float,
    steps: Sequence[JobStep],
    samples: Mapping[int, Sequence[HostUse]],
    hosts: Mapping[int, str],
) -> Trouble | None:
    """None where it is too little to tell somebody."""
    before = [step for step in steps if since_s - BEFORE_S <= step.at_s < since_s]
    before = before or [step for step in steps if step.at_s < since_s]
    since = [step for step in steps if step.at_s >= since_s]
    if not before or not since:
        return None
    # The latest of them: noise may have begun before the fault did.
    recent = [step for step in since if step.at_s >= since[-1].at_s - LASTS_S]
    after = recent if len(recent) >= MIN_VALUES else since[-MIN_VALUES:]
    everyone = tuple(after[-1].ranks)
    changes = {
        rank: _change(rank, since_s, before, after, samples.get(rank, ())) for rank in everyone
    }
    length_before, length_after = _length(before), _length(after)
    is_coupled = len(everyone) > 1 and after[-1].is_coupled
    if is_coupled and length_after < length_before * (1 + LATER / 2):
        # The rank waits less for others, and the job is as fast as it was.
        return None
    late = ranks
    if is_coupled:
        # What the exchange takes longer all ranks share: no rank is late by it.
        least_ns = LATER * length_before
        outside = (rank for rank in ranks if changes[rank].is_outside(least_ns))
        late = tuple(outside) or _stand_out(changes, least_ns) or everyone
        if len(ranks) == len(everyone):
            late = _stand_out(changes, least_ns) or late
    most = max(late, key=lambda rank: changes[rank].own)
    change = changes[most]
    if is_coupled and change.own < LATER * length_after / 2:
        # Beside a rank that is told already: what waits for it seems a little slower too.
        return None
    is_job = len(late) == len(everyone)
    kind, words = _cause(change, is_job=is_job, is_coupled=is_coupled, num=len(late))
    least = LATER if kind == "bandwidth" else SLOWER
    if is_job and length_after < (1 + least) * length_before:
        return None
    words += f"; steps take {ms_words(length_after)}, {ms_words(length_before)} before"
    if kind in ("late-rank", "slow-group") and is_coupled:
        words += ", for the others wait for " + ("it" if len(late) == 1 else "them")
    if len(late) > 1 and not is_job:
        words += _shared_host(late, everyone, hosts)
    return Trouble(
        kind=kind,
        ranks=late,
        words=words,
        since_s=since_s,
        step=since[0].step,
        before=length_before / 1e6,
        after=length_after / 1e6,
        unit="ms",
    )


def late_trouble(
    late: tuple[int, ...],
    own: Mapping[int, float],
    usual: float,
    length: float,
    *,
    since_s: float,
    samples: Mapping[int, Sequence[HostUse]],
) -> Trouble:
    """Trouble of ranks that were late from the start: their peers' own time, `usual`, is the
    measure."""
    most = max(late, key=lambda rank: own[rank])
    more = own[most] - usual
    words = (
        f"{ms_words(more)} of each {ms_words(length)} step longer than the others, which wait, "
        "from the start"
    )
    kind = "late-rank" if len(late) == 1 else "slow-group"
    shares = {rank: _mean([use.queued for use in uses]) for rank, uses in samples.items()}
    mine = shares.get(most)
    others = [share for rank, share in shares.items() if rank not in late and share is not None]
    if mine is not None and others and (mine - median(others)) * length >= MIN_PART * more:
        kind, words = "busy-machine", words + _no_core(min((mine - median(others)) * length, more))
    return Trouble(
        kind=kind,
        ranks=late,
        words=words,
        since_s=since_s,
        before=(length - more) / 1e6,
        after=length / 1e6,
        unit="ms",
    )


def _no_core(ns: float) -> str:
    return f"; for {ms_words(ns)} of it the training thread is ready and has no core"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _cause(change: _Change, *, is_job: bool, is_coupled: bool, num: int) -> tuple[str, str]:
    """The kind, and what takes longer."""
    more = f"{ms_words(change.own)} more a step"
    is_exchange = is_job and is_coupled and change.parts["exchange"] >= MIN_PART * change.own
    if change.queued is not None and change.queued >= _enough_queued(change, is_coupled=is_coupled):
        return "busy-machine", more + _no_core(min(change.queued, change.own))
    part = max(change.parts, key=lambda name: change.parts[name])
    if change.parts["loader"] >= MIN_PART * change.own:
        return "loader", f"{more} waiting for its loader"
    if is_exchange and change.computed is not None and change.computed < MIN_PART * change.own:
        return "bandwidth", (
            f"{more} in the backward pass, in which ranks exchange gradients and none is late, and "
            f"{change.computed / 1e6:+.2g} ms of it on cores: the exchange takes longer"
        )
    if is_job:
        return "step-time", f"{more}, most of it {PARTS[part]}"
    return ("late-rank" if num == 1 else "slow-group"), f"{more}, most of it {PARTS[part]}"


def _enough_queued(change: _Change, *, is_coupled: bool) -> float:
    """Cores that others must have for them to be what is wrong."""
    outside = max(min(change.outside, change.own), 0.0) if is_coupled else change.own
    return MIN_PART * outside + QUEUED_EXCHANGE * (change.own - outside)


def _stand_out(changes: Mapping[int, _Change], least_ns: float) -> tuple[int, ...]:
    """Where all ranks seem slower: those that are so outside the exchange too, or compute longer,
    or have no core, by as much as a late rank must be, and as no others do."""

    def outside(change: _Change) -> float:
        return change.outside

    def computed(change: _Change) -> float:
        return change.computed or 0.0

    def queued(change: _Change) -> float:
        return change.queued or 0.0

    for more in (outside, computed, queued):
        values = {rank: more(change) for rank, change in changes.items()}
        rise = median(change.own for change in changes.values())
        enough = max(MIN_PART * rise, least_ns)
        high = tuple(rank for rank, value in values.items() if value >= enough)
        low = [rank for rank, value in values.items() if value < enough / 2]
        if high and len(high) + len(low) == len(changes) and low:
            return high
    return ()


def _change(
    rank: int,
    since_s: float,
    before: Sequence[JobStep],
    after: Sequence[JobStep],
    samples: Sequence[HostUse],
) -> _Change:
    def risen(name: str) -> float:
        was, now = (
            median(getattr(step.ranks[rank], name) for step in steps) for steps in (before, after)
        )
        return float(now - was)

    # A sample tells of the second before it.
    old = [use for use in samples if since_s - BEFORE_S <= use.at_s < since_s]
    new = [use for use in samples if use.at_s >= since_s + 1]
    length_before, length_after = _length(before), _length(after)
    queued = _mean_rise(
        [use.queued for use in old], [use.queued for use in new], length_before, length_after
    )
    computed = _mean_rise(
        [use.cores for use in old], [use.cores for use in new], length_before, length_after
    )
    if any(use.is_on_device for use in new):
        # The host of a device spins while it waits, and computes nothing.
        computed = 0.0
    return _Change(
        own=risen("own"),
        outside=risen("outside"),
        parts={name: risen(name) for name in PARTS},
        queued=queued,
        computed=computed,
    )


def _mean_rise(
    old: Sequence[float | None], new: Sequence[float | None], before_ns: float, after_ns: float
) -> float | None:
    """What a share of the time comes to more in a step."""
    was, now = _mean(old), _mean(new)
    return None if was is None or now is None else now * after_ns - was * before_ns


def _length(steps: Sequence[JobStep]) -> float:
    parts: list[RankStep] = [part for step in steps for part in step.ranks.values()]
    return float(median(part.length for part in parts))


def _shared_host(late: tuple[int, ...], everyone: tuple[int, ...], hosts: Mapping[int, str]) -> str:
    names = {hosts.get(rank) for rank in late}
    others = {hosts.get(rank) for rank in everyone if rank not in late}
    name = next(iter(names))
    if len(names) > 1 or name is None or name in others:
        return ""
    return f"; they are all of {name[:60]}, ranks {number_ranges(late)}"
