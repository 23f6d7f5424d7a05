"""The HTML report: what it shows, and that a stranger's text stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.cli.main import main
from stepscope.cli.report import write
from stepscope.core.action_code import action_code
from stepscope.core.codec import decode
from stepscope.core.diagnosis import Diagnosis, DiagnosisDocument, Finding
from stepscope.core.facts import PARTS
from stepscope.errors import InputError
from stepscope.pipeline.options import Options
from stepscope.pipeline.page import Page, page_of_recording
from stepscope.pipeline.recording import Recording, diagnose
from stepscope.report.diagnosis.json import to_json
from stepscope.report.html import data_block, model, render_page
from stepscope.report.html.model import page_of
from stepscope.report.words import clean
from tests import scenarios
from tests.shared_data import DEMO, SAMPLES, lab_trace, lab_traces, unpacked
from tests.wording import mentions

pytestmark = pytest.mark.usefixtures("measured_once")

HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>'\"{{7*7}}\u2028&lt;"


class Reader(HTMLParser):
    """Elements, their attributes, and the text of each kind."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "img", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self._open[-1] if self._open else "", []).append(data)


@pytest.fixture(scope="module")
def demo(measured_once: None) -> tuple[Diagnosis, dict[str, Any]]:
    with Recording([DEMO], Options(step_ms=65.48, use_cache=False, jobs=1)) as recording:
        return recording.diagnosis, page_of(page_of_recording(recording))


def finding(**fields: Any) -> Finding:
    told: dict[str, Any] = {
        "code": "serial-loader",
        "bound": "data",
        "summary": "s",
        "action": "a",
        "evidence": ("e",),
        "ranks": (0,),
        "predicted_speedup": 2.0,
        "predicted_low": 1.8,
        "predicted_high": 2.2,
        "predicted_step_ms": 10.0,
    }
    return Finding(**(told | fields))


def test_the_verdict_and_every_finding_stand_in_the_text(
    demo: tuple[Diagnosis, dict[str, Any]],
) -> None:
    diagnosis, page = demo
    read = Reader(render_page(page))
    assert diagnosis.verdict.summary in "".join(read.text["h1"])
    for finding in diagnosis.findings:
        assert finding.code in "".join(read.text["h3"])
        code, rest = action_code(finding.action)
        assert code in read.text["code"]
        assert rest in read.text["p"]
    assert {f"{finding.predicted_speedup:.2f}" for finding in diagnosis.findings} <= {
        text.rstrip("\u00d7") for text in read.text["b"]
    }
    for note in diagnosis.notes:
        assert any(note in text for text in read.text["li"])


def test_the_picture_goes_from_the_recorded_step_to_the_floor(
    demo: tuple[Diagnosis, dict[str, Any]],
) -> None:
    diagnosis, page = demo
    bars = page["data"]["picture"]["bars"]
    assert bars[0]["ms"] == pytest.approx(sum(bars[0]["parts"].values()))
    assert bars[0]["ms"] == pytest.approx(diagnosis.step.profiled_ms, rel=0.01)
    assert bars[1] == {"name": "today", "ms": 65.48, "is_today": True}
    assert bars[2]["ms"] == pytest.approx(65.48 / diagnosis.findings[0].predicted_speedup)
    rank = diagnosis.facts.ranks[0]
    least = sum(
        min(k.floor_ns if k.floor_ns is not None else k.total_ns, k.total_ns) for k in rank.kernels
    )
    assert bars[-1]["is_floor"]
    assert bars[-1]["ms"] == pytest.approx(least / len(rank.steps.windows) / 1e6)
    assert bars[-1]["ms"] < bars[2]["ms"]


def test_only_our_own_scripts_may_run(demo: tuple[Diagnosis, dict[str, Any]]) -> None:
    text = render_page(demo[1])
    policy = next(
        a["content"]
        for tag, a in Reader(text).tags
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert "'unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    for kind in ("script", "style"):
        allowed = re.search(rf"{kind}-src ([^;]*)", policy)
        assert allowed is not None
        sources = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        hashes = {
            f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
            for source in sources
        }
        assert hashes == set(allowed[1].split())
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", text.split("<script", 1)[0]), (
        "nothing is asked of the network"
    )


