"""`stepscope fix` as a user runs it: what it would try, and with --verify the loop over trials
whose times are made up."""

from __future__ import annotations

import io
import json
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.cli.fix import AFTER_JOB, ask_first
from stepscope.cli.main import main
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.experiments.trials import Change, NumericRow, Setup, Trial
from stepscope.core.hardware import ProbedTimes
from stepscope.errors import UsageError
from stepscope.pipeline import recording
from stepscope.pipeline.options import Options
from stepscope.protocol.made_here import marked
from tests.live_runs import write_rank, write_run
from tests.shared_data import DEMO
from tests.wording import mentions


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder whose one recording is the demo's: a serial loader, and small operations to fuse
    once it is fixed."""
    folder = write_run(tmp_path / "run", exit_code=0)
    shutil.copy(DEMO, write_rank(folder, 0) / "window-20.pt.trace.json.gz")
    return folder


_known: dict[Any, Diagnosis] = {}


@pytest.fixture(autouse=True)
def diagnosed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that hold the same have the same diagnosis."""

    def diagnosed(folders: Sequence[str | Path], options: Options) -> Diagnosis:
        (folder,) = map(Path, folders)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        held = tuple((str(path.relative_to(folder)), path.read_bytes()) for path in files)
        if (held, repr(options)) not in _known:
            _known[held, repr(options)] = diagnose([folder], options)
        return _known[held, repr(options)]

    diagnose = recording.diagnose
    monkeypatch.setattr(recording, "diagnose", diagnosed)


class Trials:
    """Real trials' place: a step takes 80 ms, with workers 40, and with a different loss where
    `parts` says so."""

    def __init__(self, after_ms: float = 40.0, *, parts: bool = False) -> None:
        self.after_ms, self.parts = after_ms, parts
        self.changes: list[Change] = []
        self.profiled: list[Change] = []

    def __call__(self, command: Sequence[str], folder: Path, change: Change, **more: Any) -> Trial:
        assert command == ("python", "train.py")
        self.changes.append(change)
        is_after = "num_workers" in change.knobs
        ms = (self.after_ms if is_after else 80.0) + len(self.changes) % 3 * 0.1
        if more.get("profile"):
            self.profiled.append(change)
            write_run(folder, exit_code=0)
            shutil.copy(DEMO, write_rank(folder, 0) / "window-20.pt.trace.json.gz")
        loss = 2.0 if is_after and self.parts else 1.0
        rows = [
            NumericRow(step=step, loss=loss, grad_norm=1.0, parameters=None, parameter_norm=1.0)
            for step in range(1, 6)
        ]
        return Trial(
            folder=str(folder),
            change=change,
            exit_code=0,
            step_ns=tuple(int((ms + step % 5 * 0.01) * 1e6) for step in range(30)),
            wall_s=1.0,
            setup=Setup(world_size=1, batch_size=8, num_batches=1.0),
            taken=dict.fromkeys(change.knobs, 1),
            numerics=tuple(rows) if more.get("with_numerics") else (),
        )


def fix(run: Path, out: Path, *more: str) -> tuple[int, Path]:
    return main(["fix", str(run), "--out", str(out), "--yes", *more]), out


