"""The first screen: the verdict, the bar, three findings, and what to do next."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from stepscope.core.codec import decode
from stepscope.core.diagnosis import (
    FIXES,
    Abstention,
    CodeChange,
    Diagnosis,
    DiagnosisDocument,
    ReplayCheck,
    SourceLocation,
    StepTime,
)
from stepscope.core.gate import ANY_FINDING
from stepscope.core.gate_quantities import read_quantities
from stepscope.core.memory import OutOfMemoryReport
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.run import LoaderKnobs, RankMetadata, RunFacts
from stepscope.experiments.compare.saved import side_of_json
from stepscope.readers.run_folder.folder import NO_ROOM
from stepscope.report.diagnosis.brief import brief
from stepscope.report.diagnosis.json import document_of, to_json
from stepscope.report.diagnosis.short import (
    MAX_FINDINGS,
    MAX_LINES,
    next_commands,
    short_document,
)
from stepscope.report.diagnosis.view import damage_warnings, finding_title, together_words
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.blocks import Line, Segment, Stack
from stepscope.report.document.html import to_html
from stepscope.report.document.markdown import to_markdown
from stepscope.report.document.terminal import STACK_WIDTH, frame, to_text
from stepscope.report.html import render_page
from stepscope.report.html.model import page_of_document
from stepscope.report.words import NBSP
from tests.conftest import Golden
from tests.report.test_terminal import GOLDEN
from tests.scenarios import SCENARIOS
from tests.wording import mentions


@pytest.mark.parametrize("name", SCENARIOS)
def test_any_diagnosis_fits_on_a_screen(name: str) -> None:
    diagnosis = SCENARIOS[name]()
    text = to_text(short_document(diagnosis, next_commands(diagnosis, "stepscope diagnose x -v")))
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES or "evil" in name
    assert all(len(line) <= 80 for line in lines if line.isascii())
    assert lines[-1].endswith("stepscope diagnose x -v")
    shown = sum(line.lstrip()[:2] in ("1.", "2.", "3.", "4.") for line in lines)
    faults = len(diagnosis.findings) + len(diagnosis.advice)
    assert shown == min(MAX_FINDINGS, faults) or "evil" in name


def test_the_first_screen_of_a_healthy_run(check_golden: Golden) -> None:
    diagnosis = SCENARIOS["healthy"]()
    check_golden(GOLDEN / "short_healthy.txt", to_text(short_document(diagnosis)))


def test_memory_that_ran_out_comes_before_what_is_slow() -> None:
    diagnosis = SCENARIOS["healthy"]()
    failed = OutOfMemoryReport(
        source="run", label="run", asked_bytes=3 << 30, free_bytes=1 << 30, phase="backward"
    )
    facts = replace(diagnosis.facts, out_of_memory=(failed,))
    diagnosis = replace(diagnosis, facts=facts)
    for text in (to_text(short_document(diagnosis)), brief(diagnosis)):
        first = text.splitlines()[0]
        assert mentions(first, "out of memory", "3.22 GB", "in backward", "2.15 GB too little")


def test_the_bar_takes_all_its_cells_and_every_part_has_one() -> None:
    shares = (0.5, 0.33, 0.16, 0.005, 0.005)
    stack = Stack(tuple(Segment(f"part {at}", share) for at, share in enumerate(shares)))
    bar, *legend = to_text((stack,)).splitlines()
    assert len(bar.strip()) == STACK_WIDTH
    assert [bar.count(letter) for letter in "#~=+."] == [36, 23, 11, 1, 1]
    assert "# part 0 50 %" in legend[0]
    assert "0.5 %" in legend[-1]


def test_parts_of_one_kind_differ_in_their_fill_where_there_is_colour() -> None:
    stack = Stack((Segment("a", 0.5, "idle"), Segment("b", 0.5, "idle")))
    console = Console(
        file=io.StringIO(), width=80, force_terminal=True, color_system="standard",
        legacy_windows=False,
    )  # fmt: skip
    first = frame((stack,), console).renderables[0]
    assert set(str(first).strip()) == {"█", "▓"}


def test_the_bar_has_its_words_everywhere() -> None:
    document = (Stack((Segment("<b>", 0.25), Segment("rest", 0.75))),)
    assert "&lt;b&gt;: 25" in to_html(document)
    assert "25" in to_markdown(document)
    assert "<b>" not in to_markdown(document)


def test_commands_name_the_run_and_fix_is_offered_where_it_can_help() -> None:
    diagnosis = SCENARIOS["healthy"]()
    run = RunFacts(path="runs/a b", command=("python", "train.py"), exit_code=0, ranks=())
    with_findings = next(made for make in SCENARIOS.values() if (made := make()).findings)
    finding = replace(with_findings.findings[0], code="serial-loader")
    of_run = replace(diagnosis, facts=replace(diagnosis.facts, run=run), findings=(finding,))
    commands = dict(next_commands(of_run, "stepscope diagnose runs", "runs/report.html"))
    assert commands["try and prove it"] == "stepscope fix 'runs/a b' --verify"
    assert commands["what it means"] == "stepscope explain serial-loader"
    assert commands["the report"] == "runs/report.html"
    of_tf32 = replace(of_run, findings=(replace(finding, code="tf32-off"), finding))
    commands = dict(next_commands(of_tf32, "stepscope diagnose runs"))
    assert "stepscope fix 'runs/a b' --verify --allow-numerics" in commands.values()
    by_hand = replace(of_run, findings=(replace(finding, code="late-rank"),))
    commands = dict(next_commands(by_hand, "stepscope diagnose runs"))
    assert not any("stepscope fix" in command for command in commands.values())
    assert commands["after the change"] == "stepscope run -- python train.py"
    # Several workers would each give every sample.
    loader = LoaderKnobs(num_workers=0, is_iterable=True)
    run = replace(run, ranks=(RankMetadata(rank=0, loader=loader),))
    facts, many = replace(diagnosis.facts, run=run), replace(finding, action="num_workers=4")
    commands = dict(next_commands(replace(of_run, facts=facts, findings=(many,)), "stepscope"))
    assert not any("stepscope fix" in command for command in commands.values())


def test_a_run_that_lacked_room_is_recorded_elsewhere_and_one_that_was_short_sooner() -> None:
    facts = replace(SCENARIOS["healthy"]().facts, ranks=())
    for problem, expected in (
        (None, ("record sooner", "stepscope run --start-step 3 -- python train.py")),
        (NO_ROOM, ("record again", "stepscope run --out FOLDER -- python train.py")),
    ):
        rank = RankMetadata(rank=0, problem=problem)
        run = RunFacts(path="a", command=("python", "train.py"), exit_code=0, ranks=(rank,))
        made = replace(SCENARIOS["healthy"](), facts=replace(facts, run=run), findings=())
        assert next_commands(made, "stepscope diagnose a")[0] == expected


def test_lines_of_code_stand_below_their_finding_and_none_is_shortened() -> None:
    with_findings = next(made for make in SCENARIOS.values() if (made := make()).findings)
    after = f"    loader = DataLoader(data, {', '.join(f'option_{n}=True' for n in range(9))})"
    change = CodeChange(path="src/train.py", line=41, before=("    loader = x",), after=(after,))
    finding = replace(with_findings.findings[0], code_change=change)
    diagnosis = replace(with_findings, findings=(finding,))
    for document in (short_document(diagnosis), diagnosis_document(diagnosis)):
        text = to_text(document)
        assert mentions(text, "src/train.py:41", "- loader = x", "+ loader = DataLoader(data,")
        assert "".join(after.split()) in "".join(text.split())
    page = render_page(page_of_document(document_of(diagnosis)))
    assert mentions(page, "src/train.py:41", "<del>", f"<ins>{after}</ins>")
    assert "option_8=True" in to_markdown(short_document(diagnosis)).replace("&#95;", "_")


def test_a_job_that_failed_says_so_before_the_verdict() -> None:
    diagnosis = SCENARIOS["healthy"]()
    run = RunFacts(path="runs/a", command=("python", "train.py"), exit_code=1, ranks=())
    of_run = replace(diagnosis, facts=replace(diagnosis.facts, run=run))
    assert mentions(to_text(short_document(of_run)).splitlines()[0], "exit code 1")
    well = replace(diagnosis, facts=replace(diagnosis.facts, run=replace(run, exit_code=0)))
    assert "exit code" not in to_text(short_document(well))


def test_a_bar_that_shows_less_waiting_than_the_verdict_says_so() -> None:
    diagnosis = SCENARIOS["healthy"]()
    words = "wait for input less"
    assert not mentions(to_text(short_document(diagnosis)), words)
    shares = {**diagnosis.verdict.shares, "data": 0.36}
    waiting = replace(diagnosis, verdict=replace(diagnosis.verdict, bound="data", shares=shares))
    assert mentions(to_text(short_document(waiting)), words)


def test_damage_comes_before_the_verdict() -> None:
    diagnosis = SCENARIOS["healthy"]()
    cut = "the file ends before its end (a killed job?); the complete events were kept"
    text = to_text(short_document(replace(diagnosis, notes=(cut, "not judged: x"))))
    assert mentions(text.splitlines()[0], "ends before")
    assert list(damage_warnings(("not judged: x", "one step was recorded"))) == []


def test_that_nothing_could_be_judged_is_not_that_nothing_was_found() -> None:
    replayed = next(made for make in SCENARIOS.values() if (made := make()).replay is not None)
    clean = replace(replayed, findings=(), advice=(), ladder=(), abstentions=())
    assert mentions(to_text(short_document(clean)), "no known fix", "2 %")
    large = Abstention(code="compute share", reason="66% of the step, in mm", needs="a GPU")
    for replay in (clean.replay, None):
        text = to_text(short_document(replace(clean, replay=replay, abstentions=(large,))))
        assert mentions(text, "66% of the step", "mm")
        assert "-> a GPU" in text
        page = _as_page(replace(clean, replay=replay, abstentions=(large,)))
        assert mentions(page, "66% of the step", "<b>A GPU.</b></p>")
    busy = Abstention(code=FIXES, reason="others had the cores", needs="record again")
    text = to_text(short_document(replace(clean, abstentions=(busy,))))
    assert mentions(text, "not known", "others had the cores")
    assert "-> record again" in text
    assert "No known fix" not in text
    late = Advice(
        code="late-rank",
        bound="imbalance",
        summary="Rank 1 holds the others up.",
        action="Look at rank 1",
        evidence=(),
        weight=0.8,
        weight_of="the step",
    )
    text = to_text(short_document(replace(clean, advice=(late,), abstentions=(busy,))))
    assert "Look at rank 1" in text
    assert mentions(text, "not known", "others had the cores")


def test_no_door_takes_a_run_that_was_not_judged_for_one_without_faults() -> None:
    replayed = next(made for make in SCENARIOS.values() if (made := make()).replay is not None)
    clean = replace(replayed, findings=(), advice=(), ladder=(), abstentions=())
    busy = Abstention(code=FIXES, reason="others had the cores", needs="record again")
    unjudged = replace(clean, abstentions=(busy,))
    for door in (brief, _as_page):
        assert mentions(door(clean), "no fault")
        said = door(unjudged)
        assert mentions(said, "not known", "others had the cores")
        assert not mentions(said, "no fault")
    judged, _ = read_quantities(to_json(clean), "clean", ["serial-loader"])
    assert judged.values[ANY_FINDING] == 1.0
    blind, _ = read_quantities(to_json(unjudged), "busy", ["serial-loader"])
    for name in (ANY_FINDING, "finding.serial-loader"):
        assert blind.values[name] is None
        assert mentions(blind.why[name], "not judged", "others had the cores", "record again")
    assert side_of_json(to_json(clean), "clean").is_judged
    assert not side_of_json(to_json(unjudged), "busy").is_judged


def _as_page(diagnosis: Diagnosis) -> str:
    return render_page(page_of_document(decode(to_json(diagnosis), DiagnosisDocument, "here")))


def test_a_gain_of_rare_steps_is_not_one_of_the_usual_step() -> None:
    made = next(
        made
        for make in SCENARIOS.values()
        if (made := make()).findings and len(made.facts.ranks) == 1
    )
    step_ms = 100.0
    made = replace(made, replay=ReplayCheck(ms=step_ms, error=0.0))
    usual = replace(made.findings[0], predicted_speedup=1.25, predicted_step_ms=step_ms / 1.25)
    assert finding_title(usual, made).endswith("a step")
    rare = replace(usual, predicted_step_ms=step_ms)
    assert mentions(finding_title(rare, made), "of the run", "usual step")
    step = StepTime(count=3, ms=step_ms, profiled_ms=step_ms, source="measured")
    made = replace(made, step=step, findings=(rare, usual), ladder=(1.25, 1.5625))
    page = page_of_document(document_of(made))
    bars = [bar["ms"] for bar in page["picture"]["bars"] if not bar.get("parts")]
    assert bars == pytest.approx([125, 100, 80]), "the cards have 100 and 80 ms a step"
    assert "over all steps" in page["picture"]["bars"][-3]["name"]
    assert "usual step stays" in page["findings"][0]["step"]
    assert page["findings"][1]["step"] == ": 80.0 ms a step"
    assert "80.0 ms a step" in together_words(made).replace(NBSP, " ")


LONG = "Read numbers every 50th step (.item(), float(), print); sum them on the device between " * 2


def test_three_findings_of_many_words_fit_with_their_code_lines() -> None:
    made = next(made for make in SCENARIOS.values() if (made := make()).findings)
    first = replace(
        made.findings[0],
        summary="The host stops again and again, and launches nothing meanwhile. " * 3,
        action=f"{LONG}. Most of it at train.py:17 in step",
        source_locations=(SourceLocation(line="train.py:17 in step", module=None, share=0.9),),
        changes_numerics=True,
        excludes=(),
    )
    second = replace(first, code="second-fault", excludes=(first.code,))
    third = replace(second, code="third-fault", excludes=())
    diagnosis = replace(made, findings=(first, second, third))
    text = to_text(short_document(diagnosis, next_commands(diagnosis, "stepscope diagnose x -v")))
    assert len(text.splitlines()) <= MAX_LINES
    assert text.count("(train.py:17 in step)") == 3
    assert text.count(f"-> {LONG.partition(' (')[0]}") == 3
    assert "2. second-fault  instead of 1: " in text
    assert mentions(text, "* can change")


def test_a_short_line_ends_at_a_clause_and_keeps_its_tail() -> None:
    line = Line(text=LONG, tail="(train.py:17)", is_action=True)
    clause = LONG.partition(";")[0]
    assert to_text((line,)) == f"-> {clause} ... (train.py:17)\n"
    assert len(to_text((replace(line, most=2),)).splitlines()) == 2
    assert "train.py:17" in to_markdown((line,))
    assert "train.py:17" in to_html((line,))


def test_a_bar_of_steps_that_lack_a_part_is_named() -> None:
    made = next(
        made
        for make in SCENARIOS.values()
        if len((made := make()).facts.ranks) == 1 and made.facts.ranks[0].typical_parts_ns
    )
    step_ms = sum((made.facts.ranks[0].typical_parts_ns or {}).values()) / 1e6
    made = replace(made, step=replace(made.step, ms=step_ms))
    longer = replace(made, step=replace(made.step, ms=2 * step_ms))
    usual = to_text(short_document(made))
    words = "makes others longer"
    assert not mentions(usual, words)
    assert mentions(to_text(short_document(longer)), words)