def test_a_strangers_text_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scenarios.healthy()
    rank = made.facts.ranks[0]
    rank = replace(
        rank,
        path=HOSTILE,
        kernels=tuple(replace(row, name=HOSTILE, op=HOSTILE) for row in rank.kernels),
    )
    hostile = finding(
        code=HOSTILE, summary=HOSTILE, action=HOSTILE, evidence=(HOSTILE,), bound=HOSTILE
    )
    made = replace(
        made, findings=(hostile,), notes=(HOSTILE,), facts=replace(made.facts, ranks=(rank,))
    )
    made = replace(made, verdict=replace(made.verdict, summary=HOSTILE))
    monkeypatch.setattr(model, "timeline_values", lambda names: {"names": names})
    timeline: Any = [HOSTILE]
    text = render_page(page_of(Page(diagnosis=made, timeline=timeline)))
    plain = render_page(page_of(Page(diagnosis=scenarios.healthy())))
    read = Reader(text)
    assert not [tag for tag, _ in read.tags if tag == "img"]
    assert sum(tag == "script" for tag, _ in read.tags) == sum(
        tag == "script" for tag, _ in Reader(plain).tags
    )
    assert clean(HOSTILE) in "".join(read.text["h1"]), "shown as it is"
    assert "{{7*7}}" in text
    assert json.loads(read.text["script"][0])["timeline"]["names"] == [HOSTILE]


def test_the_picture_is_of_the_median_rank() -> None:
    made = scenarios.healthy()
    rank = made.facts.ranks[0]
    assert rank.partition is not None
    windows = [tuple((low * k, high * k) for low, high in rank.steps.windows) for k in (4, 1, 3, 2)]
    ranks = []
    for number, (k, mine) in enumerate(zip((4, 1, 3, 2), windows, strict=True)):
        parts = {
            part: tuple(ns * k for ns in values) for part, values in rank.partition.parts.items()
        }
        steps = replace(rank.steps, windows=mine)
        ranks.append(
            replace(rank, rank=number, steps=steps, partition=replace(rank.partition, parts=parts))
        )
    made = replace(made, facts=replace(made.facts, ranks=tuple(ranks)))
    assert made.facts.median_rank.rank == 3
    bar = page_of(Page(diagnosis=made))["data"]["picture"]["bars"][0]
    typical = made.facts.median_rank.typical_parts_ns
    assert typical is not None
    assert bar["ms"] == pytest.approx(sum(typical.values()) / 1e6)


def test_bars_and_cards_agree_where_the_trace_alone_tells_the_step(
    demo: tuple[Diagnosis, dict[str, Any]],
) -> None:
    with resources.as_file(resources.files("stepscope") / "data" / "demo.pt.trace.json.gz") as path:
        diagnosis = diagnose([str(path)], Options(use_cache=False, jobs=1))
    bars = page_of(Page(diagnosis=diagnosis))["data"]["picture"]["bars"]
    first = diagnosis.findings[0]
    assert bars[1]["name"] != "today"
    assert next(bar["ms"] for bar in bars if bar.get("code") == first.code) == pytest.approx(
        first.predicted_step_ms
    )
    assert demo[0].findings[0].code == first.code


def test_a_fix_that_adds_nothing_to_those_above_it_is_said_to(
    demo: tuple[Diagnosis, dict[str, Any]],
) -> None:
    made = replace(
        demo[0],
        findings=(finding(), finding(code="pageable-copy"), finding(code="gc-pause")),
        ladder=(2.0, 2.0, 2.5),
    )
    bars = [
        bar for bar in page_of(Page(diagnosis=made))["data"]["picture"]["bars"] if "code" in bar
    ]
    after, none_more, last = [bar["name"] for bar in bars]
    assert mentions(after, "after serial-loader")
    assert mentions(none_more, "pageable-copy", "no more")
    assert mentions(last, "after gc-pause")
    assert [bar["ms"] for bar in bars] == pytest.approx([65.48 / 2, 65.48 / 2, 65.48 / 2.5])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda told: told["findings"][0].update(predicted_speedup=0),
        lambda told: told["findings"][0].update(predicted_speedup=10**400),
        lambda told: told["step"].update(ms=float("nan")),
        lambda told: told["ranks"][0]["partition_ms"].update(compute=float("inf")),
        lambda told: told.update(ladder=[0]),
        lambda told: told.update(findings={}),
        lambda told: told.update(notes=[{}]),
        lambda told: told.pop("verdict"),
    ],
)
def test_damaged_numbers_are_an_error_in_words(
    demo: tuple[Diagnosis, dict[str, Any]], tmp_path: Path, spoil: Any
) -> None:
    document = json.loads(to_json(demo[0]))
    spoil(document)
    kept = tmp_path / "diagnosis.json"
    kept.write_text(json.dumps(document))
    assert main(["report", str(kept), "-o", str(tmp_path / "r.html")]) == InputError.exit_code
    assert not (tmp_path / "r.html").exists()


def test_half_characters_do_not_break_it(
    demo: tuple[Diagnosis, dict[str, Any]], tmp_path: Path
) -> None:
    made = replace(
        demo[0], verdict=replace(demo[0].verdict, summary="a\ud800b"), notes=("c\udfffd",)
    )
    write(render_page(page_of(Page(diagnosis=made))), tmp_path / "r.html")
    assert "Half" not in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_nothing_found_is_not_said_where_nothing_was_judged(tmp_path: Path) -> None:
    trace = tmp_path / "empty.pt.trace.json"
    trace.write_text('{"traceEvents": []}')
    assert main(["report", str(trace), "--no-cache", "-o", str(tmp_path / "r.html")]) == 2
    text = " ".join(Reader((tmp_path / "r.html").read_text()).text["p"])
    assert mentions(text, "nothing could")
    assert "worth fixing" not in text


