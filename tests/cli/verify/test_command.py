from __future__ import annotations

import json
import math
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.cli.options import read_options
from stepscope.cli.verify import command as verify
from stepscope.cli.verify.check import check_of
from stepscope.cli.verify.options import Options, Sides, read_sides
from stepscope.cli.verify.prediction import read_prediction
from stepscope.core.experiments.experiment import BASELINE, CANDIDATE, Measured, Prediction, Side
from stepscope.core.experiments.trials import Change, NumericRow, Setup, Trial
from stepscope.errors import FormatError, InputError, UsageError
from stepscope.experiments.budget import Budget, SpentError
from stepscope.experiments.fix_values import fixes
from stepscope.experiments.trials import trial as trials
from stepscope.process.members import members
from stepscope.protocol.run_folder import SITE_FOLDER
from stepscope.protocol.settings import SETTINGS
from stepscope.report.words import clean
from tests.capture.jobs import LIGHT
from tests.scenarios import kept_diagnosis
from tests.shared_data import ROOT
from tests.wording import mentions

SCHEMA = json.loads((ROOT / "docs" / "verification.schema.json").read_text(encoding="utf-8"))
SETUP = Setup(world_size=1, batch_size=16, num_batches=1.0, num_parameters=10)
TRAIN = f"""
{LIGHT}
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (batch,) in DataLoader(TensorDataset(torch.randn(4000, 8)), batch_size=4):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

Faker = Callable[[str, int, Change], Trial]


def parsed(*words: str) -> Options:
    return read_options(Options, words, "verify", "")


def sides_of(options: Options) -> Sides:
    return read_sides(options.sides)


def run(*words: str) -> int:
    return verify.run(parsed(*words))


def conforms(value: Any, schema: dict[str, Any], at: str = "$") -> None:
    """The part of JSON Schema that ours uses."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    kinds: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "number": (int, float),
        "integer": int,
        "boolean": bool,
        "null": type(None),
    }
    if "anyOf" in schema:
        assert any(_fits(value, option, at) for option in schema["anyOf"]), at
        return
    if "const" in schema:
        assert value == schema["const"], at
    if "enum" in schema:
        assert value in schema["enum"], at
    if "type" in schema:
        wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(isinstance(value, kinds[kind]) for kind in wanted), f"{at} is {value!r}"
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema["required"]) == set(value), at
        for key, item in value.items():
            conforms(item, schema["properties"][key], f"{at}.{key}")
    if isinstance(value, list):
        for item in value:
            conforms(item, schema["items"], f"{at}[]")


def _fits(value: Any, schema: dict[str, Any], at: str) -> bool:
    try:
        conforms(value, schema, at)
    except AssertionError:
        return False
    return True


def trial(step_ms: float, **more: Any) -> Trial:
    steps = tuple(round(step_ms * 1e6 * (1 + 0.01 * (i % 3))) for i in range(20))
    rows = tuple(
        NumericRow(step=i, loss=2.0 / i, grad_norm=1.0, parameters="d", parameter_norm=3.0)
        for i in range(1, 21)
    )
    made = Trial(
        folder="f",
        change=Change(),
        exit_code=0,
        step_ns=steps,
        wall_s=1.0,
        is_cut=True,
        setup=SETUP,
        numerics=rows,
    )
    return replace(made, **more)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Faker], list[Path]]:
    """Trials that are made up, and the folders that were asked for."""

    def install(fake: Faker) -> list[Path]:
        folders: list[Path] = []

        def run_trial(command: Sequence[str], folder: Path, change: Change, **_: Any) -> Trial:
            folder.mkdir(parents=True)
            folders.append(folder)
            made = fake(folder.name.partition("-")[2], len(folders), change)
            taken = dict.fromkeys(change.knobs, 1)
            return replace(made, change=change, taken=made.taken or taken, folder=str(folder))

        monkeypatch.setattr(trials, "run_trial", run_trial)
        # What is made up needs no command.
        monkeypatch.setattr(verify, "check_commands", lambda _: None)
        return folders

    return install


