"""From the ends of a run's files to what a glance should show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median, pstdev
from typing import Any

from msgspec.structs import replace

from stepscope.analyses.run.samples import gpu_util, rss_bytes
from stepscope.live.alarms.loss import losses_of
from stepscope.live.alarms.steps import StepTable
from stepscope.live.liveness import liveness
from stepscope.live.samples import device_bytes, device_total_bytes, last_step, usual_ns
from stepscope.live.shapes.alert import Alert
from stepscope.live.shapes.live import RUNS, LiveView, RankGroup, RankLive
from stepscope.protocol.untrusted import whole
from stepscope.readers.run_folder.tail import RankTail, RunTail
from stepscope.readers.run_folder.values import Row

MIN_FOR_DEVIATION = 5
"""Steps."""
NUM_NOW = 20
"""Steps that are `now`."""
NUM_UTIL = 5
"""Samples over which the device's busy time is averaged."""
WAITING = 0.3
"""Share of a step from which its waits for the loader limit it,
where nothing says that the device was busy meanwhile."""
BUSY, IDLE = 0.9, 0.6
"""The device limits the run when it is busy more than this, and something else does when less."""
STILL_S = 10.0
"""Seconds without a step from which the view says so; an alert waits longer, for an evaluation
makes no steps either."""
MAX_LINES = 16
"""Ranks with a line of their own."""
UNLIKE = 0.1
"""Ranks whose step differs by more from the middle rank's,
or the share of it spent waiting, stand out."""


def live_view(run: RunTail, alerts: Sequence[Alert] = ()) -> LiveView:
    parts = step_parts(run.ranks)
    ranks = tuple(_rank(tail, run, parts.get(tail.rank)) for tail in run.ranks)
    groups, num_left_out = grouped(ranks)
    command, code = run.metadata.get("command"), whole(run.metadata.get("exit_code"))
    begun = whole(run.metadata.get("started_wall_ns"))
    ended = whole(run.metadata.get("ended_wall_ns"))
    return LiveView(
        path=str(run.path),
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        exit_code=code,
        running_s=None if begun is None else ((ended or run.wall_ns) - begun) / 1e9,
        ranks=ranks,
        groups=groups,
        num_outliers_left_out=num_left_out,
        world_size=max(
            (
                size
                for tail in run.ranks
                if (size := whole(tail.metadata.get("world_size"))) is not None
            ),
            default=None,
        ),
        bound=_bound(run, ranks),
        alerts=tuple(alerts),
    )


def step_parts(tails: Sequence[RankTail]) -> dict[int, dict[str, float]]:
    """Medians by rank of what the last steps that all ranks made consist of; empty where they are
    too few. `others` is only there where ranks wait for one another."""
    steps = StepTable().add([replace(tail, new_rows=tail.rows) for tail in tails])[-NUM_NOW:]
    parts = {}
    for rank in steps[-1].ranks if steps else ():
        mine = [step.ranks[rank] for step in steps]
        names = {"forward": "rest", "backward": "exchange", "optimizer": "optimizer"}
        if steps[-1].is_coupled:
            names["others"] = "waited"
        parts[rank] = {
            name: float(median(getattr(part, field) for part in mine))
            for name, field in names.items()
        }
    return parts


def _last_loss(tail: RankTail) -> float | None:
    for sample in reversed(tail.samples):
        if losses := losses_of(sample):
            return losses[-1][1]
    return None


def _rank(tail: RankTail, run: RunTail, parts: dict[str, float] | None) -> RankLive:
    parts = parts or {}
    state, quiet_s = liveness(tail, run.wall_ns, STILL_S)
    if isinstance(run.metadata.get("exit_code"), int):
        state, quiet_s = RUNS, None
    lengths, waits, rows = _now(tail)
    step_ns = median(lengths) if lengths else _sampled_ns(tail)
    share = min(1.0, sum(waits) / total) if (total := sum(lengths)) and waits else None
    baseline = [length for row in tail.head if (length := usual_ns(row)) is not None]
    utils = [util for sample in tail.samples[-NUM_UTIL:] if (util := gpu_util(sample)) is not None]
    last: dict[str, Any] = tail.samples[-1] if tail.samples else {}
    batches = [row["num_batches"] or 0 for row in rows]
    batch_size = _batch_size(tail.metadata)
    items = batch_size * fmean(batches) if batch_size and any(batches) else None
    return RankLive(
        rank=tail.rank,
        state=state,
        quiet_s=quiet_s,
        step=last_step(tail),
        step_ns=step_ns,
        step_deviation=pstdev(lengths) / fmean(lengths)
        if len(lengths) >= MIN_FOR_DEVIATION and any(lengths)
        else None,
        baseline_ns=median(baseline) if baseline else None,
        wait_share=share,
        wait_ns=fmean(waits) if waits else None,
        samples_per_s=items * 1e9 / fmean(lengths) if items and lengths else None,
        gpu_util=fmean(utils) if utils else None,
        device_bytes=device_bytes(last),
        device_total_bytes=device_total_bytes(last),
        rss_bytes=rss_bytes(last),
        loss=_last_loss(tail),
        forward_ns=parts.get("forward"),
        backward_ns=parts.get("backward"),
        optimizer_ns=parts.get("optimizer"),
        others_ns=parts.get("others"),
    )


