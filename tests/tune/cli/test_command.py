"""`stepscope tune` from its options to its report; trainings are made up, but for one."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from stepscope.cli.options import read_options
from stepscope.core.experiments.trials import Change, Setup, Trial
from stepscope.errors import InputError, UsageError
from stepscope.process.job import run_owned
from stepscope.tune.cache import CacheEntry, CacheKey, TuningCache
from stepscope.tune.cli import command as tune
from stepscope.tune.cli.options import CACHE_VARIABLE, Options
from tests.capture.jobs import LIGHT
from tests.installed import need
from tests.scenarios import kept_diagnosis
from tests.wording import mentions

VALIDATOR = Draft202012Validator(
    json.loads((Path(__file__).parents[3] / "docs" / "tuning.schema.json").read_text())
)
COMMAND = ["--", sys.executable, "train.py"]


def parse(*words: str) -> Options:
    return read_options(Options, words, "tune", "")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials by a clock: fastest with 3 workers."""
    need("optuna")

    def run_trial(_command: Any, folder: Path, change: Change, **options: Any) -> Trial:
        folder.mkdir(parents=True)
        workers = int(change.knobs.get("num_workers", 0))
        if workers == 5:
            return Trial(
                folder="",
                change=change,
                exit_code=1,
                step_ns=(),
                wall_s=1.0,
                tail="\x1b[31mValueError: \u202efive|<b>",
            )
        steps = tuple(
            int(1e7 * (1 + abs(workers - 3)) * (1 + i % 3 / 100))
            for i in range(options["max_steps"])
        )
        setup = Setup(
            device="cpu", versions={"torch": "2.13"}, batch_size=8, num_batches=1.0, world_size=1
        )
        taken = dict.fromkeys(change.knobs, 1)
        return Trial(
            folder="",
            change=change,
            exit_code=0,
            step_ns=steps,
            wall_s=1.0,
            is_cut=True,
            setup=setup,
            taken=taken,
        )

    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", run_trial)


def searched(tmp_path: Path, *words: str) -> int:
    return tune.run(
        parse(
            "--knob",
            "num_workers=0..6",
            "--trials",
            "8",
            "--out",
            str(tmp_path / "out"),
            *words,
            *COMMAND,
        )
    )


@pytest.mark.usefixtures("made_up")
def test_the_answer_as_json_keeps_the_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert searched(tmp_path, "--format", "json", "--cache", str(tmp_path / "tuned.jsonl")) == 0
    out, err = capsys.readouterr()
    tuning = json.loads(out)
    VALIDATOR.validate(tuning)
    assert tuning["verdict"] == "proven"
    assert tuning["winner"]["settings"] == {"num_workers": 3}
    assert tuning["verification"]["speedup"]["value"] == pytest.approx(4.0, rel=0.01)
    assert json.loads((tmp_path / "out" / "tuning.json").read_text()) == tuning
    assert mentions(err, "trial 0: the command")
    kept = TuningCache(tmp_path / "tuned.jsonl").entries()
    assert [entry.settings for entry in kept] == [{"num_workers": 3}]
    assert "\x1b" not in err


@pytest.mark.usefixtures("made_up")
def test_the_answer_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert searched(tmp_path, "--no-prune") == 0
    out = capsys.readouterr().out
    assert "Proven: num_workers=3" in out
    assert "num_workers=3 in DataLoader(...)" in out
    assert "failed: exit code 1" in out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.usefixtures("made_up")
def test_the_answer_as_markdown_obeys_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert searched(tmp_path, "--format", "markdown", "--no-verify") == 1
    out = capsys.readouterr().out
    assert re.match("## .*Not proven", out)
    assert "<b>" not in out
    assert "five|" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "python"], "one knob"),
        (["--knob", "num_workers=0..4"], "no command"),
        (["--knob", "num_workers=0..4", "--", "no-such-command-here"], "PATH"),
        (["--knob", "num_workers=0-4", "--", "python"], "num_workers=0..4"),
        (["--knob", "batch_size=1,2", "--", "python"], "--free batch"),
        (
            ["--knob", "num_workers=0..4", "--as", "x=--x={}", "--", "python"],
            "no knob has",
        ),
        (
            ["--knob", "x=1,2", "--as", "x=--x={}", "--as", "x=--y={}", "--", "python"],
            "--as x is given",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as problem:
        tune.run(parse(*words))
    assert said in str(problem.value)


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"pip install 'stepscope\[tune\]'"):
        searched(tmp_path)


