"""How long the step took in one run after another of the same command, as points of a picture."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from stepscope.core.contract.runs import RunEntry
from stepscope.report.words import ms, number, plural

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 180, 56, 24, 12, 30
MAX_TRENDS = 2
"""Commands with a picture, those that ran last; another one is chosen above the list."""
MAX_POINTS = 200
"""The newest ones."""
COMMIT_WIDTH = 100
"""Width of a commit's first characters, with the room around them; one for which there is no room
stands in the table alone."""
NARROW = 2
"""Times as much room they take on a phone, where every second one is left out."""
COMMIT_CHARS = 8


def trends_of(runs: Sequence[RunEntry]) -> list[dict[str, Any]]:
    """A picture for each command that was diagnosed more than once; `runs` are the newest first."""
    by_command: dict[tuple[str, ...], list[RunEntry]] = defaultdict(list)
    for run in runs:
        if run.step_ms is not None and run.command:
            by_command[run.command].append(run)
    many = [alike[:MAX_POINTS][::-1] for alike in by_command.values() if len(alike) > 1]
    return [_trend(alike) for alike in many[:MAX_TRENDS]]


def _trend(runs: Sequence[RunEntry]) -> dict[str, Any]:
    lengths = [run.step_ms or 0.0 for run in runs]
    tick = _round(max(lengths) / 2)
    high = 2.1 * tick
    between = (WIDTH - LEFT - RIGHT) / (len(runs) - 1)

    def y(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / high), 1)

    points: list[dict[str, Any]] = []
    free, before, num_shown = 0.0, None, 0
    for at, run in enumerate(runs):
        x = round(LEFT + at * between, 1)
        # Where the code was another than in the run before.
        is_new = run.commit is not None and run.commit != before
        is_last = x > WIDTH - COMMIT_WIDTH / 2
        is_shown = is_new and x >= free + is_last * COMMIT_WIDTH / 2
        free = x + COMMIT_WIDTH if is_shown else free
        num_shown += is_shown
        before = run.commit
        points.append(
            {
                "x": x,
                "y": y(run.step_ms or 0.0),
                "name": run.name,
                "words": _words(run),
                "commit": run.commit[:COMMIT_CHARS] if is_shown and run.commit else "",
                "is_spare": num_shown % NARROW != 1,
                "anchor": "end" if is_last else "middle",
            }
        )
    path = "".join(f"{'L' if at else 'M'}{p['x']} {p['y']}" for at, p in enumerate(points))
    return {
        "title": f"Step time of {plural(len(runs), 'run')} of",
        "command": " ".join(runs[0].command),
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "points": points,
        "path": path,
        "ticks": [
            {"y": y(times * tick), "word": number(times * tick) if times else "0 ms"}
            for times in range(3)
        ],
    }


def _round(value: float) -> float:
    """The next number of 1, 2 or 5 and zeros."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(size * power for size in (1, 2, 5, 10) if size * power >= value)


def _words(run: RunEntry) -> str:
    """`2026-11-16-071500: 82.5 ms a step, 16 November, commit 8f3a0c1d`."""
    words = f"{run.name}: {ms((run.step_ms or 0.0) * 1e6)} a step"
    if run.started_wall_ns is not None:
        begun = datetime.fromtimestamp(run.started_wall_ns / 1e9).astimezone()
        words += f", {begun:%Y-%m-%d %H:%M}"
    return words if run.commit is None else f"{words}, commit {run.commit[:COMMIT_CHARS]}"
