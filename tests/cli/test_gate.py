"""The gate: what its conditions mean, what it says, and the exit codes a scheduler sees."""

from __future__ import annotations

import json
import math
import operator
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.cli.main import build_parser, main
from stepscope.core.gate import Check, Gate, Quantities, decide, parse
from stepscope.core.gate_quantities import known_names, read_quantities
from stepscope.errors import UsageError
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import diagnose
from stepscope.report.diagnosis.json import to_json
from stepscope.report.gate import gate_lines
from tests.installed import package
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.scenarios import SCENARIOS
from tests.shared_data import DEMO, ROOT, lab_traces
from tests.wording import mentions

pytestmark = pytest.mark.usefixtures("measured_once")

CODES = ("serial-loader", "memory-growth")
NAMES = known_names(CODES)


def answer(
    text: str, baseline: dict[str, float | None] | None = None, **values: float | None
) -> str:
    check = Check(text=text, source="here", condition=parse(text, "here", NAMES))
    return decide(
        check, Quantities(values=values), None if baseline is None else Quantities(values=baseline)
    ).status


def gated(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> tuple[str, str]:
    assert main(["diagnose", str(DEMO), "--no-cache", "--step-ms", "65.48", *arguments]) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out, captured.err


@pytest.fixture(scope="module")
def contract() -> dict[str, Any]:
    """The demo's diagnosis in JSON."""
    told: dict[str, Any] = json.loads(
        to_json(diagnose([str(DEMO)], Options(step_ms=65.48, use_cache=False, jobs=1)))
    )
    return told


@pytest.fixture
def baseline(tmp_path: Path, contract: dict[str, Any]) -> Path:
    """An earlier diagnosis whose step took 50 ms."""
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(contract | {"step": contract["step"] | {"ms": 50.0}}))
    return path


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("step_ms > 10", "failed"),
        ("step_ms > 20", "passed"),
        ("step_ms >= 20", "failed"),
        ("step_ms < 20", "passed"),
        ("step_ms <= 20", "failed"),
        ("step_ms == 20", "failed"),
        ("step_ms != 20", "passed"),
        ("step_ms > 4 + 4 * 4", "passed"),
        ("step_ms > (4 + 4) * 2", "failed"),
        ("step_ms - 5 - 5 < 11", "failed"),
        ("step_ms / 2 / 2 == 5", "failed"),
        ("-step_ms < -19.5", "failed"),
        ("2 - -2 == 4", "failed"),
        (".5e1 * 2 == 10.", "failed"),
        ("step_ms > 10 and idle_ms > 10", "passed"),
        ("step_ms > 10 or idle_ms > 10", "failed"),
        ("step_ms > 10 or step_ms > 99 and step_ms > 99", "failed"),
        ("(step_ms > 10 or step_ms > 99) and step_ms > 99", "passed"),
        ("((step_ms)) > ((10))", "failed"),
        ("step_ms\n>\t10", "failed"),
        ("any  finding > 1.2", "failed"),
        ("finding.serial-loader - 1 > 0.2", "failed"),
        ("share.data > 0.5", "passed"),
    ],
)
def test_conditions_mean_what_they_say(text: str, status: str) -> None:
    values: dict[str, float | None] = {
        "step_ms": 20.0, "idle_ms": 5.0, "any finding": 1.3, "finding.serial-loader": 1.3,
        "share.data": 0.5,
    }  # fmt: skip
    check = Check(text=text, source="here", condition=parse(text, "here", NAMES))
    assert decide(check, Quantities(values=values), None).status == status


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("mfu < 0.4", "undecided"),
        ("mfu >= 0", "undecided"),
        ("mfu * 0 == 0", "undecided"),
        ("mfu < 0.4 and step_ms > 99", "passed"),
        ("mfu < 0.4 and step_ms > 9", "undecided"),
        ("mfu < 0.4 or step_ms > 9", "failed"),
        ("step_ms > 99 or mfu < 0.4", "undecided"),
        ("step_ms / (idle_ms - 5) > 1", "undecided"),
        ("1e308 * 1e308 - 1e308 * 1e308 > step_ms", "undecided"),
    ],
)
def test_what_was_not_measured_is_never_a_number(text: str, status: str) -> None:
    assert answer(text, step_ms=20.0, idle_ms=5.0, mfu=None) == status