@pytest.mark.usefixtures("made_up")
def test_a_diagnosis_is_where_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "diagnosis.json"
    file.write_text(kept_diagnosis("serial-loader"))
    searched(tmp_path, "--from", str(file), "--no-verify")
    assert "from the diagnosis: num_workers=" in capsys.readouterr().err
    file.write_text("[]")
    with pytest.raises(InputError, match="not a diagnosis"):
        tune.run(
            parse(
                "--knob",
                "num_workers=0..6",
                "--from",
                str(file),
                "--out",
                str(tmp_path / "two"),
                *COMMAND,
            )
        )


def test_the_cache_is_listed_exported_merged_and_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = str(tmp_path / "tuned.jsonl"), str(tmp_path / "other.jsonl")
    key = CacheKey(
        what="train.py\x1b[2J",
        shapes="batch=8",
        dtype="float32",
        device="cpu",
        versions={"torch": "2.13"},
    )
    TuningCache(path).add(
        CacheEntry(key=key, settings={"num_workers": 3}, ns=1e7, baseline_ns=4e7, checked=True)
    )

    def run(*words: str) -> int:
        return tune.run(parse("cache", "--cache", path, *words))

    assert run("list") == 0
    out = capsys.readouterr().out
    assert "num_workers=3: 10.0 ms, 4.00x" in out
    assert "\x1b" not in out
    run("list", "--format", "json")
    assert json.loads(capsys.readouterr().out)["entries"][0]["settings"] == {"num_workers": 3}
    run("export", other)
    assert mentions(capsys.readouterr().out, "1 settings added, 0 replaced, 0 as")
    run("export", other)
    assert mentions(capsys.readouterr().out, "0 settings added, 0 replaced, 1 as")
    run("forget", "torch 2.13")
    assert "1 of 1 settings forgotten" in capsys.readouterr().out
    run("import", other)
    assert "1 settings added" in capsys.readouterr().out
    with pytest.raises(UsageError, match="--all"):
        run("forget")


@pytest.mark.usefixtures("made_up")
def test_a_script_given_as_the_cache_is_left_alone(tmp_path: Path) -> None:
    script, other = tmp_path / "train.py", tmp_path / "other.jsonl"
    script.write_text("print(1)\n")
    key = CacheKey(what="a", shapes="", dtype="", device="cpu", versions={})
    TuningCache(other).add(CacheEntry(key=key, settings={"num_workers": 3}, ns=1e7))
    with pytest.raises(InputError, match="no tuning cache"):
        searched(tmp_path, "--cache", str(script))
    for word in ("import", "export"):
        cache, path = (script, other) if word == "import" else (other, script)
        with pytest.raises(InputError, match="no tuning cache"):
            tune.run(parse("cache", "--cache", str(cache), word, str(path)))
    assert script.read_text() == "print(1)\n"
    assert not (tmp_path / "out").exists()


def test_a_cache_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    with pytest.raises(UsageError, match="which cache"):
        tune.run(parse("cache", "list"))


def test_kernel_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def run_kernel(words: Sequence[str]) -> int:
        seen.extend(words)
        return 3

    monkeypatch.setattr("stepscope.tune.cli.kernel.run_kernel", run_kernel)
    assert tune.run(parse("kernel", "pkg.mod:fn", "--shapes", "8x8")) == 3
    assert seen == ["pkg.mod:fn", "--shapes", "8x8"]


