from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from stepscope.core.diagnosis import Diagnosis, ReplayCheck
from stepscope.core.facts import RankFacts
from stepscope.report.diagnosis.ranks import MAX_LINES
from stepscope.report.diagnosis.view import ON_HOST_WORDS, PART_WORDS, UNSPLIT_COMMS
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.blocks import Document
from stepscope.report.document.terminal import show, to_text
from tests import scenarios
from tests.conftest import Golden
from tests.scenarios import SCENARIOS
from tests.wording import any_mentions, mentions

GOLDEN = Path(__file__).parent / "golden"
each_scenario = pytest.mark.parametrize("name", SCENARIOS)


@cache
def document_of(name: str) -> Document:
    return diagnosis_document(SCENARIOS[name]())


@cache
def text_of(name: str) -> str:
    """As it is off a terminal."""
    return to_text(document_of(name))


def plain(diagnosis: Diagnosis, width: int = 80) -> str:
    return to_text(diagnosis_document(diagnosis), width=width)


def section(text: str, title: str) -> list[str]:
    """The lines under a heading, up to the next blank one."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(title))
    end = next((i for i in range(at, len(lines)) if not lines[i]), len(lines))
    return lines[at + 1 : end]


def only_rank(diagnosis: Diagnosis) -> RankFacts:
    (rank,) = diagnosis.facts.ranks
    return rank


def with_rank(diagnosis: Diagnosis, rank: RankFacts) -> Diagnosis:
    return replace(diagnosis, facts=replace(diagnosis.facts, ranks=(rank,)))


@each_scenario
def test_scenario_adds_up(name: str) -> None:
    SCENARIOS[name]().facts.self_check()


@each_scenario
@pytest.mark.parametrize(
    ("width", "color"),
    [(40, False), (80, False), (80, True), (300, False)],
)
def test_lines_fit_the_width(name: str, width: int, color: bool) -> None:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        record=True,
    )
    show(document_of(name), console)
    lines = console.export_text(styles=False).splitlines()
    assert lines
    assert max(cell_len(line) for line in lines) <= min(width, 100)


@each_scenario
def test_default_width_is_eighty_off_a_terminal(name: str) -> None:
    assert max(cell_len(line) for line in text_of(name).splitlines()) <= 80


@each_scenario
def test_plain_has_no_controls_and_no_trailing_space(name: str) -> None:
    for line in text_of(name).split("\n"):
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", line)
        assert line == line.rstrip()


@each_scenario
def test_plain_draws_no_boxes(name: str) -> None:
    assert not re.search(r"[\u2500-\u259f\u2026]", text_of(name))


@each_scenario
def test_ascii_stream_gets_ascii(name: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    show(document_of(name), Console(file=stream, width=80))
    stream.flush()
    assert raw.getvalue().decode("ascii").strip()


@each_scenario
def test_colored_escapes_are_our_own(name: str) -> None:
    text = to_text(document_of(name), width=80, color=True)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "\x1b" not in bare
    assert set(re.findall(r"\x1b\[([0-9;]*)m", text)) <= {
        "0",
        "1",
        "2",
        "31",
        "32",
        "33",
        "35",
        "36",
        "1;31",
        "1;32",
        "1;33",
    }


def test_color_draws_the_same_words() -> None:
    def words(text: str) -> str:
        return re.sub(r"\x1b\[[0-9;]*m|[#█▏▎▍▌▋▊▉]", "", text)

    text = to_text(diagnosis_document(scenarios.unsplit_comms()), width=80, color=True)
    colored = [line.rstrip() for line in words(text).splitlines()]
    assert colored == [
        line.rstrip() for line in words(plain(scenarios.unsplit_comms())).splitlines()
    ]


def test_dumb_stream_is_plain() -> None:
    stream = io.StringIO()
    show(diagnosis_document(scenarios.healthy()), Console(file=stream, width=80))
    assert stream.getvalue() == plain(scenarios.healthy())


@each_scenario
def test_partition_lines_sum_to_the_total(name: str) -> None:
    diagnosis = SCENARIOS[name]()
    if not diagnosis.facts.ranks or diagnosis.facts.median_rank.partition is None:
        return
    rank = diagnosis.facts.median_rank
    rows = [
        re.match(r"  (\S.*?) {2,}(<?[\d .]*\d) {2,}(<?[\d.]+)", line)
        for line in section(plain(diagnosis), "Where the step goes")[1:]
    ]
    shown = [(row[1], row[2].replace(" ", ""), row[3]) for row in rows if row is not None]
    assert len(shown) == len(rows)
    assert shown[-1][0] == "total"
    assert {words for words, _, _ in shown[:-1]} <= {
        *PART_WORDS.values(),
        *ON_HOST_WORDS.values(),
        UNSPLIT_COMMS,
    }
    total = float(shown[-1][1])
    unit = 10.0 ** -len(shown[-1][1].partition(".")[2])
    assert sum(float(ms.lstrip("<")) for _, ms, _ in shown[:-1]) == pytest.approx(
        total, abs=unit * len(shown)
    )
    assert sum(float(share.lstrip("<")) for _, _, share in shown[:-1]) == pytest.approx(
        100, abs=0.1 * len(shown)
    )
    assert rank.steps.step_interval_ns is not None
    assert total == pytest.approx(rank.steps.step_interval_ns / 1e6, abs=unit)


def test_partition_leaves_out_zero_parts() -> None:
    lines = section(plain(scenarios.data_bound()), "Where the step goes")
    assert not any("compiling" in line or "allocator" in line for line in lines)


def test_comms_that_could_not_be_split_are_called_so() -> None:
    assert "communication, not hidden" in plain(scenarios.unsplit_comms())
    split = plain(scenarios.comms_eight_ranks())
    assert mentions(split, "waiting", "other ranks")
    assert "exposed communication" in split


@pytest.mark.parametrize("name", ["zero_events", "no_ranks", "device_without_steps"])
def test_what_was_not_measured_is_not_zero(name: str) -> None:
    text = plain(SCENARIOS[name]())
    assert mentions(text, "step time", "not measured")
    body = text.partition("Notes")[0].replace("rank0", "").replace("80GB", "")
    assert not re.search(r"(?<![\d.,])0(\.0+)?(?![\d.])", body)


def test_absent_roofline_says_why() -> None:
    assert mentions(plain(scenarios.unknown_device()), "no peak", "Acme Tensor 9000")
    healthy = scenarios.healthy()
    no_shapes = replace(scenarios.NO_ROOF, device="NVIDIA H100 SXM")
    text = plain(with_rank(healthy, replace(only_rank(healthy), roofline=no_shapes)))
    assert "record_shapes=True" in text
    assert "tensor cores" not in text


def test_absent_launches_and_bytes_are_not_zero() -> None:
    assert re.search(r"launches +not measured", plain(scenarios.unknown_categories()))
    copies = section(plain(scenarios.data_bound()), "Copies")
    assert re.search(r"DtoD +10 +none +0\.33 +not known +-", copies[-1])


def test_partly_known_launches_leave_the_rest_out() -> None:
    healthy = scenarios.healthy()
    launches = replace(
        scenarios.AHEAD,
        median_delay_ns=None,
        median_queue_depth=None,
        starved_share=None,
        median_call_ns=None,
        median_kernel_ns=None,
    )
    text = plain(with_rank(healthy, replace(only_rank(healthy), launches=launches)))
    assert "was not measured" in text
    assert not mentions(text, "device idle")
    assert "medians" not in text


def test_totals_are_shown_per_step() -> None:
    row = next(line for line in plain(scenarios.healthy()).splitlines() if "addmm" in line)
    assert re.search(r"addmm +96 +20\.4 +46 % +81 %", row)


def test_header_tells_what_was_read() -> None:
    head = plain(scenarios.comms_eight_ranks()).partition("\n\n")[0].replace("\n", " ")
    assert (
        head
        == "8 ranks in traces/, NVIDIA H100 80GB HBM3: 4 steps detected by ProfilerStep, 3 measured"
    )


def test_step_time_tells_its_source() -> None:
    given, lone = plain(scenarios.data_bound()), plain(scenarios.one_step())
    assert mentions(given, "65.5 ms (as given; 65.6 ms while profiled)")
    assert mentions(lone, "1 508 ms (from the trace, while profiled)")


def test_the_step_that_gains_are_of_is_told_where_the_profiler_lengthens_it() -> None:
    before = scenarios.data_bound()
    before = replace(before, step=replace(before.step, source="trace"))
    assert before.step.ms is not None
    for share, is_told in ((0.995, False), (1.1, False), (0.6, True)):
        replay = ReplayCheck(ms=share * before.step.ms, error=0.0)
        text = plain(replace(before, replay=replay))
        assert mentions(text, "without the profiler, and gains") == is_told


def test_alike_ranks_share_a_line() -> None:
    lines = section(plain(scenarios.comms_eight_ranks()), "Ranks")
    assert len(lines) == 3
    assert lines[1].startswith("  0-6 alike (7)")
    assert lines[2].startswith("  7 ")


def test_ranks_take_a_dozen_lines_at_most() -> None:
    lines = section(plain(scenarios.thousand_ranks()), "Ranks")
    assert len(lines) <= MAX_LINES + 1
    assert "not measured" in lines[-1]


def test_findings_show_gain_and_action() -> None:
    lines = section(plain(scenarios.data_bound()), "What to do")
    assert lines[0] == "  1. serial-loader  2.05x (1.90-2.20), then 31.9 ms a step"
    assert any(line.startswith("     -> DataLoader(") for line in lines)
    assert any_mentions(lines, "can change")
    assert "What to do" not in plain(scenarios.healthy())


def test_notes_are_told_once_with_their_ranks() -> None:
    lines = section(plain(scenarios.comms_eight_ranks()), "Notes")
    assert lines == [
        "  - clock: aligned on 24 collectives",
        "  - a truncated file: its last step was dropped (rank 5)",
    ]


def test_unknown_events_are_named() -> None:
    text = " ".join(
        line.strip() for line in section(plain(scenarios.unknown_categories()), "Notes")
    )
    assert mentions(text, "4174 events", "left out", "privateuse1_driver (4000)")
    assert text.endswith("and 5 other kinds")


def test_markup_is_printed_as_it_is() -> None:
    text = plain(scenarios.evil_names())
    assert "[red]x[/red]" in text
    assert "?[31mred?[0m" in text


@pytest.mark.parametrize("name", ["healthy", "comms_eight_ranks"])
def test_report_is_as_agreed(name: str, check_golden: Golden) -> None:
    check_golden(GOLDEN / f"{name}.txt", plain(SCENARIOS[name]()))