def test_baseline_is_the_quantity_that_the_comparison_names() -> None:
    told: dict[str, float | None] = {"step_ms": 10.0, "idle_ms": 4.0, "mfu": None}
    assert answer("step_ms > baseline * 1.05", told, step_ms=10.6) == "failed"
    assert answer("step_ms > baseline * 1.05", told, step_ms=10.4) == "passed"
    assert answer("step_ms - baseline > 1", told, step_ms=11.5) == "failed"
    assert (
        answer("step_ms > baseline or idle_ms > baseline", told, step_ms=1.0, idle_ms=4.5)
        == "failed"
    )
    assert (
        answer(
            "idle_ms / step_ms > baseline.idle_ms / baseline.step_ms",
            told,
            idle_ms=4.1,
            step_ms=10.0,
        )
        == "failed"
    )
    assert answer("mfu < baseline", told, mfu=0.4) == "undecided"


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("step_ms >> 3", 9, "number or a name"),
        ("stepms > 3", 0, "is step_ms meant?"),
        ("3 < finding.serial-loder", 4, "is finding.serial-loader meant?"),
        ("step_ms > 3 3", 12, "one too many"),
        ("(step_ms > 3", 0, "not closed"),
        ("step_ms > 3)", 11, "one too many"),
        ("step_ms >", 9, "missing here"),
        ("", 0, "missing here"),
        ("step_ms", 0, "not a condition"),
        ("1 < step_ms < 3", 12, "one comparison"),
        ("step_ms > 3 and 4", 16, "joins conditions"),
        ("(step_ms > 3) + 1 > 2", 9, "is a condition"),
        ("step_ms > -(mfu > 1)", 16, "is a condition"),
        ("step_ms = 3", 8, "means nothing"),
        ("step_ms; import os", 7, "means nothing"),
        ("__import__('os')", 0, "not a quantity"),
        ("step_ms > 1e999", 10, "too large"),
        ("step_ms > 3ms", 10, "means nothing"),
        ("idle_ms + step_ms > baseline", 20, "baseline of what?"),
        ("3 > baseline", 4, "baseline of what?"),
        ("step_ms > baseline.any", 10, "not a quantity"),
        ("step_ms > " + "(" * 60 + "1" + ")" * 60, 50, "inside one another"),
    ],
)
def test_a_bad_condition_is_shown_with_a_caret(text: str, at: int, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text, "--fail-if", NAMES)
    lines = str(refused.value).splitlines()
    assert lines[0].startswith("--fail-if: ")
    assert words in lines[0]
    shown = lines.index(f"    {text}") if text else lines.index("    ")
    assert lines[shown + 1] == "    " + " " * at + "^"
    assert "step_ms" in "\n".join(lines[shown + 2 :])
    assert "share.BOUND (comms, compute, data" in "\n".join(lines)


def test_a_condition_without_an_end_is_refused() -> None:
    with pytest.raises(UsageError, match="500 are allowed"):
        parse("step_ms > 1" + " or step_ms > 1" * 100, "--fail-if", NAMES)


@given(st.text(alphabet="step_mbaln.fidg-anyor()<>=!+*/ 0123456789e", max_size=60))
def test_any_text_is_a_condition_or_refused_in_words(text: str) -> None:
    try:
        told = parse(text, "--fail-if", NAMES).is_condition
    except UsageError as refused:
        told = "^" in str(refused)
    assert told


SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
numbers = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False).map(
    lambda value: round(value, 3)
)
leaves = st.one_of(
    numbers.map(lambda v: (f"{v!r}" if v >= 0 else f"({v!r})", v)),
    st.sampled_from([("step_ms", 20.0)]),
)
sums = st.recursive(
    leaves,
    lambda inner: st.tuples(inner, st.sampled_from(sorted(SIGNS)), inner).map(
        lambda three: (
            f"({three[0][0]} {three[1]} {three[2][0]})",
            SIGNS[three[1]](three[0][1], three[2][1]),
        )
    ),
    max_leaves=6,
)


@given(sums, sums)
def test_arithmetic_is_pythons(left: tuple[str, float], right: tuple[str, float]) -> None:
    expected = "failed" if left[1] > right[1] else "passed"
    assert math.isfinite(left[1])
    assert answer(f"{left[0]} > {right[0]}", step_ms=20.0) == expected


def test_quantities_are_those_of_the_contract(contract: dict[str, Any]) -> None:
    told, source = read_quantities(json.dumps(contract), "here", CODES)
    rank = contract["ranks"][0]
    parts = rank["partition_ms"]
    assert source == "given"
    assert told.values["step_ms"] == 65.48
    assert told.values["profiled_ms"] == contract["step"]["profiled_ms"]
    assert told.values["share.data"] == contract["verdict"]["shares"]["data"]
    assert told.values["idle_ms"] == pytest.approx(
        sum(ms for part, ms in parts.items() if part.startswith("idle_"))
    )
    assert told.values["compute_ms"] == parts["compute"]
    assert told.values["gpu_busy"] == pytest.approx(
        rank["gpu_busy_ms"] / contract["step"]["profiled_ms"]
    )
    assert told.values["mfu"] == rank["mfu"]
    assert told.values["finding.serial-loader"] == contract["findings"][0]["predicted_speedup"]
    assert told.values["any finding"] == max(
        finding["predicted_speedup"] for finding in contract["findings"]
    )
    assert told.values["finding.memory-growth"] is None
    assert "profile_memory=True" in told.why["finding.memory-growth"]
    found = {f"finding.{finding['code']}" for finding in contract["findings"]}
    assert set(told.values) == set(NAMES) | found


def test_a_finding_that_is_not_there_gives_nothing_to_gain(contract: dict[str, Any]) -> None:
    told, _ = read_quantities(json.dumps(contract | {"findings": [], "notes": []}), "here", CODES)
    assert told.values["finding.serial-loader"] == told.values["any finding"] == 1.0
    unplayed, _ = read_quantities(
        json.dumps(contract | {"findings": [], "replay": None}), "here", CODES
    )
    assert unplayed.values["finding.serial-loader"] is None
    assert unplayed.values["any finding"] is None


def test_the_rank_is_the_one_with_the_median_step(contract: dict[str, Any]) -> None:
    rank = contract["ranks"][0]

    def stretched(number: int, by: float) -> dict[str, Any]:
        return {
            **rank,
            "rank": number,
            "partition_ms": {part: ms * by for part, ms in rank["partition_ms"].items()},
        }

    ranks = [
        stretched(0, 3.0),
        stretched(1, 1.0),
        stretched(2, 2.0),
        rank | {"rank": 3, "partition_ms": None},
    ]
    told, _ = read_quantities(json.dumps(contract | {"ranks": ranks}), "here", CODES)
    assert told.values["compute_ms"] == pytest.approx(2 * rank["partition_ms"]["compute"])


