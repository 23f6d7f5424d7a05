"""Scaling in the terminal: it fits, it adds up, and it says what it does not know."""

from __future__ import annotations

import io
import json
import re

import pytest
from msgspec import structs
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from stepscope.analyses.run.width import width_run
from stepscope.core.facts import Facts
from stepscope.core.scaling import WidthRun
from stepscope.report.document.terminal import show, to_text
from stepscope.scaling.contract import scaling_json
from stepscope.scaling.scale import scale
from stepscope.scaling.shapes import Scaling
from stepscope.scaling.view import scaling_document
from tests.scenarios import EVIL_NAMES, MS, NO_ROOF, rank_facts
from tests.wording import mentions

FLOPS = structs.replace(NO_ROOF, model_flops=4e12)


def run_of(
    width: int,
    *,
    path: str | None = None,
    given_ms: float | None = None,
    shapes: bool = True,
    **parts: float,
) -> WidthRun:
    rank = rank_facts(parts, roofline=FLOPS if shapes else NO_ROOF)
    facts = Facts(
        ranks=(rank,) * width, given_step_ns=None if given_ms is None else round(given_ms * MS)
    )
    return width_run(path or f"runs/w{width}", facts, width)


BASE = run_of(1, compute=80, idle_launch=2)
SERIES = {
    "weak": scale(
        [
            BASE,
            run_of(2, compute=81, comms_wait=3),
            run_of(4, compute=81, comms_wait=30, comms_transfer=9),
        ]
    ),
    "strong": scale(
        [BASE, run_of(2, compute=42, comms_wait=1), run_of(4, compute=22, comms_wait=9)], "strong"
    ),
    "strong, growing": scale(
        [BASE, run_of(2, compute=90, comms_wait=1), run_of(4, compute=99, comms_wait=9)], "strong"
    ),
    "kind not told": scale(
        [run_of(1, compute=80, shapes=False), run_of(2, compute=81, shapes=False)]
    ),
    "waits not told": scale([BASE, run_of(2, compute=81, comms_transfer=9)]),
    "steps given": scale(
        [run_of(1, compute=80, given_ms=70), run_of(2, compute=81, comms_wait=3, given_ms=75)]
    ),
    "better than ideal": scale([BASE, run_of(2, compute=70)]),
    "no steps": scale(
        [
            BASE,
            replace(
                run_of(2, compute=1),
                parts_ns=None,
                step=replace(BASE.step, ns=None, profiled_ns=None),
            ),
        ]
    ),
    "parts not measured": scale([BASE, replace(run_of(2, compute=90), parts_ns=None)]),
    "many widths": scale(
        [run_of(n, compute=80 + n, comms_wait=n) for n in (1, 2, 3, 4, 5, 6, 7, 8)]
    ),
    "seconds": scale([run_of(1, compute=80_000), run_of(512, compute=1_234_000)]),
    "evil paths": scale(
        [run_of(n, compute=80, path=name) for n, name in enumerate(EVIL_NAMES, start=1)]
    ),
}


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_wider_than_asked(name: str, width: int) -> None:
    lines = to_text(scaling_document(SERIES[name]), width=width).splitlines()
    assert lines
    assert max(map(cell_len, lines)) <= width
    assert not any(re.search(r"[\x00-\x1f\x7f-\x9f]", line) for line in lines)


@pytest.mark.parametrize("name", SERIES)
def test_every_series_adds_up_and_is_json(name: str) -> None:
    SERIES[name].self_check()
    assert json.loads(scaling_json(SERIES[name]))["schema"] == "stepscope.scaling/1"


def words(scaling: Scaling) -> str:
    return " ".join(to_text(scaling_document(scaling)).split())


def test_the_worst_part_is_named_in_words() -> None:
    text = words(SERIES["weak"])
    assert mentions(text, "4 ranks", "2.73x the work", "68 %", "ideal 4x")
    assert mentions(text, "lost most", "other ranks", "30.0 ms")


def test_the_columns_sum_as_they_are_printed() -> None:
    lines = to_text(scaling_document(SERIES["weak"])).splitlines()
    start = next(at for at, line in enumerate(lines) if mentions(line, "is lost", "ms above"))
    rows = [line.split()[-1] for line in lines[start + 2 : lines.index("", start)]]
    *parts, total = map(float, rows)
    assert len(parts) >= 4
    assert sum(parts) == pytest.approx(total, abs=0.06 * len(parts))
    assert total == pytest.approx(38, abs=0.01)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kind not told", "--scaling-kind weak or --scaling-kind strong"),
        ("waits not told", "communication, not hidden, 9.00 ms"),
        ("steps given", "given step less recorded"),
        ("better than ideal", "Nothing is lost."),
        ("no steps", "not measured"),
        ("parts not measured", "where they go"),
        ("strong", "Amdahl"),
        ("strong, growing", "over 100 % at 2 ranks"),
    ],
)
def test_what_is_not_known_is_said(name: str, said: str) -> None:
    assert mentions(words(SERIES[name]), said)


def test_communication_with_waits_in_it_is_called_so_in_both_tables() -> None:
    lines = to_text(scaling_document(SERIES["waits not told"])).splitlines()
    assert [
        line.split()[-1] for line in lines if line.startswith("  communication, not hidden")
    ] == ["9.0", "+9.00"]


def test_the_widest_runs_stand_beside_the_base_where_there_is_no_room_for_all() -> None:
    lines = to_text(scaling_document(SERIES["many widths"])).splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith("Where the step goes")]
    titles = lines[heads[0] + 1]
    assert titles.split() == ["1", "4", "5", "6", "7", "8"]


def test_an_ascii_terminal_gets_ascii() -> None:
    raw = io.BytesIO()
    console = Console(
        file=io.TextIOWrapper(raw, encoding="ascii", write_through=True),
        width=80,
        force_terminal=False,
    )
    show(scaling_document(SERIES["evil paths"]), console)
    assert raw.getvalue().decode("ascii").startswith("14 runs")
