"""`stepscope plan --recorded-memory`: the plan's memory compared with recordings, and reasons where
it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from tests.memory_snapshots import FORWARD, LOOP, MB, Story, pickled, training
from tests.shared_data import DEMO, SAMPLES
from tests.wording import mentions

FORMATS = SAMPLES / "formats"
LAYOUT = "tp1-pp1-dp1-mb4"
PARTS = ["weights", "gradients", "optimizer", "activations", "others", "peak", "reserved"]
LAB_MODEL = {
    "model_type": "gpt2", "n_embd": 1024, "n_layer": 6, "n_head": 16, "n_positions": 1024,
    "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
"""What the lab's memory was recorded of (lab.py's GPT, six layers): 4 sequences of 1024 under
autocast, plain AdamW."""


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LAB_MODEL))
    shape = ("--seq", "1024", "--global-batch", "4", "--framework", "ddp")
    return ["plan", "--model", str(path), "--cluster", "1xH200", *shape, "--explain", LAYOUT]


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickled(training(3).snapshot()))
    return str(path)


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--format", "json"]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, Any] = json.loads(captured.out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_the_plan_of_the_labs_model_is_near_what_was_recorded(
    job: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The counters of the same run tell peak and reserved independently of the snapshot."""
    counters = json.loads((FORMATS / "memory_stats.json").read_text())
    found = told(capsys, *job, "--recorded-memory", str(FORMATS / "memory_snapshot.pickle.zst"))
    rows = {row["part"]: row for row in found["recorded_memory"]["rows"]}
    assert list(rows) == PARTS
    assert rows["peak"]["most_bytes"] == counters["allocated_bytes.all.peak"]
    assert rows["reserved"]["most_bytes"] == counters["reserved_bytes.all.peak"]
    in_block = 12 * 1024**2 + 9 * 1024
    num_params = (2 * 32000 + 1024 + 2) * 1024 + 6 * in_block
    assert rows["optimizer"]["planned_bytes"] == pytest.approx(8 * num_params, rel=1e-3)
    assert rows["optimizer"]["ratio"] == pytest.approx(1, abs=0.01)
    # Let go after each update: a step of one micro-batch has none of them at its peak.
    assert rows["gradients"]["planned_bytes"] == 0
    # Four bytes of a weight are recorded, six are planned: autocast's copy is one of the forward
    # pass's tensors.
    assert rows["weights"]["ratio"] == pytest.approx(1.5, abs=0.02)
    assert any(
        "autocast's half-precision copies" in note for note in found["recorded_memory"]["notes"]
    )
    assert rows["gradients"]["at_peak_bytes"] < 0.01 * rows["gradients"]["most_bytes"]
    assert any(mentions(note, "before the backward") for note in found["recorded_memory"]["notes"])
    assert rows["peak"]["ratio"] == pytest.approx(1, abs=0.1)
    assert rows["reserved"]["ratio"] == pytest.approx(1, abs=0.1)


def test_parts_are_the_accounts_and_add_up(
    job: list[str], snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, *job, "--recorded-memory", snapshot)
    recorded, memory = found["recorded_memory"], found["explained"]["memory_parts_bytes"]
    assert (recorded["layout"], recorded["recordings"]) == (LAYOUT, [snapshot])
    rows = {row["part"]: row for row in recorded["rows"]}
    assert rows["weights"]["planned_bytes"] == pytest.approx(memory["weights"], abs=1)
    assert rows["activations"]["planned_bytes"] == pytest.approx(
        memory["activations"] + memory["logits"], abs=1
    )
    parts = sum(rows[part]["planned_bytes"] for part in PARTS[:5])
    assert rows["peak"]["planned_bytes"] == parts
    assert rows["reserved"]["planned_bytes"] == pytest.approx(
        found["explained"]["memory_bytes"] - memory["context"], abs=9
    )
    assert [rows[part]["most_bytes"] for part in PARTS[:4]] == [
        100 * MB,
        100 * MB,
        200 * MB,
        300 * MB,
    ]
    assert rows["weights"]["ratio"] == pytest.approx(memory["weights"] / (100 * MB))
    assert rows["others"]["ratio"] is None
    assert rows["peak"]["at_peak_bytes"] == 764 * MB


