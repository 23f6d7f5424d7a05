"""The whole run in words, on the page and as JSON."""

from __future__ import annotations

from msgspec.structs import replace

from stepscope.core.codec import decode
from stepscope.core.diagnosis import Diagnosis, DiagnosisDocument
from stepscope.core.run import (
    LoaderKnobs,
    RankMetadata,
    RunAdvice,
    RunFacts,
    RunPart,
    RunPhase,
    RunPrice,
    SlowSteps,
    WholeRun,
)
from stepscope.pipeline.page import Page
from stepscope.report.diagnosis.json import to_json
from stepscope.report.diagnosis.short import short_document
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.diagnosis.whole_run import (
    part_note,
    seconds,
    whole_run_lines,
    whole_run_words,
)
from stepscope.report.document.terminal import to_text
from stepscope.report.html import render_page
from stepscope.report.html.model import page_of, page_of_document
from stepscope.rules.whole_run import advised
from stepscope.rules.without_trace import diagnose_without_trace
from tests.wording import mentions

RUN = WholeRun(
    rank=0,
    seconds=20,
    productive_share=0.55,
    parts=(
        RunPart(what="start_up", seconds=2, share=0.1, of_it={"until torch was imported": 1}),
        RunPart(what="steady", seconds=11, share=0.55),
        RunPart(what="epoch_start", seconds=1, share=0.05, num=4),
        RunPart(what="stalls", seconds=6, share=0.3, num=10),
    ),
    stalls=(
        SlowSteps(every_steps=20, num=10, once_seconds=0.6, seconds=6, lines={"<b>.py(3)": 1.0}),
    ),
    over_time=(
        {"start_up": 2, "steady": 8},
        {"steady": 3, "stalls": 6},
        {"epoch_start": 1},
    ),
    step_ms=50,
    num_clean_steps=190,
    num_steps=201,
)


def diagnosed() -> Diagnosis:
    loader = LoaderKnobs(num_workers=2, persistent_workers=False)
    facts = RunFacts(
        path="run", command=("train",), exit_code=0, ranks=(RankMetadata(rank=0, loader=loader),)
    )
    return diagnose_without_trace(facts, whole_run=advised(RUN, facts))


def test_the_line_has_steady_steps_first_and_then_the_most() -> None:
    RUN.self_check()
    words = whole_run_words(RUN).replace("\u00a0", " ")
    assert (
        words == "20.0 s, 55 % in steady steps; slow steps 30 %, start-up 10 %, epoch starts 5.0 %."
    )


def test_the_first_screen_has_the_whole_run_in_a_line_after_the_steps_advice() -> None:
    diagnosis = diagnosed()
    text = to_text(short_document(diagnosis, (("all of it", "stepscope"),)))
    before, _, after = text.partition("The whole run")
    assert mentions(
        after.splitlines()[0], "20.0 s: steady steps 55 %, slow steps 30 %, all else 15 %"
    )
    assert mentions(after, "6.00 s of this run", "Next")
    assert "steady" not in before


def test_one_slow_step_is_not_now_and_then() -> None:
    once = replace(RUN, stalls=(replace(RUN.stalls[0], every_steps=None, num=1),))
    words = whole_run_lines(once)[0].replace("\u00a0", " ")
    assert mentions(words, "one step", "600 ms", "<b>.py(3)")


def test_advice_has_its_price() -> None:
    whole = diagnosed().facts.whole_run
    assert whole is not None
    assert [(each.what, each.seconds) for each in whole.advice] == [
        ("stalls", 6),
        ("epoch_start", 1),
    ]
    assert whole.advice[0].hours_a_day == 24 * 6 / 18
    assert "persistent_workers=True" in whole.advice[1].action


def test_a_likely_price_has_its_range_and_its_hours() -> None:
    price = RunPrice(seconds=0.5, low_seconds=0.25, high_seconds=1, hours_a_day=1.0)
    advice = RunAdvice(what="saves", action="Save", seconds=1, hours_a_day=2.0, likely=price)
    made = replace(RUN, stalls=(), advice=(advice,))
    words = whole_run_lines(made)[0].replace("\u00a0", " ")
    assert mentions(words, "Save: 0.50 s (0.25 s to 1.00 s)", "1.00 h")


def test_phases_are_said_with_their_step_times() -> None:
    phases = (
        RunPhase(first_step=0, num_clean_steps=100, step_ms=40),
        RunPhase(first_step=101, num_clean_steps=90, step_ms=62.5),
    )
    words = whole_run_lines(replace(RUN, phases=phases))[0].replace("\u00a0", " ")
    assert mentions(words, "2 phases", "40.0 ms", "62.5 ms from step 101")


def test_idle_is_shown_with_its_line_and_no_rate_where_it_came_once() -> None:
    idle = RunPart(what="idle", seconds=6, share=0.3, num=1, of_it={"<b>.py(9)": 6})
    rested = replace(RUN, parts=(*RUN.parts[:-1], idle), stalls=())
    facts = RunFacts(path="run", command=("train",), exit_code=0, ranks=())
    whole = advised(rested, facts)
    assert [(each.what, each.hours_a_day) for each in whole.advice][:1] == [("idle", None)]
    assert "idle 30 %" in whole_run_words(whole).replace("\u00a0", " ")
    assert part_note(whole, whole.parts[-1]).endswith(", seen at <b>.py(9)")


def test_the_json_is_read_again_and_drawn() -> None:
    diagnosis = diagnosed()
    document = decode(to_json(diagnosis), DiagnosisDocument, "it")
    page = page_of_document(document)["whole_run"]
    assert page == page_of(Page(diagnosis=diagnosis))["whole_run"]
    assert [bar["part"] for bar in page["bars"]][:2] == ["compute", "idle_sync"]
    assert isinstance(document.whole_run, WholeRun)
    assert sum(part.seconds for part in document.whole_run.parts) == document.whole_run.seconds


def test_the_page_has_the_strip_and_a_strangers_line_as_text() -> None:
    html = render_page(page_of(Page(diagnosis=diagnosed())))
    assert '<svg class="strip"' in html
    assert "&lt;b&gt;.py(3)" in html
    assert "<b>.py(3)" not in html


def test_a_diagnosis_without_it_says_nothing_of_it() -> None:
    diagnosis = diagnosed()
    without = replace(diagnosis, facts=replace(diagnosis.facts, whole_run=None))
    assert "whole_run" not in to_json(without)
    assert len(diagnosis_document(diagnosis)) == len(diagnosis_document(without)) + 1
    assert page_of(Page(diagnosis=without))["whole_run"] is None


def test_times_read_well() -> None:
    spoken = [seconds(whole).replace("\u00a0", " ") for whole in (5, 600, 90_000)]
    assert spoken == ["5.00 s", "10 min 00 s", "25 h 00 min"]