def test_without_verify_it_says_what_it_would_try(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fix", str(run)]) == 0
    text = capsys.readouterr().out
    assert mentions(text, "3 findings, 3 of which")
    assert "num_workers=8, persistent_workers=True" in text
    assert "compared with" not in text, "nothing was"
    assert "command: python train.py" in text


def test_a_patch_is_not_written_over_a_script_nor_for_a_run_that_is_not_ones_own(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    assert fix(run, tmp_path / "out", "--patch", str(script))[0] == 2
    assert script.read_text() == "pass\n"
    assert mentions(capsys.readouterr().err, "train.py", "there already", ".patch")
    patch = tmp_path / "out.diff"
    assert fix(run, tmp_path / "out", "--patch", str(patch))[0] == 0
    assert not patch.exists()
    assert mentions(capsys.readouterr().err, "serial-loader", "not made by this user")


def test_a_command_that_fails_as_it_is_is_said_to_and_no_fix_is_tried(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trials = Trials()

    def failing(*args: Any, **more: Any) -> Trial:
        return replace(trials(*args, **more), exit_code=1, step_ns=(), tail="no such data\n")

    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", failing)
    words = ["fix", str(run), "--verify", "--yes", "--out", str(tmp_path / "fixed")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert mentions(said, "baseline", "exit code 1")
    assert "no such data" in said
    assert len(trials.changes) == 1


def test_a_fix_that_is_proven_stays(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Trials()
    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", trials)
    code, out = fix(run, tmp_path / "out", "--verify", "--format", "json")
    assert code == 0
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "stepscope.fix/1"
    assert result["kept"] == {"num_workers": 8, "persistent_workers": True}
    assert result["speedup"]["value"] == pytest.approx(2.0, rel=0.01)
    finding, *others = result["findings"]
    assert (finding["code"], finding["outcome"]) == ("serial-loader", "kept")
    # The made-up times do not change with it.
    assert {other["code"]: other["outcome"] for other in others} == {
        "launch-overhead": "reverted",
        "unfused-pointwise": "reverted",
    }
    # 1.84 was predicted and 2.00 came, which its range holds.
    assert finding["verification"]["prediction"]["verdict"] == "held"
    assert finding["verification"]["numerics"]["loss"]["largest"] == 0
    # Looked at again with what was kept; its recording has the same finding, which is not tried
    # twice.
    assert [dict(change.knobs) for change in trials.profiled] == [result["kept"]]
    assert json.loads((out / "fix.json").read_text())["kept"] == result["kept"]


def test_what_was_not_timed_yet_is_timed_before_the_first_trial(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials()
    asked: list[tuple[set[str], tuple[str, ...], int]] = []

    def timing(devices: Mapping[str, ProbedTimes], command: Sequence[str], _options: Any) -> bool:
        asked.append((set(devices), tuple(command), len(trials.changes)))
        return False

    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", trials)
    monkeypatch.setattr("stepscope.cli.fix.AFTER_JOB", AFTER_JOB._replace(time=timing))
    monkeypatch.setattr("stepscope.experiments.preflight.DEVICE_FILES", ("dev/null",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fix(run, tmp_path / "out", "--verify", "--most", "1")
    ((devices, command, num_before),) = asked
    assert devices
    assert command == ("python", "train.py")
    assert num_before == 0
    assert trials.changes


def test_a_fix_that_gives_nothing_is_reverted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", Trials(after_ms=80.0))
    code, _ = fix(run, tmp_path / "out", "--verify", "--no-check")
    assert code == 1
    text = capsys.readouterr().out
    assert mentions(text, "nothing was kept", "3 findings")
    assert "reverted" in text
    assert "no gain" in text


def test_a_fix_that_changes_what_is_computed_is_reverted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", Trials(parts=True))
    assert fix(run, tmp_path / "out", "--verify")[0] == 1
    assert mentions(capsys.readouterr().out, "computed differs")
    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", Trials(parts=True))
    assert (
        fix(run, tmp_path / "out2", "--verify", "--allow-numerics", "--format", "markdown")[0] == 0
    )
    text = capsys.readouterr().out
    assert "| 1 | serial-loader | " in text
    assert "| kept |" in text
    assert "(tried as num&#95;workers=" in text


def test_fixes_that_compute_something_else_only_together_are_no_success(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Both(Trials):
        """Each fix is faster. Another loss shows only at the end, where both are compared with
        nothing."""

        def __call__(
            self, command: Sequence[str], folder: Path, change: Change, **more: Any
        ) -> Trial:
            has_both = [
                index for index, made in enumerate(self.changes) if "compile_mode" in made.knobs
            ]
            is_whole = bool(has_both) and any(made.is_none for made in self.changes[has_both[0] :])
            self.after_ms = 30.0 if "compile_mode" in change.knobs else 40.0
            self.parts = "compile_mode" in change.knobs and is_whole
            return super().__call__(command, folder, change, **more)

    for more, code in (("--verify",), 1), (("--verify", "--allow-numerics"), 0):
        monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", Both())
        assert fix(run, tmp_path / f"out{code}", *more)[0] == code
        text = " ".join(capsys.readouterr().out.split())
        assert "2 of 3 findings fixed" in text.replace("\u00a0", " ")
        assert mentions(text, "computes something else") == (code == 1)


def test_a_run_that_hides_its_command_needs_it_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masked = write_run(
        tmp_path / "masked", command=["python", "train.py", "--token", "(masked)"], exit_code=0
    )
    assert main(["fix", str(masked)]) == 2
    assert mentions(capsys.readouterr().err, "secret", "--command")
    none = write_run(tmp_path / "none", command=[])
    assert main(["fix", str(none)]) != 0
    assert "--command 'python train.py'" in capsys.readouterr().err
    assert main(["fix", str(tmp_path / "nothing")]) != 0
    assert mentions(capsys.readouterr().err, str(tmp_path / "nothing"), "not the folder")


def test_a_run_of_which_nothing_was_recorded_is_not_said_to_be_sound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", exit_code=0)
    write_rank(folder, 0)
    assert main(["fix", str(folder)]) == 2
    printed = capsys.readouterr()
    assert mentions(printed.err, "no step was")
    assert not mentions(printed.out, "nothing")


def test_a_command_that_is_given_is_told_without_its_secrets(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fix", str(run), "--command", "python 'my train.py' --token hush-hush"]) == 0
    text = capsys.readouterr().out
    assert "python 'my train.py' --token '(masked)'" in text
    assert "hush-hush" not in text


def test_a_folder_that_is_not_empty_is_left_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    assert fix(run, tmp_path / "out", "--verify")[0] == 2
    assert "not empty" in capsys.readouterr().err


def test_ctrl_c_tells_what_was_kept_by_then(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Trials()

    def run_trial(command: Sequence[str], folder: Path, change: Change, **more: Any) -> Trial:
        if more.get("profile"):
            raise KeyboardInterrupt
        return trials(command, folder, change, **more)

    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", run_trial)
    (tmp_path / "out").mkdir()
    code, out = fix(run, tmp_path / "out", "--verify")
    assert code == 130
    text = capsys.readouterr().out
    assert "1 of 1" in text
    assert "it was interrupted" in text
    assert json.loads((out / "fix.json").read_text())["kept"] == {
        "num_workers": 8,
        "persistent_workers": True,
    }


def test_sigterm_while_it_looks_again_tells_what_was_kept_by_then(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Trials()

    def run_trial(command: Sequence[str], folder: Path, change: Change, **more: Any) -> Trial:
        if more.get("profile"):
            signal.raise_signal(signal.SIGTERM)
        return trials(command, folder, change, **more)

    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", run_trial)
    (tmp_path / "out").mkdir()
    code, out = fix(run, tmp_path / "out", "--verify", "--most", "1")
    assert code == 130
    assert "it was interrupted" in capsys.readouterr().out
    assert json.loads((out / "fix.json").read_text())["kept"] == {
        "num_workers": 8,
        "persistent_workers": True,
    }


def test_a_disk_that_fills_up_does_not_take_what_was_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Trials()
    full: list[Path] = []

    def run_trial(command: Sequence[str], folder: Path, change: Change, **more: Any) -> Trial:
        if more.get("profile") or full:
            full.append(folder)
            raise UsageError("the trial could not be started: no space left on device")
        return trials(command, folder, change, **more)

    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", run_trial)
    (tmp_path / "out").mkdir()
    code, _ = fix(run, tmp_path / "out", "--verify", "--format", "json", "--most", "1")
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    assert result["kept"] == {"num_workers": 8, "persistent_workers": True}
    assert any(mentions(note, "diagnosed anew", "no space left") for note in result["notes"])


class Timed(Trials):
    """Trials that take time on a clock of their own; one that would take longer than it may is
    ended."""

    def __init__(self, run_s: float) -> None:
        super().__init__()
        self.run_s, self.now_s, self.num_ended = run_s, 1000.0, 0

    def __call__(self, command: Sequence[str], folder: Path, change: Change, **more: Any) -> Trial:
        made, limit = super().__call__(command, folder, change, **more), more["timeout_s"]
        is_ended = limit is not None and self.run_s > limit
        wall_s = limit if is_ended else self.run_s
        assert wall_s < 1e6, "a job that never ends, and that nobody ends"
        self.now_s += wall_s
        self.num_ended += is_ended
        ended: dict[str, Any] = (
            {"is_timed_out": True, "exit_code": 143, "step_ns": made.step_ns[:2]}
            if is_ended
            else {}
        )
        return replace(made, wall_s=wall_s, **ended)


@pytest.mark.parametrize("run_s", [1.0, 2.0, 3.0, 5.0, 8.0, 40.0, 1e9])
@pytest.mark.parametrize("more", [(), ("--no-check",)])
def test_the_budget_is_for_the_whole_command(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_s: float,
    more: tuple[str, ...],
) -> None:
    """Checks, rounds, the new recording and the proof of the whole: what was kept by then is told,
    and what was not tried."""
    trials = Timed(run_s)
    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", trials)
    monkeypatch.setattr("stepscope.cli.fix.time.monotonic", lambda: trials.now_s)
    code, _ = fix(run, tmp_path / "out", "--verify", "--budget", "90", "--format", "json", *more)
    result = json.loads(capsys.readouterr().out)
    assert trials.now_s - 1000.0 <= 90
    assert trials.num_ended <= 1
    kept = [finding["code"] for finding in result["findings"] if finding["outcome"] == "kept"]
    assert kept == (["serial-loader"] if run_s <= 8 else [])
    assert code == (0 if kept else 1), (
        "what was proven stays proven: no second one is tried without time for the whole"
    )
    if run_s > 2:
        last = result["findings"][-1]
        assert (last["code"], last["outcome"]) == ("unfused-pointwise", "not tried")
        assert mentions(last["why"], "budget", "90 s")
        assert any(mentions(note, "not all", "tried") for note in result["notes"])


def test_a_fix_that_there_is_no_time_to_measure_afresh_is_told_so(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Timed(2.0)
    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", trials)
    monkeypatch.setattr("stepscope.cli.fix.time.monotonic", lambda: trials.now_s)
    # Reckoned by runs of 2 s, the whole fits; then each takes longer.
    call = trials.__class__.__call__

    def slower(self: Timed, *args: Any, **more: Any) -> Trial:
        self.run_s = 2.0 if len(self.changes) < 22 else 30.0
        return call(self, *args, **more)

    monkeypatch.setattr(Timed, "__call__", slower)
    fix(run, tmp_path / "out", "--verify", "--budget", "90")
    assert trials.now_s - 1000.0 <= 90
    assert "1 of 3" in capsys.readouterr().out


@pytest.mark.parametrize("answer", ["y\n", "n\n", "\n", None])
def test_a_strangers_run_is_run_after_a_yes_alone(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str | None,
) -> None:
    """None: nobody sits at a terminal."""
    trials = Trials()
    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", trials)
    if answer is not None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        for stream in (sys.stdin, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    code = main(["fix", str(run), "--verify", "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert mentions(said, "no mark", "python train.py")
    is_run = answer == "y\n"
    assert (code == 0) == is_run
    assert bool(trials.changes) == is_run
    assert ("nothing was run" in said) == (not is_run)
    assert ("--yes" in said) == (not is_run)


def test_the_own_run_is_run_without_a_question(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads((run / "run.json").read_text())
    write_run(run, **told | marked(run, told["command"]))
    trials = Trials()
    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", trials)
    assert main(["fix", str(run), "--verify", "--out", str(tmp_path / "out")]) == 0
    assert trials.changes


def test_a_command_that_is_given_needs_no_question(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials()
    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", trials)
    words = ["--verify", "--command", "python train.py", "--out", str(tmp_path / "out")]
    assert main(["fix", str(run), *words]) == 0


def test_what_is_asked_about_is_one_line_that_no_terminal_obeys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["python", "-c", "evil()\n\n\n\x1b[2J", "harmless"]
    folder = write_run(tmp_path / "run", command=command, exit_code=0)
    with pytest.raises(UsageError):
        ask_first(folder, command)
    (line,) = capsys.readouterr().err.splitlines()
    assert "evil()" in line
    assert "\x1b" not in line
