"""A running job in the terminal: the answer first, then a line for each rank or group of ranks, then the alerts."""

from __future__ import annotations

import io
from datetime import datetime

from rich.console import Console, Group
from rich.text import Text

from stepscope.core.live import RUNS, SILENT, STALLED, LiveView, RankGroup, RankLive
from stepscope.core.numbers import number_ranges
from stepscope.report.document.terminal import MAX_WIDTH, MIN_WIDTH, PLAIN_WIDTH
from stepscope.report.sheet import Cell, Column, Sheet
from stepscope.report.units import NBSP, gigabytes, ms, number, percent, plural

MAX_ALERTS = 5
SLOWER = 1.1
"""Times the baseline, from which a step time is marked."""


def render_live(view: LiveView, *, width: int = PLAIN_WIDTH) -> str:
    """One frame as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        console.print(frame(view, console), end="")
    return captured.get()


def frame(view: LiveView, console: Console) -> Group:
    """One frame, for a console to print or to keep in its place."""
    utf8 = "utf" in console.encoding.lower()
    fancy = utf8 and console.is_terminal and console.color_system is not None
    sheet = Sheet(max(MIN_WIDTH, min(console.width, MAX_WIDTH)), fancy=fancy, ascii_only=not utf8)
    _draw(sheet, view)
    for line in sheet.lines:
        line.no_wrap, line.overflow = True, "ignore"
    return Group(*sheet.lines)


def _draw(sheet: Sheet, view: LiveView) -> None:
    sheet.prose(_state_words(view), style="dim")
    sheet.blank()
    sheet.prose(_pace_words(view), style="bold")
    sheet.entry("bound so far", view.bound)
    if view.ranks:
        _draw_ranks(sheet, view)
    _draw_alerts(sheet, view)


def _state_words(view: LiveView) -> str:
    lasted = "" if view.running_s is None else f" for {_time(view.running_s)}"
    ended = f"Ended with exit code {view.exit_code}, ran{lasted}" if view.exit_code is not None else f"Running{lasted}"
    return f"{ended}: {view.path}"


def _pace_words(view: LiveView) -> str:
    if not view.ranks:
        return "No rank has made a step yet."
    step = max((rank.step for rank in view.ranks if rank.step is not None), default=None)
    words = "Step not told" if step is None else f"Step {step}"
    if view.step_ns is not None:
        words += f", {ms(view.step_ns)} a step, {number(1e9 / view.step_ns)}{NBSP}steps/s"
    if view.samples_per_s is not None:
        words += f", {number(view.samples_per_s)}{NBSP}samples/s"
    missing = 0 if view.world_size is None else view.world_size - len(view.ranks)
    return words + (f"; {plural(missing, 'rank')} of {view.world_size} not seen here" if missing > 0 else "")


def _draw_ranks(sheet: Sheet, view: LiveView) -> None:
    sheet.heading("Ranks", "those alike on one line" if len(view.groups) < len(view.ranks) else "")
    has_device = any(rank.gpu_util is not None or rank.device_bytes is not None for rank in view.ranks)
    columns = (
        Column(title="rank", shrinks=True),
        Column(title="step", right=True),
        Column(title="step time", right=True),
        Column(title="baseline", right=True),
        Column(title="loader", right=True),
        *((Column(title="gpu", right=True), Column(title="device GB", right=True)) if has_device else ()),
        Column(title="host GB", right=True),
    )
    sheet.table(columns, [_row(group, has_device) for group in view.groups])
    for group in view.groups:
        if words := _state_of(group):
            sheet.prose(words, indent=2)
    if view.num_outliers_left_out:
        sheet.prose(f"and {plural(view.num_outliers_left_out, 'more rank')} unlike the others", indent=2, style="dim")


def _row(group: RankGroup, has_device: bool) -> tuple[Cell, ...]:
    one, many = group.one, len(group.ranks) > 1
    name = f"{len(group.ranks)} alike" if many else str(one.rank)
    is_slower = one.step_ns is not None and one.baseline_ns is not None and one.step_ns > SLOWER * one.baseline_ns
    step_time = Text("-" if one.step_ns is None else ms(one.step_ns), "bold" if is_slower else "")
    device = (_percent(one.gpu_util), _device(one)) if has_device else ()
    return (
        name,
        "-" if one.step is None else str(one.step),
        step_time,
        "-" if one.baseline_ns is None else ms(one.baseline_ns),
        _percent(one.wait_share),
        *device,
        _bytes(one.rss_bytes),
    )


def _state_of(group: RankGroup) -> str:
    """Of ranks that do not run as they should, or not as the others do."""
    one = group.one
    who = f"rank {one.rank}" if len(group.ranks) == 1 else f"ranks {number_ranges(group.ranks)}"
    if one.state == RUNS:
        return f"{who}: unlike the others" if group.is_outlier else ""
    words = {SILENT: "silent", STALLED: "no step"}.get(one.state, "the capture switched itself off")
    return f"{who}: {words}" + ("" if one.quiet_s is None else f" for {_time(one.quiet_s)}")


def _draw_alerts(sheet: Sheet, view: LiveView) -> None:
    if not view.alerts:
        return
    sheet.heading("Alerts", f"the last {MAX_ALERTS} of {len(view.alerts)}" if len(view.alerts) > MAX_ALERTS else "")
    for alert in view.alerts[-MAX_ALERTS:]:
        at = datetime.fromtimestamp(alert.at_wall_ns / 1e9).astimezone()
        step = "" if alert.step is None else f"step {alert.step}, "
        sheet.prose(f"{step}{alert.words}", indent=11, lead=f"  {at:%H:%M:%S}", lead_style="dim")


def _percent(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _bytes(size: int | None) -> str:
    return "-" if size is None else gigabytes(size)


def _device(one: RankLive) -> str:
    of = "" if one.device_total_bytes is None else f"/{gigabytes(one.device_total_bytes)}"
    return _bytes(one.device_bytes) + of


def _time(seconds: float) -> str:
    """90 as `1 min 30 s`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}{NBSP}s"
    if whole < 3600:
        return f"{whole // 60}{NBSP}min {whole % 60}{NBSP}s"
    return f"{whole // 3600}{NBSP}h {whole % 3600 // 60}{NBSP}min"
