"""`diagnose --scaling` as a user runs it: jobs whose loss is known, words on stderr, and the JSON
contract."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.core.facts import Facts
from stepscope.core.scaling import SCALING_PARTS
from stepscope.pipeline import recording
from stepscope.pipeline.options import Options
from stepscope.scaling.command import scale_paths
from tests.scaling_jobs import FEATURES, strong_series, write_job
from tests.scenarios import rank_facts
from tests.shared_data import SAMPLES, SHARED, needs_shared
from tests.wording import mentions

TOP_KEYS = {"schema", "scaling", "runs", "amdahl", "notes"}
RUN_KEYS = {
    "path", "width", "width_source", "ranks_read", "device", "step", "partition_ms",
    "flops_per_rank", "gradient_bytes", "rate_per_s", "rate_unit", "against_base", "notes",
}  # fmt: skip
STEP_KEYS = {"count", "ms", "low_ms", "high_ms", "profiled_ms", "source"}
GAIN_KEYS = {
    "ideal_speedup", "speedup", "efficiency", "efficiency_low", "efficiency_high", "karp_flatt",
    "ideal_ms", "lost_ms", "lost_parts_ms", "worst",
}  # fmt: skip


def scaled(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert (
        main(["diagnose", "--scaling", *arguments, "--format", "json", "--no-cache", "--jobs", "1"])
        == 0
    )
    captured = capsys.readouterr()
    assert captured.err == ""
    result: dict[str, Any] = json.loads(captured.out)
    return result


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["diagnose", *arguments, "--no-cache", "--jobs", "1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def nonzero(parts: dict[str, float]) -> dict[str, float]:
    return {part: ms for part, ms in parts.items() if ms}


def test_a_weak_series_loses_what_was_planted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_job(tmp_path / "one", 1)
    two = write_job(tmp_path / "two", 2, late_us=500, moving_us=1000)
    four = write_job(tmp_path / "four", 4, late_us=1000, moving_us=3000)
    found = scaled(capsys, four, one, two)
    assert found["scaling"]["kind"] == "weak"
    assert [run["width"] for run in found["runs"]] == [1, 2, 4]
    assert [run["width_source"] for run in found["runs"]] == ["recorded"] * 3
    base, half, wide = found["runs"]
    assert base["flops_per_rank"] == 2 * 512 * FEATURES**2
    assert base["against_base"] is None
    assert half["against_base"]["efficiency"] == pytest.approx(8 / 9.5)
    assert nonzero(half["against_base"]["lost_parts_ms"]) == {
        "compute": 0.25,
        "comms_wait": 0.25,
        "comms_transfer": 1.0,
    }
    assert wide["against_base"]["speedup"] == pytest.approx(4 * 8 / 12)
    assert nonzero(wide["against_base"]["lost_parts_ms"]) == {
        "compute": 0.25,
        "comms_wait": 0.75,
        "comms_transfer": 3.0,
    }
    assert wide["against_base"]["worst"] == "comms_transfer"
    assert wide["against_base"]["karp_flatt"] is None
    assert found["amdahl"] is None


def test_a_strong_series_loses_what_was_planted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = scaled(capsys, *strong_series(tmp_path))
    why = found["scaling"].pop("because")
    assert found["scaling"] == {"kind": "strong", "source": "measured"}
    assert mentions(why, "FLOPs", "width 1: 0.5x at width 2, 0.25x at width 4")
    _, half, wide = (run["against_base"] for run in found["runs"])
    assert (half["speedup"], half["efficiency"], half["karp_flatt"]) == (
        1.6,
        0.8,
        pytest.approx(0.25),
    )
    assert nonzero(half["lost_parts_ms"]) == {"comms_transfer": 1.0}
    assert (wide["ideal_ms"], wide["lost_ms"], wide["worst"]) == (2.0, 1.5, "comms_wait")
    assert nonzero(wide["lost_parts_ms"]) == {
        "compute": 0.3,
        "comms_wait": 0.9,
        "comms_transfer": 0.3,
    }
    assert found["amdahl"]["num_widths"] == 3
    assert found["amdahl"]["serial_fraction"] == pytest.approx(0.25)


def test_two_widths_have_no_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = scaled(capsys, *strong_series(tmp_path)[:2])
    assert found["amdahl"] is None
    assert found["runs"][1]["against_base"]["karp_flatt"] == pytest.approx(0.25)


def test_the_json_is_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = scaled(
        capsys, write_job(tmp_path / "one", 1), write_job(tmp_path / "two", 2, moving_us=1000)
    )
    assert found["schema"] == "stepscope.scaling/1"
    assert set(found) == TOP_KEYS
    assert set(found["scaling"]) == {"kind", "source", "because"}
    for run in found["runs"]:
        assert set(run) == RUN_KEYS
        assert set(run["step"]) == STEP_KEYS
        assert set(run["partition_ms"]) == set(SCALING_PARTS)
    assert set(found["runs"][1]["against_base"]) == GAIN_KEYS
    assert set(found["runs"][1]["against_base"]["lost_parts_ms"]) == set(SCALING_PARTS)


def test_given_steps_belong_to_the_runs_in_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_job(tmp_path / "one", 1)
    two = write_job(tmp_path / "two", 2, moving_us=1000)
    found = scaled(capsys, two, one, "--step-ms", "8.6", "--step-ms", "7.5")
    assert [(run["step"]["ms"], run["step"]["source"]) for run in found["runs"]] == [
        (7.5, "given"),
        (8.6, "given"),
    ]
    assert [run["step"]["profiled_ms"] for run in found["runs"]] == [8.0, 9.0]
    wide = found["runs"][1]["against_base"]
    assert wide["efficiency"] == pytest.approx(7.5 / 8.6)
    assert wide["lost_parts_ms"]["unprofiled"] == pytest.approx(0.1)
    assert (
        sum(wide["lost_parts_ms"].values()) == pytest.approx(wide["lost_ms"]) == pytest.approx(1.1)
    )


def test_seven_steps_give_an_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_job(tmp_path / "one", 1, num_steps=9, jitter_us=400)
    two = write_job(tmp_path / "two", 2, num_steps=9, moving_us=1000)
    wide = scaled(capsys, one, two)["runs"][1]["against_base"]
    assert wide["efficiency_low"] == pytest.approx(8 / 9)
    assert wide["efficiency_high"] == pytest.approx(8.4 / 9)


def test_without_shapes_the_kind_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_job(tmp_path / "one", 1, shapes=False)
    two = write_job(tmp_path / "two", 2, moving_us=1000, shapes=False)
    found = scaled(capsys, one, two)
    assert (found["scaling"]["kind"], found["scaling"]["source"]) == (None, "not measured")
    assert [run["against_base"] for run in found["runs"]] == [None, None]
    assert [run["step"]["ms"] for run in found["runs"]] == [8.0, 9.0]
    assert main(["diagnose", "--scaling", one, two, "--no-cache", "--jobs", "1"]) == 0
    assert "--scaling-kind weak" in capsys.readouterr().out
    asked = scaled(capsys, one, two, "--scaling-kind", "weak")
    assert asked["scaling"]["source"] == "given"
    assert asked["runs"][1]["against_base"]["efficiency"] == pytest.approx(8 / 9)


def test_a_width_that_is_not_recorded_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_job(tmp_path / "one", 1, recorded_width=False)
    two = write_job(tmp_path / "two", 2, moving_us=1000, recorded_width=False)
    assert [(run["width"], run["width_source"]) for run in scaled(capsys, one, two)["runs"]] == [
        (1, "counted"),
        (2, "counted"),
    ]
    assert main(["diagnose", "--scaling", one, two, "--no-cache", "--jobs", "1"]) == 0
    assert mentions(capsys.readouterr().out, "no world size")


def test_one_trace_of_a_wide_job_has_its_width_and_no_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_job(tmp_path / "one", 1)
    write_job(tmp_path / "four", 4, late_us=1000, moving_us=3000)
    wide = scaled(capsys, one, str(tmp_path / "four" / "rank0.json"))["runs"][1]
    assert (wide["width"], wide["ranks_read"]) == (4, 1)
    assert wide["against_base"]["lost_parts_ms"]["comms_wait"] is None
    assert wide["against_base"]["lost_parts_ms"]["comms_transfer"] == 4.0


def test_another_model_is_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_job(tmp_path / "one", 1)
    two = write_job(tmp_path / "two", 2, moving_us=1000, op="aten::bmm")
    found = scaled(capsys, one, two, "--scaling-kind", "weak")
    assert any(mentions(note, "widths 1 and 2", "different models") for note in found["notes"])


def test_runs_of_one_width_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (
        write_job(tmp_path / "one", 2, moving_us=10),
        write_job(tmp_path / "other", 2, moving_us=10),
    )
    message = refused(capsys, "--scaling", one, other)
    assert mentions(message, f"{one} and {other}", "2 ranks")
    assert "different widths" in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scaling", "a"), "two or more"),
        (("--scaling", "a", "b", "--step-ms", "20"), "give --step-ms 2 times"),
        (
            ("--scaling", "a", "b", "--step-ms", "20", "--step-ms", "21", "--step-ms", "22"),
            "3 were given",
        ),
        (("--scaling", "a", "b", "--all"), "leave out one"),
        (("a", "--scaling-kind", "weak"), "together with --scaling"),
        (("a", "--step-ms", "20", "--step-ms", "21"), "--step-ms was given 2 times"),
        (("--scaling", "/no/such/run", "b"), "/no/such/run does not exist"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, *arguments)


def test_a_job_is_gone_when_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Job(SimpleNamespace):
        """A subclass, because only those can be held weakly."""

    held: list[weakref.ref[Job]] = []

    def measured(paths: Sequence[str], options: Options) -> Any:
        assert all(job() is None for job in held)
        facts = Facts(ranks=(rank_facts({"compute": 8}),))
        job = Job(facts=facts, world_size=int(paths[0]), notes=())
        held.append(weakref.ref(job))
        return job

    monkeypatch.setattr(recording, "measure", measured)
    assert len(scale_paths(["1", "2", "4"], (), "weak", Options()).runs) == len(held) == 3


def test_what_may_be_a_signature_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(paths: Sequence[str], options: Options) -> Any:
        return SimpleNamespace(
            facts=Facts(ranks=(rank_facts({"compute": 8}),)), world_size=len(paths[0]), notes=()
        )

    monkeypatch.setattr(recording, "measure", measured)
    found = scale_paths(
        ["https://host/a.json?key=secret", "https://host/ab.json?key=secret"], (), "weak", Options()
    )
    assert [run.path for run in found.runs] == ["https://host/a.json", "https://host/ab.json"]


@needs_shared
def test_a_real_job_on_two_and_four_ranks_loses_to_its_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for width in (2, 4):
        folder = tmp_path / str(width)
        folder.mkdir()
        for path in (SHARED / "lab" / f"ranks{width}").glob("ddp_straggler.fixed.rank*.gz"):
            shutil.copy(path, folder)
        folders.append(str(folder))
    truth = json.loads((SAMPLES / "truth.json").read_text())["cases"]
    before, after = (truth[f"ranks{width}/ddp_straggler"]["fixed_ms"] for width in (2, 4))
    found = scaled(capsys, *folders, "--step-ms", str(before), "--step-ms", str(after))
    # The script that made them gives each rank the same batch.
    assert found["scaling"]["kind"] == "weak"
    assert [run["width"] for run in found["runs"]] == [2, 4]
    assert len({run["gradient_bytes"] for run in found["runs"]}) == 1
    assert not any("different" in note for note in found["notes"])
    wide = found["runs"][1]["against_base"]
    assert wide["efficiency"] == pytest.approx(before / after)
    assert wide["worst"] == "comms_transfer"
    assert wide["lost_parts_ms"]["comms_transfer"] > 0.9 * wide["lost_ms"]
    assert sum(wide["lost_parts_ms"].values()) == pytest.approx(wide["lost_ms"], rel=1e-12)
