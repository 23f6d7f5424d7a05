"""The whole run in words, on the page and as JSON."""

from __future__ import annotations

from msgspec.structs import replace

from stepscope.core.contract.codec import decode
from stepscope.core.contract.diagnosis import DiagnosisContract
from stepscope.core.contract.whole_run import WholeRun as WholeRunContract
from stepscope.core.diagnosis import Diagnosis
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
from stepscope.report.diagnosis.view import diagnosis_document
from stepscope.report.diagnosis.whole_run import (
    part_note,
    seconds,
    whole_run_contract,
    whole_run_lines,
    whole_run_words,
)
from stepscope.report.html import render_page
from stepscope.report.html.model import page_of, page_of_document
from stepscope.rules.whole_run import with_whole_run
from stepscope.rules.without_trace import diagnose_without_trace
from tests.wording import mentions

S = 10**9
RUN = WholeRun(
    rank=0,
    dur_ns=20 * S,
    parts=(
        RunPart(what="start_up", dur_ns=2 * S, of_it={"until torch was imported": S}),
        RunPart(what="steady", dur_ns=11 * S),
        RunPart(what="epoch_start", dur_ns=S, num=4),
        RunPart(what="stalls", dur_ns=6 * S, num=10),
    ),
    slow=(
        SlowSteps(every=20, num=10, once_ns=S * 6 // 10, dur_ns=6 * S, lines={"<b>.py(3)": 1.0}),
    ),
    over_time=(
        {"start_up": 2 * S, "steady": 8 * S},
        {"steady": 3 * S, "stalls": 6 * S},
        {"epoch_start": S},
    ),
    step_ns=S // 20,
    num_clean=190,
    num_steps=201,
)


def diagnosed() -> Diagnosis:
    loader = LoaderKnobs(num_workers=2, persistent_workers=False)
    facts = RunFacts(
        path="run", command=("train",), exit_code=0, ranks=(RankMetadata(rank=0, loader=loader),)
    )
    return with_whole_run(diagnose_without_trace(facts), RUN)


def test_the_line_has_steady_steps_first_and_then_the_most() -> None:
    RUN.self_check()
    words = whole_run_words(whole_run_contract(RUN)).replace("\u00a0", " ")
    assert (
        words == "20.0 s, 55 % in steady steps; slow steps 30 %, start-up 10 %, epoch starts 5.0 %."
    )


def test_one_slow_step_is_not_now_and_then() -> None:
    contract = whole_run_contract(replace(RUN, slow=(replace(RUN.slow[0], every=None, num=1),)))
    words = whole_run_lines(contract)[0].replace("\u00a0", " ")
    assert mentions(words, "one step", "600 ms", "<b>.py(3)")


def test_advice_has_its_price() -> None:
    whole = diagnosed().facts.whole_run
    assert whole is not None
    assert [(each.what, each.dur_ns) for each in whole.advice] == [
        ("stalls", 6 * S),
        ("epoch_start", S),
    ]
    assert whole.advice[0].hours_a_day == 24 * 6 / 18
    assert "persistent_workers=True" in whole.advice[1].action


def test_a_likely_price_has_its_range_and_its_hours() -> None:
    price = RunPrice(dur_ns=S // 2, low_ns=S // 4, high_ns=S)
    advice = RunAdvice(what="saves", action="Save", dur_ns=S, hours_a_day=2.0, likely=price)
    contract = whole_run_contract(replace(RUN, slow=(), advice=(advice,)))
    words = whole_run_lines(contract)[0].replace("\u00a0", " ")
    assert mentions(words, "Save: 0.50 s (0.25 s to 1.00 s)", "1.00 h")


def test_phases_are_said_with_their_step_times() -> None:
    phases = (
        RunPhase(first_step=0, num_clean=100, step_ns=S // 25),
        RunPhase(first_step=101, num_clean=90, step_ns=S // 16),
    )
    contract = whole_run_contract(replace(RUN, phases=phases))
    words = whole_run_lines(contract)[0].replace("\u00a0", " ")
    assert mentions(words, "2 phases", "40.0 ms", "62.5 ms from step 101")


def test_idle_is_shown_with_its_line_and_no_rate_where_it_came_once() -> None:
    idle = RunPart(what="idle", dur_ns=6 * S, num=1, of_it={"<b>.py(9)": 6 * S})
    rested = replace(RUN, parts=(*RUN.parts[:-1], idle), slow=())
    facts = RunFacts(path="run", command=("train",), exit_code=0, ranks=())
    whole = with_whole_run(diagnose_without_trace(facts), rested).facts.whole_run
    assert whole is not None
    assert [(each.what, each.hours_a_day) for each in whole.advice][:1] == [("idle", None)]
    contract = whole_run_contract(whole)
    assert "idle 30 %" in whole_run_words(contract).replace("\u00a0", " ")
    assert part_note(contract, contract.parts[-1]).endswith(", seen at <b>.py(9)")


def test_the_json_is_read_again_and_drawn() -> None:
    diagnosis = diagnosed()
    document = decode(to_json(diagnosis), DiagnosisContract, "it")
    page = page_of_document(document)["whole_run"]
    assert page == page_of(Page(diagnosis=diagnosis))["whole_run"]
    assert [bar["part"] for bar in page["bars"]][:2] == ["compute", "idle_sync"]
    assert isinstance(document.whole_run, WholeRunContract)
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