def _now(tail: RankTail) -> tuple[list[float], list[float], list[Row]]:
    """Lengths and waits of the last steps:
    one by one where they are written so, else the mean of the last stretch."""
    stretch = tail.stretches[-1] if tail.stretches else None
    usual = [row for row in tail.rows if usual_ns(row) is not None] or [
        row for row in tail.rows if row["state"] == 1
    ][1:]
    rows = usual[-NUM_NOW:]
    last = rows[-1]["step"] or 0 if rows else -1
    num = (stretch["num_steps"] or 0) if stretch else 0
    if stretch and num and (stretch["first_step"] or 0) > last:
        length = ((stretch["to_ns"] or 0) - (stretch["from_ns"] or 0)) / num
        return [length], [(stretch["wait_ns"] or 0) / num], rows
    lengths = [float(usual_ns(row) or row["dur_ns"] or 0) for row in rows]
    return lengths, [float(row["wait_ns"] or 0) for row in rows], rows


def _sampled_ns(tail: RankTail) -> float | None:
    """Step time by the step numbers of the samples, before the first rows are written."""
    pairs = [(sample.get("at_ns"), sample.get("step")) for sample in tail.samples]
    timed = [
        (time_ns, step)
        for time_ns, step in pairs
        if isinstance(time_ns, int) and isinstance(step, int)
    ]
    if len(timed) < 2 or timed[-1][1] <= timed[0][1]:
        return None
    return (timed[-1][0] - timed[0][0]) / (timed[-1][1] - timed[0][1])


def _batch_size(recorded: dict[str, Any]) -> int | None:
    """Batch size of the loader that feeds the steps, or of the only one; of its iterator, which is
    all that is left of a loader that nobody keeps: `for batch in DataLoader(...)`."""
    loaders: list[dict[str, Any]] = recorded.get("loaders") or []
    feeding = [loader for loader in loaders if loader.get("is_feeding")] or (
        loaders if len(loaders) == 1 else []
    )
    given = [*feeding, recorded.get("loader_iter") or {}]
    return whole(given[0].get("batch_size"))


def _bound(run: RunTail, ranks: Sequence[RankLive]) -> str:
    """What limits the run, as far as it is known without a recording;
    the diagnosis' word where there is one."""
    verdict = (run.diagnosis or {}).get("verdict")
    if isinstance(verdict, dict) and verdict.get("bound"):
        return f"{verdict['bound']} (diagnosed): {verdict.get('summary', '')}"
    waits = _middle([rank.wait_share for rank in ranks])
    util = _middle([rank.gpu_util for rank in ranks])
    recorded = sum(1 for tail in run.ranks if tail.num_windows)
    hint = ""
    if recorded:
        hint = f"; {recorded} of {len(ranks)} ranks are recorded: stepscope diagnose {run.path}"
    if util is not None and util >= BUSY:
        return f"the device: busy {util:.0%} of the time{hint}"
    if waits is not None and waits >= WAITING:
        return f"the input: {waits:.0%} of a step is spent waiting for the loader{hint}"
    if util is not None and util < IDLE and waits is not None:
        limit = "the host, copies or communication"
        return f"not the device ({util:.0%} busy), not the loader ({waits:.0%}): {limit}{hint}"
    return f"not known{hint}" if hint else "not known before a recording"


def grouped(ranks: Sequence[RankLive]) -> tuple[tuple[RankGroup, ...], int]:
    """Each rank for itself where they are few;
    else those alike on one line, and after it those that stand out."""
    if len(ranks) <= MAX_LINES:
        return tuple(RankGroup(ranks=(rank.rank,), typical=rank) for rank in ranks), 0
    state, _ = Counter(rank.state for rank in ranks).most_common(1)[0]
    step = _middle([rank.step_ns for rank in ranks])
    waits = _middle([rank.wait_share for rank in ranks])
    alike = [rank for rank in ranks if rank.state == state and _is_alike(rank, step, waits)]
    numbers = dict.fromkeys(rank.rank for rank in alike)
    outliers = [rank for rank in ranks if rank.rank not in numbers]
    others = sorted(outliers, key=lambda rank: (rank.state == RUNS, -_distance(rank, step)))
    middle = sorted(alike, key=lambda rank: rank.step_ns or 0.0)[
        len(alike) // 2 : len(alike) // 2 + 1
    ]
    shown = [RankGroup(ranks=tuple(numbers), typical=rank) for rank in middle]
    shown += [
        RankGroup(ranks=(rank.rank,), typical=rank, is_outlier=True)
        for rank in others[: MAX_LINES - len(shown)]
    ]
    return tuple(shown), len(others) - len([group for group in shown if group.is_outlier])


def _is_alike(rank: RankLive, step_ns: float | None, waits: float | None) -> bool:
    apart = 0.0 if rank.wait_share is None or waits is None else abs(rank.wait_share - waits)
    return _distance(rank, step_ns) <= UNLIKE and apart <= UNLIKE


def _distance(rank: RankLive, step_ns: float | None) -> float:
    """Distance from the middle rank, as a share of its step."""
    return 0.0 if rank.step_ns is None or not step_ns else abs(rank.step_ns / step_ns - 1)


def _middle(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None