def faster(side: str, number: int, change: Change) -> Trial:
    return trial((30 if side == "baseline" else 20) * (1 + 0.004 * (number % 5)))


def test_two_commands_are_measured_in_turn_and_the_gain_is_told(
    faked: Callable[[Faker], list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = faked(faster)
    code = run(
        "--baseline",
        f"{sys.executable} old.py",
        "--candidate",
        f"{sys.executable} new.py",
        "--out",
        str(tmp_path / "o"),
    )
    assert code == 0
    sides = "".join("A" if "baseline" in folder.name else "B" for folder in folders)
    assert sides == "AB" + "ABBA" + "BAAB"
    captured = capsys.readouterr()
    assert re.search(r"Gain proven: 1\.5[01]\d?x .*\(1\.4\d+-1\.5\d+, 97 %\)", captured.out)
    assert "new.py" in captured.out
    assert mentions(captured.err.splitlines()[0], "60 steps")
    assert captured.err.count("\n") == 11
    assert mentions(captured.err, "round 2 of at most 10: candidate, 20 steps, 20.2 ms")
    assert json.loads((tmp_path / "o" / verify.RESULT_FILE).read_text())["verdict"] == "gain proven"


def test_json_keeps_to_its_schema(
    faked: Callable[[Faker], list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faked(faster)
    words = [
        "--apply",
        "num_workers=4",
        "--predicted",
        "1.2",
        "--check",
        "--format",
        "json",
        "--out",
        str(tmp_path / "o"),
    ]
    assert run(*words, "--", sys.executable, "train.py") == 0
    verification = json.loads(capsys.readouterr().out)
    conforms(verification, SCHEMA)
    assert verification["speedup"]["value"] == pytest.approx(1.5, rel=0.01)
    assert verification["speedup"]["low"] < 1.5 < verification["speedup"]["high"]
    assert verification["candidate"]["change"]["knobs"] == {"num_workers": 4}
    assert verification["baseline"]["change"]["knobs"] == {}
    assert verification["prediction"]["verdict"] == "too low"
    assert verification["numerics"]["verdict"] == "bit-identical"
    assert [entry["round"] for entry in verification["runs"][:4]] == [None, None, None, 0]
    assert set(SCHEMA["required"]) == set(verification)


def test_a_code_says_which_values_it_tries_and_why(
    faked: Callable[[Faker], list[Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stepscope.experiments.fix_values.own_cores", lambda: 6)
    seen: list[Change] = []

    def fake(side: str, number: int, change: Change) -> Trial:
        seen.append(change)
        return faster(side, number, change)

    faked(fake)
    words = [
        "--apply",
        "starved-loader",
        "--apply",
        "gc=freeze",
        "--format",
        "json",
        "--out",
        str(tmp_path / "o"),
    ]
    assert run(*words, "--", sys.executable, "t.py") == 0
    printed = capsys.readouterr()
    said = ("--apply starved-loader", "num_workers=6: the 6 cores", "between 2 and 16")
    assert mentions(printed.err, *said)
    assert any(mentions(note, *said) for note in json.loads(printed.out)["notes"])
    assert re.search(r"starved-loader .*prefetch_factor=4: twice .*\b2\b", printed.err)
    assert {change.raised for change in seen if change.knobs} == {
        ("num_workers", "prefetch_factor")
    }


def test_every_code_that_can_be_applied_says_why() -> None:
    codes = sorted({code for setting in SETTINGS.values() for code in setting.fixes if fixes(code)})
    assert len(codes) > 15
    for code in codes:
        said = verify.applied_words([code])
        assert len(said) == len(fixes(code) or {})
        assert all(
            re.fullmatch(rf"--apply {code} tries \w+=\S+: .{{10,}}", line) for line in said
        ), said


def test_a_value_that_is_given_is_no_bound() -> None:
    given = sides_of(parsed("--apply", "num_workers=2", "--", "python", "t.py"))
    assert given.changes["candidate"].raised == ()


def test_buckets_are_made_smaller_where_they_are_too_large() -> None:
    larger, smaller = (
        sides_of(parsed("--apply", code, "--", "python", "t.py")).changes["candidate"]
        for code in ("tiny-buckets", "oversized-buckets")
    )
    assert larger.raised == ("bucket_cap_mb",)
    assert (smaller.knobs, smaller.raised) == ({"bucket_cap_mb": 25.0}, ())


def test_a_change_of_nothing_is_no_gain_and_fails(
    faked: Callable[[Faker], list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faked(lambda side, number, change: trial(20 * (1 + 0.004 * (number % 3))))
    assert (
        run(
            "--candidate-env", "X=1", "--out", str(tmp_path / "o"), "--", sys.executable, "train.py"
        )
        == 1
    )
    assert "No gain: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setup", "change", "why"),
    [
        (replace(SETUP, data="e"), Change(), "fed other data"),
        (
            replace(SETUP, data="e"),
            Change(knobs={"num_workers": 2}),
            "other data: worker processes",
        ),
        (
            replace(SETUP, data="e", batch_size=4, num_batches=4.0),
            Change(),
            "other data: batches of another size",
        ),
        (replace(SETUP, data="e", batch_size=4), Change(), "number of samples"),
    ],
)
def test_numbers_of_other_data_are_not_compared_and_the_reason_is_the_runs_own(
    setup: Setup, change: Change, why: str
) -> None:
    given = trial(20, setup=replace(SETUP, data="d"))
    other = trial(20, setup=setup, change=change)
    sides: list[tuple[Side, Trial]] = [(BASELINE, given), (BASELINE, given), (CANDIDATE, other)]
    check = check_of(
        [Measured(side=side, round=None, trial=one, step_ns=2e7) for side, one in sides], None
    )
    assert check.verdict == "not comparable"
    assert why in check.because
    assert ("worker" in check.because) is bool(change.knobs)


def test_a_gain_whose_numbers_were_not_compared_says_so(
    faked: Callable[[Faker], list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faked(faster)
    said = ("compute the same", "not looked at")
    for number, (words, is_said) in enumerate(
        [([], True), (["--check"], False), (["--allow", "numerics"], False)]
    ):
        out = tmp_path / str(number)
        assert (
            run("--apply", "amp=bf16", *words, "--out", str(out), "--", sys.executable, "t.py") == 0
        )
        assert mentions(capsys.readouterr().out, *said) is is_said
        kept = json.loads((out / "verification.json").read_text(encoding="utf-8"))
        assert any(mentions(note, *said) for note in kept["notes"]) is is_said


def test_a_gain_that_changes_the_numbers_fails_unless_allowed(
    faked: Callable[[Faker], list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(side: str, number: int, change: Change) -> Trial:
        made = faster(side, number, change)
        rows = tuple(
            replace(row, loss=9.0 if side == "candidate" and row.step > 4 else row.loss)
            for row in made.numerics
        )
        return replace(made, numerics=rows)

    faked(other)
    words = ["--apply", "amp=bf16", "--check"]
    assert run(*words, "--out", str(tmp_path / "a"), "--", sys.executable, "t.py") == 1
    text = " ".join(capsys.readouterr().out.split())
    assert mentions(text, "loss", "differs", "step 5")
    assert mentions(text, "not compute the same"), "the verdict itself says it"
    assert (
        run(
            *words,
            "--allow",
            "numerics",
            "--out",
            str(tmp_path / "b"),
            "--",
            sys.executable,
            "t.py",
        )
        == 0
    )


def test_a_crash_is_shown_and_leaves_no_verdict(
    faked: Callable[[Faker], list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = "Traceback\n  \x1b[31mValueError: [bold]wrong[/bold]"
    faked(lambda side, number, change: trial(1, step_ns=(), exit_code=3, is_cut=False, tail=last))
    assert (
        run(
            "--candidate-env",
            "X=1",
            "--check",
            "--out",
            str(tmp_path / "o"),
            "--",
            sys.executable,
            "t.py",
        )
        == 2
    )
    printed = capsys.readouterr().out
    assert mentions(printed, "refused", "baseline", "exit code 3")
    assert "[bold]wrong[/bold]" in printed
    assert "\x1b" not in printed
    verification = json.loads((tmp_path / "o" / verify.RESULT_FILE).read_text())
    conforms(verification, SCHEMA)
    assert verification["speedup"] is None


@pytest.mark.parametrize("style", ["text", "markdown"])
def test_refusals_name_both_values(
    faked: Callable[[Faker], list[Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    style: str,
) -> None:
    faked(
        lambda side, number, change: trial(
            9, setup=replace(SETUP, batch_size=16 if side == "baseline" else 32)
        )
    )
    words = ["--apply", "num_workers=1", "--format", style, "--out", str(tmp_path / "o")]
    assert run(*words, "--", sys.executable, "t.py") == 2
    printed = " ".join(capsys.readouterr().out.split())
    assert mentions(printed, "16 for the baseline", "32 for the candidate")


def test_markdown_has_a_row_for_each_side(
    faked: Callable[[Faker], list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faked(faster)
    assert (
        run(
            "--apply",
            "serial-loader",
            "--format",
            "markdown",
            "--out",
            str(tmp_path / "o"),
            "--",
            sys.executable,
            "a|b*.py",
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert re.match(r"## .*Gain proven", printed)
    rows = [line for line in printed.splitlines() if line.startswith(("| baseline", "| candidate"))]
    assert len(rows) == 2
    assert all(row.count("|") == 6 for row in rows)
    assert "candidate: " in printed
    assert "a|b*.py" not in printed
    assert clean(printed.replace("\n", " "))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no command"),
        (["--", "python", "t.py"], "the same"),
        (
            ["--baseline", "python a.py", "--apply", "tf32=true", "--", "python", "b.py"],
            "given twice",
        ),
        (["--baseline", "python 'a.py", "--candidate", "python b.py"], "command line"),
        (["--apply", "slow-model", "--", "python", "t.py"], "not a finding"),
        (
            ["--apply", "num_workers", "--", "python", "t.py"],
            "with its value: --apply num_workers=...",
        ),
        (["--apply", "num_workers=lots", "--", "python", "t.py"], "num_workers cannot be 'lots'"),
        (["--apply", "num_wokers=2", "--", "python", "t.py"], "num_wokers is not"),
        (["--apply", "num_wokers=2", "--", "python", "t.py"], "did you mean num_workers? "),
        (["--apply", "serial-loadr", "--", "python", "t.py"], "mean serial-loader? "),
        (
            ["--apply", "num_workers=2", "--apply", "num_workers=3", "--", "python", "t.py"],
            "both 2 and 3",
        ),
        (["--candidate-env", "X", "--", "python", "t.py"], "write NAME=VALUE"),
        (
            ["--candidate-env", "X=1", "--candidate-env", "X=2", "--", "python", "t.py"],
            "both '1' and '2'",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        sides_of(parsed(*words))


def test_a_candidate_that_cannot_be_started_is_told_before_the_baseline_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trials, "run_trial", lambda *_, **__: pytest.fail("the baseline was run"))
    words = [
        "--baseline",
        f"{sys.executable} a.py",
        "--candidate",
        "no-such-command-here b.py",
        "--out",
        str(tmp_path / "o"),
    ]
    with pytest.raises(UsageError, match=r"no-such-command-here.*candidate.*not a command"):
        run(*words)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words",
    [
        ["--max-rounds", "1"],
        ["--steps", "0"],
        ["--precision", "200%"],
        ["--allow", "all"],
        ["--budget", "-1"],
        ["--predicted", "fast"],
    ],
)
def test_options_that_make_no_sense_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*words)


def test_shares_are_written_either_way() -> None:
    assert parsed("--precision", "5%").measuring.precision == pytest.approx(
        parsed("--precision", "0.05").measuring.precision
    )


def test_a_folder_with_something_in_it_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        run("--apply", "num_workers=1", "--out", str(tmp_path), "--", sys.executable, "t.py")


class Jobs:
    """Jobs on a clock of their own: each takes so long, or is ended when its time is over."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, run_s: float, step_ms: float = 10.0
    ) -> None:
        self.now_s, self.run_s, self.step_ms = 1000.0, run_s, step_ms
        self.limits: list[float | None] = []
        self.num_ended = 0
        monkeypatch.setattr(trials, "run_trial", self.run_trial)
        monkeypatch.setattr("stepscope.cli.verify.command.time.monotonic", lambda: self.now_s)
        monkeypatch.setattr(verify, "check_commands", lambda _: None)

    def run_trial(self, command: Sequence[str], folder: Path, change: Change, **more: Any) -> Trial:
        limit = more["timeout_s"]
        self.limits.append(limit)
        is_ended = limit is not None and self.run_s > limit
        wall_s = limit if is_ended else self.run_s
        assert math.isfinite(wall_s), "a job that never ends, and that nobody ends"
        self.now_s += wall_s
        self.num_ended += is_ended
        made = trial(
            self.step_ms * (1 if change.is_none else 0.5) * (1 + 0.004 * (len(self.limits) % 3)),
            wall_s=wall_s,
        )
        ended: dict[str, Any] = {
            "is_timed_out": True,
            "is_cut": False,
            "exit_code": 143,
            "step_ns": made.step_ns[:3],
        }
        return replace(
            made, change=change, taken=dict.fromkeys(change.knobs, 1), **(ended if is_ended else {})
        )


def test_no_run_may_take_longer_than_what_is_left_of_the_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs = Jobs(monkeypatch, 20.0)
    arguments = parsed(
        "--budget", "90", "--timeout", "60", "--apply", "num_workers=2", "--", "python", "train.py"
    )
    budget = Budget(arguments.measuring.budget_s, lambda: jobs.now_s)
    runner = verify.Runner(sides_of(arguments), tmp_path, arguments.measuring, budget)
    for _ in range(5):
        runner.measure("baseline")
    assert jobs.limits == [60.0, 60.0, 50.0, 30.0, 10.0]
    with pytest.raises(SpentError, match=r"budget .*candidate"):
        runner.measure("candidate")


@pytest.mark.parametrize("words", [[], ["--check"]])
@pytest.mark.parametrize("run_s", [0.7, 3.0, 9.0, 20.0, 44.0, math.inf])
@pytest.mark.parametrize("budget_s", [5, 30, 90])
def test_the_budget_is_for_the_whole_command(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    run_s: float,
    budget_s: int,
) -> None:
    """Whatever a run takes, and be it a job that never ends: what was measured until then is
    told."""
    jobs = Jobs(monkeypatch, run_s)
    out = [
        "--out",
        str(tmp_path / "out"),
        "--format",
        "json",
        "--budget",
        str(budget_s),
        "--apply",
        "num_workers=2",
        *words,
    ]
    code = run(*out, "--", "python", "train.py")
    verification = json.loads(capsys.readouterr().out)
    assert jobs.now_s - 1000.0 <= budget_s
    assert verification["verdict"] in ("gain proven", "not settled")
    assert code == (0 if verification["verdict"] == "gain proven" else 1)
    assert jobs.num_ended <= 1, "none is begun after the one that the budget ended"
    if run_s * (len(words) + 10) <= budget_s:
        assert verification["verdict"] == "gain proven", "there was room for two rounds"
    if verification["speedup"] is None:
        assert "the budget " in verification["because"]
        assert verification["so_far"]["baseline"]["steps"] > 0


def test_a_job_that_never_ends_is_ended_with_the_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real one, which starts another that does not hear SIGTERM."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    script = tmp_path / "train.py"
    script.write_text(
        "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', "
        f"{deaf!r}])\ntime.sleep(1000)\n"
    )
    out = tmp_path / "out"
    words = [
        "--budget",
        "2",
        "--candidate-env",
        "X=1",
        "--format",
        "json",
        "--out",
        str(out),
        "--",
        sys.executable,
        str(script),
    ]
    assert run(*words) == 1
    verification = json.loads(capsys.readouterr().out)
    assert verification["verdict"] == "not settled"
    assert mentions(verification["because"], "budget", "baseline", "no step", "optimizer")
    assert len(verification["runs"]) == 1
    assert not members(None, str((out / "00-baseline" / SITE_FOLDER).absolute()).encode())


def test_secrets_of_a_command_are_not_written_down(
    faked: Callable[[Faker], list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faked(faster)
    out = tmp_path / "out"
    environment = [
        "--candidate-env",
        "WANDB_API_KEY=hush-hush",
        "--candidate-env",
        "OMP_NUM_THREADS=1",
    ]
    verify.run(
        parsed("--out", str(out), *environment, "--", "python", "train.py", "--token", "hush-hush")
    )
    written = (out / verify.RESULT_FILE).read_text()
    assert "hush-hush" not in written + capsys.readouterr().out
    verification = json.loads(written)
    assert verification["baseline"]["command"] == "python train.py --token '(masked)'"
    assert verification["candidate"]["change"]["environment"] == {
        "WANDB_API_KEY": "(masked)",
        "OMP_NUM_THREADS": "1",
    }


def test_a_signal_that_ends_it_leaves_what_was_measured(
    faked: Callable[[Faker], list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rounds and a half after the two rehearsals."""

    def fake(side: str, number: int, change: Change) -> Trial:
        if number > 12:
            signal.raise_signal(signal.SIGTERM)
        return trial(20 * (1 + 0.2 * (number % 3)))

    faked(fake)
    out = tmp_path / "out"
    code = verify.run(
        parsed(
            "--out",
            str(out),
            "--format",
            "json",
            "--apply",
            "num_workers=2",
            "--",
            "python",
            "train.py",
        )
    )
    verification = json.loads(capsys.readouterr().out)
    assert code == 1
    assert verification["verdict"] == "not settled"
    assert mentions(verification["because"], "interrupted", "2 rounds")
    assert verification["speedup"] is not None
    assert verification["rounds"] == 2


@pytest.mark.parametrize("words", [[], ["--check"]])
def test_a_signal_before_the_first_look_leaves_what_was_measured_too(
    faked: Callable[[Faker], list[Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    def fake(side: str, number: int, change: Change) -> Trial:
        if number > 2:
            signal.raise_signal(signal.SIGTERM)
        return trial(20 if side == "baseline" else 10)

    faked(fake)
    out = ["--out", str(tmp_path / "out"), "--format", "json"]
    assert (
        verify.run(parsed(*out, *words, "--apply", "num_workers=2", "--", "python", "train.py"))
        == 1
    )
    verification = json.loads(capsys.readouterr().out)
    conforms(verification, SCHEMA)
    assert (verification["verdict"], verification["speedup"], verification["interrupted"]) == (
        "not settled",
        None,
        True,
    )
    assert (
        verification["so_far"]["baseline"]["steps"]
        == 20 * verification["so_far"]["baseline"]["runs"]
    )
    assert (verification["so_far"]["candidate"] is None) == bool(words), (
        "--check runs the baseline twice first"
    )
    assert mentions(verification["because"], "baseline", "20.2 ms", "median")
    assert json.loads((tmp_path / "out" / verify.RESULT_FILE).read_text()) == verification


def test_a_setting_that_cannot_take_effect_is_refused_before_a_run(
    faked: Callable[[Faker], list[Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = faked(faster)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    out = ["--out", str(tmp_path / "out"), "--format", "json"]
    assert verify.run(parsed(*out, "--apply", "tf32=on", "--", "python", "train.py")) == 2
    verification = json.loads(capsys.readouterr().out)
    conforms(verification, SCHEMA)
    assert verification["verdict"] == "refused"
    assert "CUDA_VISIBLE_DEVICES hides every GPU" in verification["because"]
    assert not folders
    assert not (tmp_path / "out").exists()
    # With something else beside it, there is a thing to measure; and a GPU may be elsewhere.
    assert (
        verify.run(
            parsed(
                *out, "--apply", "tf32=on", "--apply", "num_workers=2", "--", "python", "train.py"
            )
        )
        == 0
    )
    other = [
        "--out",
        str(tmp_path / "other"),
        "--apply",
        "tf32=on",
        "--",
        "srun",
        "python",
        "train.py",
    ]
    assert verify.run(parsed(*other)) == 0


def prediction_of(arguments: Options) -> Prediction | None:
    sides = sides_of(arguments)
    return read_prediction(arguments.judged, sides.codes, sides.changes["candidate"].knobs)


def test_a_diagnosis_gives_the_prediction(tmp_path: Path) -> None:
    file = tmp_path / "diagnosis.json"
    file.write_text(kept_diagnosis("serial-loader", 1.4, 1.3, 1.6))
    for path in (file, tmp_path):
        for applied in ("serial-loader", "num_workers=3"):
            arguments = parsed("--apply", applied, "--from", str(path), "--", "python", "t.py")
            prediction = prediction_of(arguments)
            assert prediction is not None
            assert (prediction.value, prediction.low, prediction.high) == (1.4, 1.3, 1.6)
    own = ["--baseline", "python t.py", "--candidate", "python new.py"]
    arguments = parsed(*own, "--from", str(file), "--finding", "serial-loader")
    prediction = prediction_of(arguments)
    assert prediction is not None
    assert (prediction.value, prediction.low, prediction.high) == (1.4, 1.3, 1.6)
    for words, problem in (
        (["--from", str(file)], "--finding CODE .*: serial-loader"),
        (["--finding", "serial-loader"], "--from says where"),
        (
            ["--from", str(file), "--finding", "small-batch"],
            "small-batch.* serial-loader",
        ),
    ):
        arguments = parsed(*own, *words)
        with pytest.raises(UsageError, match=problem):
            prediction_of(arguments)
    arguments = parsed("--apply", "gc-pause", "--from", str(file), "--", "python", "t.py")
    with pytest.raises(UsageError, match=r"gc-pause.* serial-loader"):
        prediction_of(arguments)
    file.write_text('{"schema": "other/1", "findings": []}')
    with pytest.raises(FormatError, match="not a diagnosis"):
        prediction_of(arguments)
    file.unlink()
    with pytest.raises(InputError, match="there is no"):
        prediction_of(arguments)


def test_a_real_training_computes_the_same_with_a_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three real runs with what they compute written down; the rounds that follow are of no
    interest here."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    words = [
        "--apply",
        "num_workers=1",
        "--steps",
        "6",
        "--warm-up",
        "5",
        "--timeout",
        "600",
        "--",
        sys.executable,
        str(script),
    ]
    arguments = parsed(*words)
    sides, measuring = sides_of(arguments), arguments.measuring
    runner = verify.Runner(sides, tmp_path / "o", measuring, Budget(None, time.monotonic))
    made, stopped = verify.checked_runs(runner, verify.Progress(2, is_limited=True))
    assert stopped is None
    assert [run.side for run in made] == [BASELINE, BASELINE, CANDIDATE]
    assert made[2].trial.taken == {"num_workers": 1}
    check = check_of(made, None)
    assert check.verdict == "bit-identical"
    assert check.is_deterministic is True
    assert check.loss.num >= 6
    assert made[0].trial.setup == made[2].trial.setup


def test_how_long_it_may_take_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    trial = Trial(folder="", change=Change(), exit_code=0, step_ns=(10**8,) * 50, wall_s=20.0)
    run = Measured(side="baseline", trial=trial, round=None, step_ns=1e8)
    progress = verify.Progress(10, is_limited=False)
    progress.on_run(run, None)
    progress.on_run(run, None)
    said = capsys.readouterr().err
    assert len(re.findall(r"20 s.* 14 min .*--budget", said)) == 1
    verify.Progress(10, is_limited=True).on_run(run, None)
    assert "at most" not in capsys.readouterr().err
