"""One answer, whoever asks; and every command ends with a result or a sentence, whatever it is
given."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import Recording, diagnose
from stepscope.report.diagnosis.json import to_json
from tests.builders import step_events, trace_text
from tests.format_samples import BESIDES, Sample, samples
from tests.installed import need
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.readers import test_hardware_file
from tests.shared_data import lab_trace, lab_traces, unpacked
from tests.wording import any_mentions, mentions

SMALL = lab_trace("single/nchw.fixed")


def asked(*words: str | Path) -> tuple[int, str, str]:
    """A command's exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def figures(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """Everything of the contract but what names a door."""
    plain: dict[str, Any] = json.loads(json.dumps(diagnosis))
    return plain


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A recorded run with a trace, timed steps and a log of another tool in it: what the doors used
    to disagree about."""
    run = write_run(tmp_path / "run", command=["python", "train.py"])
    rank = write_rank(run, 0)
    add_steps(rank, [row(step, dur_ms=66.0) for step in range(5, 65)])
    (rank / "window-6.pt.trace.json").write_bytes(unpacked(SMALL))
    return run


@pytest.mark.parametrize("step_ms", [None, 70.0])
def test_every_door_gives_the_same_diagnosis(run_folder: Path, step_ms: float | None) -> None:
    given = [] if step_ms is None else ["--step-ms", str(step_ms)]
    code, out, err = asked("diagnose", run_folder, "--format", "json", *given)
    assert code == 0, err
    printed = figures(json.loads(out))
    assert printed["step"]["ms"] == pytest.approx(step_ms or 66.0, rel=0.01)
    options = Options(step_ms=step_ms)
    with Recording([run_folder], options) as recording:
        assert figures(json.loads(to_json(recording.diagnosis))) == printed
    assert figures(json.loads(to_json(stepscope.load(run_folder, step_ms).diagnosis))) == printed
    assert figures(json.loads(to_json(stepscope.diagnose(run_folder, step_ms)))) == printed
    assert figures(json.loads(to_json(diagnose([run_folder], options)))) == printed


def test_every_door_judges_by_the_same_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = test_hardware_file.told()
    told["machine"]["device"] = diagnose([SMALL]).facts.median_rank.device_name
    hardware = tmp_path / "machine.json"
    hardware.write_text(json.dumps(told))
    code, out, err = asked("diagnose", SMALL, "--format", "json", "--hardware", hardware)
    assert code == 0, err
    printed = json.loads(out)
    assert any_mentions(printed["notes"], "judged", "measured")
    assert (
        figures(json.loads(to_json(stepscope.load(SMALL, hardware=hardware).diagnosis))) == printed
    )
    monkeypatch.setenv("STEPSCOPE_HARDWARE", str(hardware))
    assert figures(json.loads(to_json(stepscope.load(SMALL).diagnosis))) == printed


def test_every_door_sees_all_ranks(tmp_path: Path) -> None:
    paths = lab_traces("rank_traces/gloo_late_rank.slow.*")
    printed = to_json(diagnose(paths, Options(use_cache=False)))
    assert to_json(stepscope.load(paths, cache=False).diagnosis) == printed
    assert to_json(stepscope.diagnose(paths, cache=False, jobs=2)) == printed


def commands(path: Path, folder: Path) -> Iterator[list[str]]:
    """Every command that reads recordings."""
    text, other = str(path), str(folder / "other.json")
    Path(other).write_text(trace_text(step_events()))
    yield ["diagnose", text, "--no-cache", "--all", "--fail-if", "step_ms > 100"]
    yield ["diagnose", text, "--no-cache", "--format", "brief"]
    yield ["diagnose", "--scaling", text, text, "--no-cache"]
    yield ["report", text, "--no-cache", "-o", str(folder / "report.html")]
    yield ["query", text, "select count(*) from kernels", "--no-cache"]
    yield ["export", "perfetto", text, "--no-cache", "-o", str(folder / "timeline.json")]
    yield ["compare", other, text, "--no-cache", "--format", "json"]
    yield ["plan", "--from", text, "--nodes", "2,4", "--no-cache"]
    yield ["watch", "--once", text]
    yield ["formats", text]
    yield ["runs", "--in", text]


def written(sample: Sample, folder: Path) -> Path:
    for name, data in sample.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder if len(sample.files) > 1 else folder / next(iter(sample.files))


KINDS = sorted({sample.kind for sample in samples()})


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_ends_with_a_result_or_a_sentence(kind: str, tmp_path: Path) -> None:
    mine = [sample for sample in samples() if sample.kind == kind]
    sample = min(mine, key=lambda sample: sum(map(len, sample.files.values())))
    path = written(sample, tmp_path / "input")
    for words in commands(path, tmp_path):
        code, out, err = asked(*words)
        assert code in (0, 1, 2, 3), (words, code, err)
        assert out or err, words
        assert "Traceback" not in err, (words, err)
        assert code == 0 or words[0] == "formats" or err.startswith("stepscope"), (words, err)


def test_the_matrix_has_every_format() -> None:
    from stepscope.readers.formats import FORMATS

    assert {form.name for form in FORMATS} | set(BESIDES) <= set(KINDS) | {"kineto"}


def test_recordings_without_a_trace_are_refused_in_one_way(tmp_path: Path) -> None:
    need("duckdb", "pyarrow")
    log = tmp_path / "dmon.txt"
    head = "# gpu   pwr gtemp mtemp    sm   mem\n# Idx     W     C     C     %     %\n"
    log.write_text(head + "    0   300    55     -    99    60\n" * 20)
    for words in (
        ["query", log, "select count(*) from kernels"],
        ["export", "perfetto", log, "-o", tmp_path / "t.json"],
        ["plan", "--from", log, "--nodes", "2"],
        ["diagnose", "--scaling", log, log],
    ):
        code, _, err = asked(*map(str, words))
        assert code == 2, words
        assert mentions(err, "no trace"), words
        assert "dmon.txt" in err, words
    assert asked("diagnose", log)[0] == 0