def test_a_data_block_cannot_end_its_element() -> None:
    block = data_block({"a": HOSTILE, "b": "<!--"})
    assert "<" not in block
    assert json.loads(block) == {"a": HOSTILE, "b": "<!--"}


def test_what_was_not_measured_is_said() -> None:
    made = scenarios.healthy()
    assert "not measured" not in Reader(render_page(page_of(Page(diagnosis=made)))).text["b"]
    made = replace(made, step=replace(made.step, ms=None, profiled_ms=None))
    assert "not measured" in Reader(render_page(page_of(Page(diagnosis=made)))).text["b"]


def test_a_kept_diagnosis_gives_a_page_without_its_traces(
    demo: tuple[Diagnosis, dict[str, Any]], tmp_path: Path
) -> None:
    kept = tmp_path / "diagnosis.json"
    kept.write_text(to_json(demo[0]))
    assert main(["report", str(kept), "-o", str(tmp_path / "r.html")]) == 0
    read = Reader((tmp_path / "r.html").read_text())
    assert demo[0].verdict.summary in "".join(read.text["h1"])
    assert not any(a.get("id") == "timeline" for _, a in read.tags)


@pytest.mark.parametrize("told", [{}, {"schema": "other/1"}, {"schema": "stepscope.diagnosis/1"}])
def test_what_is_no_diagnosis_is_said_to_be_none(told: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="diagnosis"):
        decode(json.dumps(told), DiagnosisDocument, "kept.json")


def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = lab_trace("single/elementwise_chain.slow")
    assert main(["report", str(trace), "--no-cache", "-o", str(tmp_path)]) != 0
    assert "is a folder" in capsys.readouterr().err
    assert main(["report", str(trace), "--no-cache", "-o", str(tmp_path / "no" / "r.html")]) != 0
    assert "No such file" in capsys.readouterr().err
    assert not list(tmp_path.glob("**/*.part"))


def test_a_hostile_trace_end_to_end(tmp_path: Path) -> None:
    """Names of kernels, operators and threads in a real trace made hostile."""
    raw = json.loads(unpacked(lab_trace("single/nchw.fixed")))
    for event in raw["traceEvents"]:
        if event.get("cat") in ("kernel", "cpu_op"):
            event["name"] += HOSTILE
    trace = tmp_path / f"{HOSTILE[:8].replace('/', '_')}.pt.trace.json"
    trace.write_text(json.dumps(raw))
    assert main(["report", str(trace), "--no-cache", "-o", str(tmp_path / "r.html")]) == 0
    read = Reader((tmp_path / "r.html").read_text())
    assert not [tag for tag, _ in read.tags if tag == "img"]
    assert any("onerror" in text for text in read.text["th"]), "it is shown"


def test_the_timeline_tells_waiting_from_moving_bytes_as_the_partition_does() -> None:
    paths = lab_traces("rank_traces/pp_gpipe_w4.slow.*")
    with Recording(paths, Options(use_cache=False, jobs=1)) as recording:
        facts = recording.diagnosis.facts.median_rank
        assert facts.partition is not None
        assert facts.partition.waits_split
        timeline = page_of(page_of_recording(recording))["data"]["timeline"]
    spent = dict.fromkeys((part for part, _ in timeline["parts"]), 0)
    for code, dur_ns in zip(timeline["gap_parts"], timeline["gaps"], strict=True):
        spent[timeline["parts"][code][0]] += dur_ns
    window = facts.steps.median_windows[0]
    assert spent["comms_wait"] > 0
    assert spent == {part: facts.partition.parts[part][window] for part in PARTS}


def test_measured_roofs_take_the_place_of_the_datasheets(tmp_path: Path) -> None:
    peaks = SAMPLES / "formats" / "peaks.json"
    trace = tmp_path / "t.pt.trace.json.gz"
    trace.write_bytes(
        (resources.files("stepscope") / "data" / "demo.pt.trace.json.gz").read_bytes()
    )
    told = []
    for more in ([], ["--roofs", str(peaks)]):
        assert (
            main(["report", str(trace), "--no-cache", "-o", str(tmp_path / "r.html"), *more]) == 0
        )
        told.append(
            json.loads(Reader((tmp_path / "r.html").read_text()).text["script"][0])["roofline"]
        )
    assert told[0]["source"] == "datasheet"
    assert told[1]["source"] == "measured, peaks.json"
    assert told[1]["bandwidth"] == pytest.approx(4.26680638e12)
    assert told[1]["peaks"]["bf16"] < told[0]["peaks"]["bf16"]