def test_waits_not_told_from_bytes_are_exposed_all_the_same(contract: dict[str, Any]) -> None:
    rank = contract["ranks"][0]
    parts = rank["partition_ms"] | {"comms_wait": None, "comms_transfer": 7.0}
    told, _ = read_quantities(
        json.dumps(contract | {"ranks": [rank | {"partition_ms": parts}]}), "here", CODES
    )
    assert told.values["exposed_comms_ms"] == 7.0
    assert told.values["comms_wait_ms"] is None
    assert "other ranks" in told.why["comms_wait_ms"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_what_is_no_finite_number_was_not_measured(value: str, contract: dict[str, Any]) -> None:
    text = json.dumps(contract | {"step": contract["step"] | {"ms": 12345.0}}).replace(
        "12345.0", value
    )
    told, _ = read_quantities(text, "here", CODES)
    assert told.values["step_ms"] is None


def test_hostile_names_neither_stop_the_gate_nor_reach_the_terminal(
    contract: dict[str, Any],
) -> None:
    diagnosis = SCENARIOS["evil_names"]()
    assert (
        read_quantities(to_json(diagnosis), "here", CODES)[0].values["step_ms"] == diagnosis.step.ms
    )
    abstentions = [
        {"code": "memory-growth", "reason": "\x1b[31mred \ud800\nnext line", "needs": "more"}
    ]
    told, _ = read_quantities(json.dumps(contract | {"abstentions": abstentions}), "here", CODES)
    check = Check(
        text="x", source="here", condition=parse("finding.memory-growth > 1", "here", NAMES)
    )
    lines = gate_lines(Gate(results=(decide(check, told, None),)))
    assert len(lines) == 2
    assert "red" in lines[1]
    assert all(line.isprintable() for line in lines)


def test_exposed_comms_of_real_ranks_are_gated(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(path) for path in lab_traces("ranks2/fsdp_even.slow.*")]
    assert (
        main(
            [
                "diagnose",
                *paths,
                "--no-cache",
                "--jobs",
                "1",
                "--format",
                "json",
                "--fail-if",
                "exposed_comms_ms > 0",
            ]
        )
        == 1
    )
    found = json.loads(capsys.readouterr().out)
    partitions = [rank["partition_ms"] for rank in found["ranks"]]
    exposed = {
        round((partition["comms_wait"] or 0.0) + (partition["comms_transfer"] or 0.0), 9)
        for partition in partitions
    }
    assert round(found["gate"]["checks"][0]["values"]["exposed_comms_ms"], 9) in exposed


def test_a_gate_that_passes_exits_0_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = gated(capsys, "--fail-if", "step_ms > 70", "--fail-if", "share.data > 0.9", code=0)
    assert "Input-bound" in out
    assert err == "stepscope: the gate passed: 2 checks, none failed\n"


def test_a_gate_that_fails_exits_1_with_the_reasons_after_the_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, err = gated(capsys, "--fail-if", "step_ms > 60", "--fail-if", "step_ms > 70", code=1)
    assert "Input-bound" in out
    assert err.splitlines() == [
        "stepscope: the gate failed: 1 of 2 checks",
        "stepscope: failed: step_ms > 60 (--fail-if): step_ms 65.48; 65.48 > 60",
    ]


def test_an_undecided_check_fails_the_gate_with_its_own_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, err = gated(capsys, "--fail-if", "finding.memory-growth > 1.1", "--format", "json", code=1)
    gate = json.loads(out)["gate"]
    assert not gate["passed"]
    assert gate["checks"][0]["status"] == "undecided"
    assert gate["checks"][0]["values"] == {"finding.memory-growth": None}
    assert "not decided: finding.memory-growth > 1.1" in err
    assert mentions(err, "not judged", "allocator", "profile_memory=True")


def test_a_budget_may_let_the_undecided_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = tmp_path / "budget.toml"
    budget.write_text('missing = "pass"\n[limits]\n"finding.memory-growth" = 1.1\n')
    _, err = gated(capsys, "--budget", str(budget), code=0)
    assert "the gate passed" in err
    assert mentions(err, "not decided", "let pass: finding.memory-growth <= 1.1")


def test_a_baseline_of_json_is_read(baseline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    against = ("--baseline", str(baseline), "--format", "json")
    out, err = gated(capsys, *against, "--fail-if", "step_ms > baseline*1.05", code=1)
    gate = json.loads(out)["gate"]
    assert gate["baseline"] == str(baseline)
    assert gate["checks"][0]["values"] == {"step_ms": 65.48, "baseline.step_ms": 50.0}
    assert "65.48 > 52.5" in err
    gated(capsys, *against, "--fail-if", "step_ms > baseline*1.4", code=0)


def test_a_baseline_may_be_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    compared = ("--baseline", str(DEMO), "--fail-if", "compute_ms != baseline", "--format", "json")
    out, err = gated(capsys, *compared, code=0)
    (check,) = json.loads(out)["gate"]["checks"]
    assert check["status"] == "passed"
    assert check["values"]["compute_ms"] == check["values"]["baseline.compute_ms"] > 0
    assert "the gate passed" in err


def test_a_profiled_step_is_not_compared_with_an_unprofiled_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, err = gated(capsys, "--baseline", str(DEMO), "--fail-if", "step_ms > baseline", code=1)
    assert "not decided" in err
    assert mentions(err, "while profiled", "without a profiler")


def test_a_run_without_traces_is_gated_on_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    add_steps(write_rank(run, 0), [row(step, dur_ms=10.0) for step in range(1, 60)])
    conditions = [
        "--fail-if",
        "step_ms > 9",
        "--fail-if",
        "idle_ms > 0",
        "--fail-if",
        "any finding > 1.2",
    ]
    assert main(["diagnose", str(run), "--format", "json", *conditions]) == 1
    captured = capsys.readouterr()
    checks = json.loads(captured.out)["gate"]["checks"]
    assert [check["status"] for check in checks] == ["failed", "undecided", "undecided"]
    assert checks[0]["values"] == {"step_ms": pytest.approx(10.0)}
    assert mentions(captured.err, "no rank", "whole step")


BUDGET = """
baseline = "earlier.json"
fail_if = ["share.data > 0.3 and idle_ms / profiled_ms > 0.5"]

[limits]
step_ms = "baseline * 1.4"
share.host = 0.1
"any finding" = 3
mfu = ">= 0.4"
"""


def test_a_budget_has_limits_conditions_and_a_baseline(
    baseline: Path, contract: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    budget = baseline.parent / "budget.toml"
    budget.write_text(BUDGET)
    out, err = gated(capsys, "--budget", str(budget), "--format", "json", code=1)
    checks = {check["check"]: check["status"] for check in json.loads(out)["gate"]["checks"]}
    assert checks == {
        "share.data > 0.3 and idle_ms / profiled_ms > 0.5": "failed",
        "step_ms <= baseline * 1.4": "passed",
        "share.host <= 0.1": "failed",
        "any finding <= 3": "passed",
        "mfu >= 0.4": "failed",
    }
    assert f"({budget}: limits)" in err
    assert f"{contract['ranks'][0]['mfu']:.6g} < 0.4" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limits = 3", "limits must"),
        ("[limit]\nstep_ms = 3", "'limit'; did you mean limits?"),
        ("[limits]\nstepms = 3", "is step_ms meant?"),
        ("[limits]\nstep_ms = true", "write a number"),
        ("[limits]\nstep_ms = [1]", "write a number"),
        ("[limits]\nstep_ms = nan", "must be finite"),
        ("[limits]\nmfu = 0.4", "or the least?"),
        ("[limits]\ngpu_busy = '0.9'", "or the least?"),
        ("[limits]\nstep_ms = '< 3 or mfu > 1'", "goes under fail_if"),
        ("[limits]\nstep_ms = '3 4'", "one too many"),
        ("[limits]\n'step_ms + idle_ms' = 3", "not a condition"),
        ("[limits]\n'step_ms > 3' = 3", "not one quantity"),
        ("fail_if = [3]", "fail_if must"),
        ("fail_if = 'step_ms'", "not a condition"),
        ("missing = 'ignore'\n[limits]\nstep_ms = 3", "'fail' or 'pass'"),
        ("baseline = 3\n[limits]\nstep_ms = 3", "baseline must"),
        ("[limits]\nstep_ms = 'baseline'", "give one with --baseline"),
        ("", "nothing to check"),
        ("[limits\n", "not TOML"),
    ],
)
def test_a_bad_budget_is_a_mistake_in_words(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = tmp_path / "budget.toml"
    budget.write_text(text)
    out, err = gated(capsys, "--budget", str(budget), code=2)
    assert out == ""
    assert words in err


def test_without_a_reader_of_toml_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    (tmp_path / "budget.toml").write_text("")
    monkeypatch.setattr("stepscope.core.toml_text.importlib.import_module", absent)
    _, err = gated(capsys, "--budget", str(tmp_path / "budget.toml"), code=2)
    assert "pip install tomli" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail-if", "step_ms >> 1"], "    step_ms >> 1\n             ^"),
        (["--fail-if", "step_ms > baseline"], "give one with --baseline"),
        (["--baseline", "x.json"], "nothing to check"),
        (["--budget", "/no/such/budget.toml"], "/no/such/budget.toml"),
        (["--fail-if", "step_ms > 1", "--scaling"], "names: efficiency, karp_flatt, speedup"),
        (["--baseline", "x.json", "--scaling"], "--scaling compares several runs"),
        (["--format", "markdown", "--scaling"], "no Markdown"),
        (
            ["--fail-if", "step_ms > baseline", "--baseline", "/no/such/run"],
            "--baseline: /no/such/run does not exist",
        ),
    ],
)
def test_mistakes_exit_2_before_anything_is_measured(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = gated(capsys, *arguments, code=2)
    assert out == ""
    assert words in err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "stepscope.diagnosis/9"}, "stepscope.diagnosis/9"),
        (
            {"step": {"ms": "fast", "profiled_ms": None, "source": "given", "count": 1}},
            r"$.step.ms",
        ),
        ({"step": {"profiled_ms": None, "source": "given", "count": 1}}, "`ms`"),
        ({"ranks": None}, r"$.ranks"),
    ],
)
def test_a_baseline_that_is_no_diagnosis_is_refused(
    change: dict[str, Any],
    words: str,
    contract: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(contract | change))
    _, err = gated(capsys, "--baseline", str(path), "--fail-if", "step_ms > baseline", code=2)
    assert "--baseline: " in err
    assert "broken.json" in err
    assert words in err