def test_the_best_layout_stands_beside_where_none_is_asked_about(
    job: list[str], snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # As the option was called before.
    found = told(capsys, *job[:-2], "--beside", snapshot)
    assert found["recorded_memory"]["layout"] == found["best"]["name"]
    assert "recorded_memory" not in told(capsys, *job)


def test_nothing_planned_is_nothing_not_zero(
    snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = (
        "plan",
        "--model",
        "llama3-70b",
        "--cluster",
        "1xH100",
        "--seq",
        "8192",
        "--global-batch",
        "1",
    )
    recorded = told(capsys, *job, "--recorded-memory", snapshot, code=1)["recorded_memory"]
    assert recorded["layout"] is None
    assert {row["planned_bytes"] for row in recorded["rows"]} == {None}
    assert {row["ratio"] for row in recorded["rows"]} == {None}
    assert recorded["rows"][0]["most_bytes"] == 100 * MB


def test_counters_tell_the_whole_and_no_part(
    job: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "memory_stats.json"
    path.write_text(
        json.dumps({"allocated_bytes.all.peak": 4 << 30, "reserved_bytes.all.peak": 5 << 30})
    )
    recorded = told(capsys, *job, "--recorded-memory", str(path))["recorded_memory"]
    rows = {row["part"]: row for row in recorded["rows"]}
    assert list(rows) == PARTS
    assert [rows[part]["most_bytes"] for part in PARTS] == [None] * 5 + [4 << 30, 5 << 30]
    assert rows["peak"]["ratio"] == pytest.approx(rows["peak"]["planned_bytes"] / (4 << 30))
    assert [rows[part]["ratio"] for part in PARTS[:5]] == [None] * 5
    (note,) = recorded["notes"]
    assert mentions(note, "not recorded", "snapshot with stacks")


def test_a_peak_of_another_file_is_said(
    job: list[str], snapshot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "memory_stats.json"
    path.write_text(
        json.dumps({"allocated_bytes.all.peak": 4 << 30, "reserved_bytes.all.peak": 5 << 30})
    )
    recorded = told(capsys, *job, "--recorded-memory", snapshot, str(path))["recorded_memory"]
    rows = {row["part"]: row for row in recorded["rows"]}
    assert (rows["weights"]["most_bytes"], rows["peak"]["most_bytes"]) == (100 * MB, 4 << 30)
    assert any(
        mentions(note, f"those of {snapshot}", f"that of {path}") for note in recorded["notes"]
    )


def test_what_nobody_can_name_has_no_ratio(
    job: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = Story()
    story.alloc(90 * MB, LOOP)
    story.alloc(10 * MB, FORWARD)
    path = tmp_path / "s.pickle"
    path.write_bytes(pickled(story.snapshot()))
    recorded = told(capsys, *job, "--recorded-memory", str(path))["recorded_memory"]
    assert [row["ratio"] is None for row in recorded["rows"]] == [True] * 5 + [False] * 2
    assert any("of unknown use" in note for note in recorded["notes"])


def test_the_table_is_in_the_terminal_and_on_the_page(
    job: list[str], snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*job, "--recorded-memory", snapshot]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    lines = [line.split() for line in text[text.index("Compared with") :].splitlines()]
    weights = next(line for line in lines if line[:1] == ["weights"])
    assert weights == ["weights", "0.79", "GiB", "0.10", "GiB", "0.10", "GiB", "8.13x"]
    assert main([*job, "--recorded-memory", snapshot, "--format", "html"]) == 0
    page = capsys.readouterr().out
    section = page[page.index("The account: compared with") :].partition("</section>")[0]
    assert ">recorded</th>" in section
    assert '<td class="n">0.10\u00a0GiB</td>' in section


@pytest.mark.parametrize("style", ["terminal", "html"])
def test_a_hostile_files_name_is_text(
    job: list[str],
    tmp_path: Path,
    style: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "<script>x[bold]\x1b[31m.pickle"
    path.write_bytes(pickled(training(2).snapshot()))
    # A long path would be shortened, and the name with it.
    monkeypatch.chdir(tmp_path)
    assert main([*job, "--recorded-memory", path.name, "--format", style]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert ("<script>x" in out) == (style == "terminal")


def test_what_is_no_recording_of_memory_is_refused_in_words(
    job: list[str], snapshot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "smi.csv"
    log.write_text(
        "timestamp, index, name, memory.used [MiB]\n2026/11/15 02:01:04.497, 0, NVIDIA H200, 1 "
        "MiB\n"
    )
    for wrong, word in (
        (DEMO, ". Give"),
        (tmp_path / "config.json", ". Give"),
        (log, "format is nvidia-smi"),
    ):
        message = refused(capsys, *job, "--recorded-memory", snapshot, str(wrong))
        assert str(wrong) in message
        assert mentions(message, "no recording")
        assert "memory snapshot" in message
        assert word in message
    assert "does not exist" in refused(capsys, *job, "--recorded-memory", str(tmp_path / "none"))
    broken = tmp_path / "broken.pickle"
    broken.write_bytes(Path(snapshot).read_bytes()[:4000])
    assert "broken.pickle" in refused(capsys, *job, "--recorded-memory", str(broken))


def test_other_files_of_a_folder_are_left_out_and_counted(
    job: list[str], snapshot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recorded"
    folder.mkdir()
    (folder / "snapshot.pickle").write_bytes(Path(snapshot).read_bytes())
    (folder / "trace.json.gz").write_bytes(DEMO.read_bytes())
    recorded = told(capsys, *job, "--recorded-memory", str(folder))["recorded_memory"]
    assert recorded["recordings"] == [str(folder / "snapshot.pickle")]
    assert any(note.startswith("1 other file(s)") for note in recorded["notes"])


def test_it_needs_a_model(
    snapshot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "give --model" in refused(
        capsys, "plan", "--from", str(DEMO), "--nodes", "2", "--recorded-memory", snapshot
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    assert "--recorded-memory" in refused(
        capsys, "plan", "--rows", str(rows), "--format", "json", "--recorded-memory", snapshot
    )


def test_a_plan_is_compared_with_memory_beside_its_run(
    snapshot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo's job has twelve layers and a batch of 8."""
    plan, path = tmp_path / "PLAN.json", tmp_path / "config.json"
    path.write_text(json.dumps(LAB_MODEL | {"n_layer": 12}))
    shape = ("--seq", "1024", "--global-batch", "8", "--framework", "ddp")
    job = ["plan", "--model", str(path), "--cluster", "1xH200", *shape]
    job += ["--explain", "tp1-pp1-dp1-mb8"]
    assert main([*job, "--format", "json", "-o", str(plan)]) == 0
    capsys.readouterr()
    document = told(capsys, "compare", str(plan), str(DEMO), snapshot, "--step-ms", "65.48")
    memory = document["memory"]
    assert memory["measured_bytes"] > 0
    factor = memory["measured_bytes"] / memory["planned_bytes"]
    assert document["factors"]["memory"] == pytest.approx(factor)
