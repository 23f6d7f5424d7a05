"""What other tools recorded, in the HTML report: shown whole, beside a trace or alone, and as text
whatever it says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from stepscope.cli.main import main
from stepscope.core.codec import decode
from stepscope.core.diagnosis import Diagnosis, DiagnosisDocument
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.kernels import KernelRecording, KernelReport
from stepscope.core.recordings.recording import Recording, RecordingText, Table, lines_of
from stepscope.core.run import RunFacts
from stepscope.errors import InputError
from stepscope.pipeline.page import Page
from stepscope.report import recording_text as recordings_text
from stepscope.report.diagnosis.json import to_json
from stepscope.report.html import render_page
from stepscope.report.html.auxiliary import MAX_SHOWN
from stepscope.report.html.model import page_of, page_of_document
from stepscope.report.recording_text import text_of
from stepscope.report.words import clean
from stepscope.rules.without_trace import diagnose_auxiliary, diagnose_without_trace
from tests import scenarios
from tests.nccl_logs import read_text, two_nodes
from tests.report.test_html import HOSTILE, Reader
from tests.report.test_nccl_view import with_log
from tests.shared_data import DEMO, SAMPLES
from tests.wording import any_mentions, mentions

FORMATS = SAMPLES / "formats"
ADVICE = Advice(
    code="low-occupancy",
    bound="compute",
    summary="The grid of one kernel does not fill the device.",
    action="a larger batch",
    evidence=("32 blocks on 132 multiprocessors", "0.12 waves"),
    weight=0.34,
    weight_of="the step",
)
RECORDING = RecordingText(
    format="ncu-csv",
    paths=("one.csv", "two.csv"),
    lines=lines_of([("launches", "12 of 9 kernels")]),
    tables=(
        Table(
            title="Kernels, by time",
            columns=("kernel", "us", "waits for"),
            rows=(("gemm", "344.1", "-"),),
            right=(1,),
        ),
    ),
    notes=("the last row was cut",),
)


class Worded(KernelRecording, frozen=True, kw_only=True):
    """A recording of which the report says what the test wants."""

    text: RecordingText


@pytest.fixture(autouse=True)
def worded(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(recording: Recording) -> RecordingText:
        return recording.text if isinstance(recording, Worded) else text_of(recording)

    monkeypatch.setattr(recordings_text, "text_of", said)


def auxiliary(*texts: RecordingText) -> Auxiliary:
    recordings = tuple(
        Worded(format=text.format, paths=text.paths, notes=text.notes, text=text) for text in texts
    )
    return Auxiliary(kernels=KernelReport(recordings=recordings))


def beside(recording: RecordingText = RECORDING, advice: Advice = ADVICE) -> Diagnosis:
    """A healthy traced run with one recording of another tool."""
    made = scenarios.healthy()
    return structs.replace(
        made, advice=(advice,), facts=structs.replace(made.facts, auxiliary=auxiliary(recording))
    )


def section(text: str) -> str:
    return text.partition('<section id="auxiliary">')[2].partition("</section>")[0]


def cells(text: str) -> list[tuple[str, str | None, str | None]]:
    """Tag, class and title of every cell of the section."""
    return [
        (tag, attributes.get("class"), attributes.get("title"))
        for tag, attributes in Reader(section(text)).tags
        if tag in ("th", "td")
    ]


def test_advice_and_recordings_stand_in_the_text() -> None:
    read = Reader(section(render_page(page_of(Page(diagnosis=beside())))))
    assert "low-occupancy" in "".join(read.text["h3"])
    assert "ncu-csv" in "".join(read.text["h3"])
    assert {"34\u00a0% of the step", ADVICE.summary, "one.csv, two.csv"} <= set(read.text["p"])
    assert "code" not in read.text, "words are no code to copy"
    assert ADVICE.action in read.text["p"]
    assert read.text["li"] == [*ADVICE.evidence, "the last row was cut"]
    assert (read.text["dt"], read.text["dd"]) == (["launches"], ["12 of 9 kernels"])
    assert "Kernels, by time" in read.text["summary"]
    assert [text for text in read.text["th"] if text.strip()] == [
        "kernel",
        "us",
        "waits for",
        "gemm",
    ]
    assert read.text["td"] == ["344.1", "-"]
    assert any("What it sees:" in text for text in read.text["p"]), "what `stepscope explain` says"


def test_an_advice_without_a_weight_says_none() -> None:
    text = render_page(page_of(Page(diagnosis=beside(advice=structs.replace(ADVICE, weight=None)))))
    assert '<p class="weight">' in render_page(page_of(Page(diagnosis=beside())))
    assert '<p class="weight">' not in text


def test_nothing_beside_the_trace_leaves_no_section() -> None:
    made = scenarios.healthy()
    for recordings in (None, Auxiliary(), Auxiliary(notes=("x.csv could not be read",))):
        text = render_page(
            page_of(
                Page(
                    diagnosis=structs.replace(
                        made, facts=structs.replace(made.facts, auxiliary=recordings)
                    )
                )
            )
        )
        assert 'id="auxiliary"' not in text
    assert 'id="auxiliary"' in render_page(page_of(Page(diagnosis=beside())))


def test_a_strangers_text_stays_text() -> None:
    table = Table(title=HOSTILE, columns=(HOSTILE, HOSTILE), rows=((HOSTILE, HOSTILE * 3),))
    recording = RecordingText(
        format=HOSTILE,
        paths=(HOSTILE,),
        lines=lines_of([(HOSTILE, HOSTILE)]),
        tables=(table,),
        notes=(HOSTILE,),
    )
    advice = Advice(
        code=HOSTILE,
        bound=HOSTILE,
        summary=HOSTILE,
        action=HOSTILE,
        evidence=(HOSTILE,),
        weight=1,
        weight_of=HOSTILE,
    )
    hostile, plain = (
        Reader(render_page(page_of(Page(diagnosis=diagnosis))))
        for diagnosis in (beside(recording, advice), beside())
    )
    assert not [tag for tag, _ in hostile.tags if tag == "img"]
    assert [tag for tag, _ in hostile.tags].count("script") == [tag for tag, _ in plain.tags].count(
        "script"
    )
    assert not [
        name for _, attributes in hostile.tags for name in attributes if name.startswith("on")
    ]
    for element in ("h3", "p", "li", "dt", "dd", "summary", "th"):
        assert any(clean(HOSTILE) in text for text in hostile.text[element]), (
            f"shown as it is in {element}"
        )


def test_a_hostile_kernel_in_a_file_end_to_end(tmp_path: Path) -> None:
    name = "evil<script>alert(1)</script>"
    fixed = (
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Block Size",
        "Grid Size",
    )
    rows = (
        (*fixed, "gpu__time_duration.sum", "dram__bytes_read.sum"),
        (*[""] * len(fixed), "ns", "byte"),
        ("0", "1", "python", "h", name, "(128, 1, 1)", "(64, 2, 1)", "4000", "1000"),
    )
    recorded = tmp_path / "ncu.csv"
    recorded.write_text("".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows))
    trace = tmp_path / "t.pt.trace.json.gz"
    shutil.copy(DEMO, trace)
    assert (
        main(["report", str(trace), str(recorded), "--no-cache", "-o", str(tmp_path / "r.html")])
        == 0
    )
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert name in Reader(section(text)).text["th"], "it is shown, as text"
    assert 'id="timeline"' in text, "the trace is drawn as ever"


def test_a_long_name_is_cut_and_has_the_whole_in_its_title() -> None:
    long = "void at::native::" + "x" * 400
    table = Table(title="t", columns=("kernel", "by"), rows=((long, long), ("short", "")))
    text = render_page(page_of(Page(diagnosis=beside(replace(RECORDING, tables=(table,))))))
    assert [title for _, _, title in cells(text)] == [None, None, long, long, None, None]
    assert max(map(len, Reader(section(text)).text["th"])) == MAX_SHOWN["characters"]


def test_rows_shorter_and_longer_than_the_head_are_made_to_fit() -> None:
    table = Table(
        title="t", columns=("a", "b"), rows=(("1",), ("1", "2", "3"), ("", "2")), right=(1,)
    )
    text = render_page(page_of(Page(diagnosis=beside(replace(RECORDING, tables=(table,))))))
    kinds = [(tag, which) for tag, which, _ in cells(text)]
    row = [("th", None), ("td", "n")]
    assert kinds == [("th", None), ("th", "n"), *row, *row, ("td", None), ("td", "n")], (
        "an empty cell heads no row"
    )


def test_what_is_beyond_the_bounds_is_counted() -> None:
    table = Table(title="t", columns=("a",), rows=(("r",),) * (MAX_SHOWN["rows"] + 1))
    wide = Table(title="w", columns=("c",) * 30, rows=(("r",) * 30,))
    recording = replace(
        RECORDING,
        paths=("p",) * 6,
        lines=lines_of([("l", "v")]) * (MAX_SHOWN["lines"] + 3),
        tables=(table, wide, *(RECORDING.tables * MAX_SHOWN["tables"])),
        notes=("n",) * (MAX_SHOWN["lines"] + 5),
    )
    made = beside(recording, structs.replace(ADVICE, evidence=("e",) * (MAX_SHOWN["evidence"] + 7)))
    many = structs.replace(
        made,
        facts=structs.replace(
            made.facts, auxiliary=auxiliary(recording, *((RECORDING,) * MAX_SHOWN["recordings"]))
        ),
    )
    said = " ".join(Reader(section(render_page(page_of(Page(diagnosis=many))))).text["p"])
    for num, noun in (
        (1, "row"),
        (6, "columns"),
        (3, "lines"),
        (2, "tables"),
        (5, "notes"),
        (7, "lines"),
        (1, "recording"),
    ):
        assert mentions(said, f"{num} more {noun}", "left out")
    assert mentions(said, "p, p, p, p", "2 more")


def test_tables_stand_open_where_there_is_no_trace() -> None:
    alone = diagnose_auxiliary(auxiliary(RECORDING))
    for made, is_open in ((beside(), False), (alone, True)):
        told = [
            told
            for tag, told in Reader(section(render_page(page_of(Page(diagnosis=made))))).tags
            if tag == "details"
        ]
        assert ("open" in told[-1]) is is_open


def test_recordings_alone_give_a_page() -> None:
    text = render_page(page_of(Page(diagnosis=diagnose_auxiliary(auxiliary(RECORDING)))))
    read = Reader(text)
    assert mentions("".join(read.text["h1"]), "no trace")
    assert "2\u00a0recordings, no trace" in read.text["span"]
    assert "not measured" in read.text["b"], "no step time is told"
    assert not mentions(" ".join(read.text["p"]), "nothing could")
    assert not [
        attributes
        for _, attributes in read.tags
        if attributes.get("id") in ("step", "timeline", "ranks", "kernels")
    ]
    ids = {attributes["id"] for _, attributes in read.tags if attributes.get("id")}
    assert {
        (attributes.get("href") or "")[1:] for tag, attributes in read.tags if tag == "a"
    } <= ids, "every link leads somewhere"


def test_a_run_without_a_recorded_step_has_them_too() -> None:
    run = RunFacts(path="runs/one", command=("python", "train.py"), exit_code=0, ranks=())
    made = diagnose_without_trace(run, auxiliary=auxiliary(RECORDING))
    read = Reader(render_page(page_of(Page(diagnosis=made))))
    assert "python train.py" in read.text["span"]
    assert any("ncu-csv" in text for text in read.text["h3"])


def test_a_log_that_tells_the_step_is_a_number_and_no_picture() -> None:
    made = diagnose_auxiliary(auxiliary(RECORDING))
    made = structs.replace(made, step=structs.replace(made.step, count=8, ms=500.0, source="log"))
    read = Reader(render_page(page_of(Page(diagnosis=made))))
    assert "500 ms" in [text.replace("500.0", "500") for text in read.text["b"]]
    assert any_mentions(read.text["span"], "job's own log")
    assert not [
        attributes for _, attributes in read.tags if attributes.get("id") == "picture-chart"
    ]


def kept(document: dict[str, Any]) -> DiagnosisDocument:
    return decode(json.dumps(document), DiagnosisDocument, "kept.json")


def test_a_kept_diagnosis_shows_the_same(tmp_path: Path) -> None:
    made = beside()
    kept = tmp_path / "diagnosis.json"
    kept.write_text(to_json(made))
    assert main(["report", str(kept), "-o", str(tmp_path / "r.html")]) == 0
    assert section((tmp_path / "r.html").read_text(encoding="utf-8")) == section(
        render_page(page_of(Page(diagnosis=made)))
    )


def test_a_log_of_nccl_is_shown_and_a_kept_one_the_same(tmp_path: Path) -> None:
    made = with_log(read_text(tmp_path, two_nodes() + f"h:1:1 [0] misc.cc:1 NCCL WARN {HOSTILE}\n"))
    text = section(render_page(page_of(Page(diagnosis=made))))
    read = Reader(text)
    assert mentions("".join(read.text["span"]), "NCCL wrote")
    lines = dict(
        zip(
            read.text["dt"],
            (value.replace("\u00a0", " ") for value in read.text["dd"]),
            strict=True,
        )
    )
    communicator = lines["communicator"]
    assert mentions(communicator, "4 ranks", "2 nodes", "2 channels", "ring 0 1 2 3")
    assert lines["connections"].startswith(
        "P2P/CUMEM/read 4, NET/IB/GDRDMA/Shared 3, NET/IB/Shared 1"
    )
    assert lines["warning"] == clean(HOSTILE)
    assert any_mentions(read.text["li"], "2 of 4 network connections")
    assert not [tag for tag, _ in read.tags if tag in ("img", "script")]
    document = json.loads(to_json(made))
    assert section(render_page(page_of_document(kept(document)))) == text
    for spoilt in (
        {"library": 1},
        {"connections": [{"rank": 0}]},
        {"communicators": ["x"]},
        {"notes": "x"},
    ):
        with pytest.raises(InputError, match="not a diagnosis"):
            kept(document | {"nccl": document["nccl"] | spoilt})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda told: told.update(advice={}),
        lambda told: told["advice"][0].update(weight="much"),
        lambda told: told["advice"][0].update(evidence="one"),
        lambda told: told["advice"][0].pop("action"),
        lambda told: told.update(recordings=[1]),
        lambda told: told["recordings"][0].update(lines=["a"]),
        lambda told: told["recordings"][0]["tables"][0].update(rows=[[{}]]),
        lambda told: told["recordings"][0]["tables"][0].update(title=None),
    ],
)
def test_a_damaged_one_is_an_error_in_words(spoil: Callable[[Any], None]) -> None:
    told = json.loads(to_json(beside()))
    kept(told)
    spoil(told)
    with pytest.raises(InputError, match="not a diagnosis"):
        kept(told)


def test_a_profile_that_names_our_modules_is_no_kept_diagnosis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": "stepscope.capture.loop"}, {"name": "forward"}]},
        "profiles": [
            {
                "type": "sampled",
                "name": "stepscope.capture",
                "unit": "seconds",
                "startValue": 0,
                "endValue": 1,
                "samples": [[0], [1]],
                "weights": [0.5, 0.5],
            }
        ],
    }
    path = tmp_path / "spy.json"
    path.write_text(json.dumps({"name": "stepscope.capture"} | profile))
    assert main(["report", str(path), "--no-cache", "-o", str(tmp_path / "r.html")]) == 0, (
        capsys.readouterr().err
    )
    assert 'id="auxiliary"' in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_lab_s_recordings_give_a_page(tmp_path: Path) -> None:
    paths = [
        str(FORMATS / name)
        for name in ("ncu_raw.csv", "torch_logs.txt", "nvidia_smi.csv", "memory_stats.json")
    ]
    assert main(["report", *paths, "--no-cache", "-o", str(tmp_path / "r.html")]) == 0
    read = Reader(section((tmp_path / "r.html").read_text(encoding="utf-8")))
    heads = "".join(read.text["h3"])
    assert all(
        name in heads
        for name in ("ncu-csv", "torch-logs", "nvidia-smi", "memory-stats", "memory-stalls")
    )
    # The longest of the twelve launches, as the file has it: 344,064 ns.
    assert "344.1" in read.text["td"]