def _block(language: str) -> str:
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    return text.split(f"```{language}\n")[1].split("```")[0]


def test_the_documented_budget_is_one(
    contract: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main").mkdir()
    (tmp_path / "main" / "diagnosis.json").write_text(json.dumps(contract))
    (tmp_path / "budget.toml").write_text(_block("toml"))
    out, _ = gated(capsys, "--budget", str(tmp_path / "budget.toml"), "--format", "json", code=1)
    checks = {check["check"]: check["status"] for check in json.loads(out)["gate"]["checks"]}
    assert len(checks) == 8
    assert checks["step_ms <= baseline * 1.05"] == "passed"
    assert checks["finding.serial-loader <= 1.05"] == "failed"


def test_the_documented_names_are_those_there_are() -> None:
    table = (
        (ROOT / "docs" / "ci.md")
        .read_text(encoding="utf-8")
        .split("| name | what it is |")[1]
        .split("\n\n")[0]
    )
    named = {
        name
        for line in table.splitlines()
        for name in re.findall(r"`([^`]+)`", line.split("|")[1] if "|" in line else "")
    }
    assert named == {*known_names(()), "finding.CODE", "baseline", "baseline.NAME"}


def test_the_documented_workflow_runs_commands_that_exist() -> None:
    yaml = package("yaml", "PyYAML")
    jobs = yaml.safe_load(_block("yaml"))["jobs"]
    script = "\n".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    commands = [
        shlex.split(line, comments=True)
        for line in script.splitlines()
        if line.strip().startswith("stepscope ")
    ]
    assert [words[1] for words in commands] == ["run", "diagnose", "report", "diagnose"]
    for words in commands:
        if words[1] in ("run", "diagnose"):
            ours = words[1 : words.index(">")] if ">" in words else words[1:]
            build_parser().parse_args([word for word in ours if word != "${gate[@]}"])
    condition = shlex.split(script.split("gate+=(")[1].split(")\n")[0])
    assert parse(condition[condition.index("--fail-if") + 1], "docs", NAMES).is_condition
