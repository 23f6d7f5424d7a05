"""A running job: the answer first, then a line for each rank or group of ranks, then the alerts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from stepscope.core.numbers import number_ranges
from stepscope.live.shapes.alert import Alert
from stepscope.live.shapes.live import RUNS, SILENT, STALLED, LiveView, RankGroup, RankLive
from stepscope.report.document.blocks import (
    Block,
    Cell,
    Column,
    Facts,
    Headline,
    Prose,
    Section,
    Table,
    as_document,
    numbers,
)
from stepscope.report.words import NBSP, gigabytes, ms, number, percent, plural

MAX_ALERTS = 5
SLOWER = 1.1
"""Times the baseline, from which a step time is marked."""


@as_document
def live_document(view: LiveView) -> Iterator[Block]:
    """One frame."""
    yield Headline(command="stepscope watch", text=_pace_words(view), about=(_state_words(view),))
    yield Facts((("bound so far", view.bound),))
    if view.ranks:
        yield _ranks_section(view)
        if any(rank.forward_ns is not None for rank in view.ranks):
            yield _parts_section(view)
    if view.alerts:
        num = len(view.alerts)
        if view.active:
            yield Section(title="Wrong just now", blocks=(Facts(tuple(map(_active, view.active))),))
        yield Section(
            title="Alerts",
            aside=f"the last {MAX_ALERTS} of {num}" if num > MAX_ALERTS else "",
            blocks=(Facts(tuple(map(_alert, view.alerts[-MAX_ALERTS:]))),),
        )


def _state_words(view: LiveView) -> str:
    lasted = "" if view.running_s is None else f" for {_time(view.running_s)}"
    ended = (
        f"Ended with exit code {view.exit_code}, ran{lasted}"
        if view.exit_code is not None
        else f"Running{lasted}"
    )
    return f"{ended}: {view.path}"


def _pace_words(view: LiveView) -> str:
    if not view.ranks:
        return "No rank has made a step yet."
    step = max((rank.step for rank in view.ranks if rank.step is not None), default=None)
    words = "Step not known" if step is None else f"Step {step}"
    if view.step_ns is not None:
        words += f", {ms(view.step_ns)} a step, {number(1e9 / view.step_ns)}{NBSP}steps/s"
    if view.samples_per_s is not None:
        words += f", {number(view.samples_per_s)}{NBSP}samples/s"
    missing = 0 if view.world_size is None else view.world_size - len(view.ranks)
    return words + (
        f"; {plural(missing, 'rank')} of {view.world_size} not seen here" if missing > 0 else ""
    )


def _ranks_section(view: LiveView) -> Section:
    has_device = any(
        rank.gpu_util is not None or rank.device_bytes is not None for rank in view.ranks
    )
    of_device = ("gpu", "device GB") if has_device else ()
    titles = ("step", "step time", "varies", "baseline", "loader", *of_device, "host GB")
    table = Table(
        columns=(Column(title="rank", fit="shorten"), *numbers(*titles)),
        rows=tuple(_row(group, has_device) for group in view.groups),
    )
    states = (Prose(words) for group in view.groups if (words := _state_of(group)))
    left_out = view.num_outliers_left_out
    rest = (
        (Prose(f"and {plural(left_out, 'more rank')} unlike the others", "quiet"),)
        if left_out
        else ()
    )
    aside = "those alike on one line" if len(view.groups) < len(view.ranks) else ""
    return Section(title="Ranks", aside=aside, blocks=(table, *states, *rest))


def _parts_section(view: LiveView) -> Section:
    """Where the last steps went, without a trace."""
    has_loss = any(rank.loss is not None for rank in view.ranks)
    titles = ("loader", "forward", "backward", "optimizer", "for others")
    table = Table(
        columns=(
            Column(title="rank", fit="shorten"),
            *numbers(*titles, *(("loss",) if has_loss else ())),
        ),
        rows=tuple(_parts_row(group, has_loss) for group in view.groups),
    )
    return Section(title="Where a step goes", aside="ms, no profiler", blocks=(table,))


def _parts_row(group: RankGroup, has_loss: bool) -> tuple[str | Cell, ...]:
    rank, many = group.typical, len(group.ranks) > 1
    parts = rank.wait_ns, rank.forward_ns, rank.backward_ns, rank.optimizer_ns, rank.others_ns
    loss = () if not has_loss else ("-" if rank.loss is None else f"{rank.loss:.4g}",)
    return (
        f"{len(group.ranks)} alike" if many else str(rank.rank),
        *("-" if ns is None else f"{ns / 1e6:.1f}" for ns in parts),
        *loss,
    )


def _row(group: RankGroup, has_device: bool) -> tuple[str | Cell, ...]:
    rank, many = group.typical, len(group.ranks) > 1
    name = f"{len(group.ranks)} alike" if many else str(rank.rank)
    is_slower = (
        rank.step_ns is not None
        and rank.baseline_ns is not None
        and rank.step_ns > SLOWER * rank.baseline_ns
    )
    step_time = Cell(
        "-" if rank.step_ns is None else ms(rank.step_ns), "strong" if is_slower else ""
    )
    device = (_percent(rank.gpu_util), _device(rank)) if has_device else ()
    return (
        name,
        "-" if rank.step is None else str(rank.step),
        step_time,
        "-" if rank.step_deviation is None else f"±{percent(rank.step_deviation)}",
        "-" if rank.baseline_ns is None else ms(rank.baseline_ns),
        _percent(rank.wait_share),
        *device,
        _bytes(rank.rss_bytes),
    )


def _state_of(group: RankGroup) -> str:
    """State of ranks that do not run as they should, or not as the others do."""
    rank = group.typical
    who = f"rank {rank.rank}" if len(group.ranks) == 1 else f"ranks {number_ranges(group.ranks)}"
    if rank.state == RUNS:
        return f"{who}: unlike the others" if group.is_outlier else ""
    words = {SILENT: "silent", STALLED: "no step"}.get(
        rank.state, "the capture switched itself off"
    )
    return f"{who}: {words}" + ("" if rank.quiet_s is None else f" for {_time(rank.quiet_s)}")


def _alert(alert: Alert) -> tuple[str, str]:
    at = datetime.fromtimestamp(alert.at_wall_ns / 1e9).astimezone()
    step = "" if alert.step is None else f"step {alert.step}, "
    return f"{at:%H:%M:%S}", f"{step}{alert.words}"


def _active(alert: Alert) -> tuple[str, str]:
    return alert.kind, f"{alert.words}. {alert.action}"


def _percent(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _bytes(size: int | None) -> str:
    return "-" if size is None else gigabytes(size)


def _device(rank: RankLive) -> str:
    of = "" if rank.device_total_bytes is None else f"/{gigabytes(rank.device_total_bytes)}"
    return _bytes(rank.device_bytes) + of


def _time(seconds: float) -> str:
    """90 as `1 min 30 s`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}{NBSP}s"
    if whole < 3600:
        return f"{whole // 60}{NBSP}min {whole % 60}{NBSP}s"
    return f"{whole // 3600}{NBSP}h {whole % 3600 // 60}{NBSP}min"