ENDS_ITS_PARENT = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(600)"


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("is_in_job", [False, True])
@pytest.mark.parametrize("at", [4, 12])
def test_sigterm_ends_it_as_ctrl_c_does(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_in_job: bool,
    at: int,
) -> None:
    from stepscope.experiments.trials import trial

    made_up, count = trial.run_trial, [0]
    before = signal.getsignal(signal.SIGTERM)

    def run_trial(*words: Any, **options: Any) -> Trial:
        count[0] += 1
        if count[0] == at and is_in_job:
            run_owned([sys.executable, "-c", ENDS_ITS_PARENT], os.environ)
        elif count[0] == at:
            signal.raise_signal(signal.SIGTERM)
        return made_up(*words, **options)

    monkeypatch.setattr(trial, "run_trial", run_trial)
    assert searched(tmp_path, "--format", "json") == tune.INTERRUPTED_CODE
    tuning = json.loads(capsys.readouterr().out)
    # The first run is the baseline; the seven settings come next, and then the proof.
    assert len(tuning["trials"]) == min(at - 2, 7)
    assert "interrupted" in tuning["because"]
    assert (tmp_path / "out" / tune.RESULT_FILE).exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_knob_that_cannot_take_effect_is_left_out(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    made_up: None,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    words = [
        "--trials",
        "2",
        "--no-verify",
        "--out",
        str(tmp_path / "out"),
        "--format",
        "json",
        "--",
        sys.executable,
        "train.py",
    ]
    assert (
        tune.run(parse("--knob", "num_workers=2,3", "--knob", "tf32=on,off", *words))
        == tune.UNPROVEN_CODE
    )
    tuning = json.loads(capsys.readouterr().out)
    assert [knob["name"] for knob in tuning["knobs"]] == ["num_workers"]
    assert mentions(tuning["notes"][0], "tf32", "left out")
    with pytest.raises(UsageError, match="nothing to search: tf32"):
        tune.run(parse("--knob", "tf32=on,off", *words))


def test_the_division_of_a_budget_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made_up: None
) -> None:
    assert searched(tmp_path, "--budget", "1000", "--format", "json") == tune.PROVEN_CODE
    said = capsys.readouterr()
    budget = json.loads(said.out)["budget"]
    assert (budget["total_s"], budget["rounds_kept"], budget["kept_for_proof_s"]) == (1000, 3, 15)
    assert mentions(said.err, "budget of 1000 s, 15 s", "proof")


@pytest.mark.parametrize(("left", "limit"), [(None, 600.0), (900.0, 600.0), (7.5, 7.5)])
def test_no_trial_may_take_longer_than_what_is_left_of_the_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left: float | None, limit: float
) -> None:
    seen: list[float] = []

    def run_trial(*_words: Any, timeout_s: float, **_options: Any) -> Trial:
        seen.append(timeout_s)
        return Trial(folder="f", change=Change(), exit_code=0, step_ns=(1,), wall_s=1.0)

    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", run_trial)
    runner = tune.Runner(parse("--knob", "num_workers=0,1", "--", "python"), tmp_path)
    runner.left_s = lambda: left
    runner.measure(Change())
    runner.numerics(Change())
    assert seen == [limit, limit]


def test_a_job_that_leaves_by_itself_is_no_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_trial(*_words: Any, **_options: Any) -> Trial:
        raise SystemExit(3)

    monkeypatch.setattr("stepscope.experiments.trials.trial.run_trial", run_trial)
    runner = tune.Runner(parse("--knob", "num_workers=0,1", "--", "python"), tmp_path)
    with pytest.raises(SystemExit) as left:
        runner.measure(Change())
    assert left.value.code == 3


def test_a_real_training_is_tuned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("optuna")
    job = tmp_path / "train.py"
    job.write_text(
        f"{LIGHT}\nimport time\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "pause = float(sys.argv[-1].partition('=')[2] or 0.03) if len(sys.argv) > 1 else 0.03\n"
        "for _ in range(60):\n"
        "    optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step(); "
        "time.sleep(pause)\n"
    )
    monkeypatch.chdir(tmp_path)
    words = [
        "--knob",
        "pause=0.001,0.03",
        "--as",
        "pause=--pause={}",
        "--trials",
        "2",
        "--steps",
        "12",
        "--warm-up",
        "5",
    ]
    assert tune.run(parse(*words, "--no-verify", "--format", "json", "--out", "out", *COMMAND)) == 1
    tuning = json.loads(capsys.readouterr().out)
    assert tuning["verdict"] == "not proven"
    assert tuning["winner"]["settings"] == {"pause": 0.001}
    assert tuning["baseline"]["ms"] > 25
    (word,) = tuning["winner"]["words"]
    assert mentions(word, "--pause=0.001", "command line")
