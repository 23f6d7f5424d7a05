"""Documents are read as they were written, by this version, an older or a newer one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from msgspec.structs import replace

from stepscope.cli.main import main
from stepscope.core.codec import MANY, Contract, decode, encode, plain, schema_of
from stepscope.core.diagnosis import DiagnosisDocument
from stepscope.core.experiments.comparison import Comparisons, as_document
from stepscope.core.experiments.experiment import (
    Gap,
    LossCheck,
    NumericsCheck,
    Predicted,
    Prediction,
    SideSummary,
    Verified,
)
from stepscope.core.experiments.fixed import Attempt, Fixed
from stepscope.core.experiments.trials import Change
from stepscope.errors import FormatError
from stepscope.experiments.compare.comparison import compare
from stepscope.experiments.compare.saved import side_of_json
from stepscope.live.judge.judge import judge
from stepscope.live.shapes.alert import Alert, Measured
from stepscope.live.shapes.triage import Triage
from stepscope.plan.contract.collective import CollectiveContract
from stepscope.plan.contract.launch import CheckContract, LaunchContract
from stepscope.plan.contract.plan import PlanContract
from stepscope.plan.contract.plan_calibration import PlanCalibration, PlanComparisonContract
from stepscope.report.diagnosis.json import to_json
from stepscope.scaling.contract import ScalingContract, scaling_json
from stepscope.tune.shapes.tuning import KnobShown, Tried, Tuning, Winner
from tests.json_schema import DOCUMENTS, file_name, json_schema
from tests.scaling.test_view import SERIES
from tests.scenarios import SCENARIOS, kept_diagnosis
from tests.shared_data import DEMO, ROOT
from tests.triage_cases import device, host, rank, seen, worker

ALERT = Alert(
    kind="late-rank",
    ranks=(1,),
    step=9,
    words="late",
    at_wall_ns=5,
    number=1,
    measured=Measured(before=None, after=2.5, unit="ms"),
    run="runs/a",
    text="late",
)
GAP = Gap(num=3, largest=math.inf, is_number=False, at_step=1, first_step=1)
SIDE = SideSummary(num_runs=4, ms=2.0, run_spread=0.01, mean_ms=2.1)
VERIFIED = Verified(
    verdict="refused",
    because="it differs",
    speedup=None,
    runs=(),
    baseline=SIDE,
    candidate=replace(SIDE, ms=None, change=Change(knobs={"num_workers": 2, "pin_memory": True})),
    num_rounds=1,
    num_looks=1,
    smallest=math.inf,
    loss=LossCheck(verdict="sound", because="it falls"),
    check=NumericsCheck(
        verdict="differs",
        because="a loss is NaN",
        tolerance=1e-6,
        loss=GAP,
        grad_norm=GAP,
        parameter_norm=GAP,
        loss_floor=GAP,
        grad_norm_floor=GAP,
        parameter_norm_floor=GAP,
        is_deterministic=None,
        num_parameters_equal=None,
    ),
    prediction=Prediction(value=1.5, source="you", verdict="open"),
)
TRIED = Tried(number=0, settings={"num_workers": 0, "lr": 0.1}, state="measured", ms=1.0)
TUNING = Tuning(
    command=("python", "t.py"),
    per="step",
    knobs=(KnobShown(name="num_workers", words="0 to 8", way="a hook"),),
    size=9,
    baseline=TRIED,
    trials=(TRIED,),
    verdict="proven",
    because="it is",
    winner=Winner(settings={"num_workers": 2}, ms=0.9, speedup=1.1),
    importance={"num_workers": 1.0},
    verified=VERIFIED,
)
ATTEMPT = Attempt(
    code="serial-loader",
    summary="s",
    action="a",
    predicted=Predicted(value=1.5),
    outcome="kept",
    why="w",
    verified=VERIFIED,
)
FIXED = Fixed(command=("t",), attempts=(ATTEMPT,), kept={}, whole=VERIFIED)


def _comparison() -> str:
    sides = [side_of_json(kept_diagnosis("serial-loader"), name) for name in "abc"]
    return encode(as_document([compare(sides[0], side) for side in sides[1:]]))


MADE: dict[type[Contract], Callable[[], str]] = {
    Comparisons: _comparison,
    DiagnosisDocument: lambda: to_json(SCENARIOS["lone_rank_with_collectives"]()),
    Alert: lambda: encode(ALERT),
    Fixed: lambda: encode(FIXED),
    ScalingContract: lambda: scaling_json(next(iter(SERIES.values()))),
    Triage: lambda: encode(judge(seen(device(), host(rank(), worker())))),
    Tuning: lambda: encode(TUNING),
    Verified: lambda: encode(VERIFIED),
}


@pytest.fixture(params=DOCUMENTS, ids=schema_of)
def shape(request: pytest.FixtureRequest) -> type[Contract]:
    found: type[Contract] = request.param
    return found


JOB = ["--model", "llama3-8b", "--cluster", "1x8xH100", "--seq", "8192", "--global-batch", "16"]
PLANS: dict[type[Contract], list[str]] = {
    CheckContract: ["--check", "ds_config.json", *JOB[:6]],
    CollectiveContract: ["--collective", "all_reduce", "--bytes", "1MB", "--ranks", "64"],
    LaunchContract: [*JOB, "--emit", "fsdp2"],
    PlanContract: [*JOB, "--tokens", "1T"],
}


_written: dict[type[Contract], str] = {}
"""A document of each shape, made once by each test process: nothing here changes one."""


@pytest.fixture
def text(
    shape: type[Contract],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    if shape not in _written:
        monkeypatch.chdir(tmp_path)
        _written[shape] = _write(shape, capsys)
    return _written[shape]


def _write(shape: type[Contract], capsys: pytest.CaptureFixture[str]) -> str:
    if shape in MADE:
        return MADE[shape]()
    if shape in (PlanCalibration, PlanComparisonContract):
        return _learned(shape, capsys)
    Path("ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 1, "bf16": {}}')
    assert main(["plan", *PLANS[shape], "--format", "json"]) in (0, 1)
    return capsys.readouterr().out.rstrip("\n")


def _learned(shape: type[Contract], capsys: pytest.CaptureFixture[str]) -> str:
    job = ["--model", "gpt2", "--cluster", "1xH200", "--seq", "1024", "--global-batch", "8"]
    assert main(["plan", *job, "--format", "json", "-o", "plan.json"]) == 0
    capsys.readouterr()
    learn = ["--recalibrate", "learned.json", "--format", "json"]
    assert main(["compare", "plan.json", str(DEMO), *learn]) == 0
    comparison = capsys.readouterr().out.rstrip("\n")
    kept = Path("learned.json").read_text().rstrip("\n")
    return kept if shape is PlanCalibration else comparison


def test_a_document_is_read_as_it_was_written(shape: type[Contract], text: str) -> None:
    assert encode(decode(text, shape, "a.json")) == text


def test_a_document_keeps_its_schema(shape: type[Contract], text: str) -> None:
    published = json.loads((ROOT / "docs" / file_name(shape)).read_text(encoding="utf-8"))
    assert published == json_schema(shape)
    Draft202012Validator.check_schema(published)
    validator = Draft202012Validator(published)
    assert [error.message for error in validator.iter_errors(json.loads(text))] == []
    assert not validator.is_valid({"schema": schema_of(shape)})


def test_keys_of_a_newer_version_are_passed_over(shape: type[Contract], text: str) -> None:
    told = json.loads(text)
    assert encode(decode(json.dumps(_with_more(told)), shape, "a.json")) == text


def _with_more(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_more(part) for part in value]
    if not isinstance(value, dict) or not {"schema", "rank", "name"} & value.keys():
        return value
    return {key: _with_more(part) for key, part in value.items()} | {"a_newer_key": [1]}


@pytest.mark.parametrize("other", ["stepscope.diagnosis/9", "stepscope.other/1", None, 1])
def test_another_schema_is_named(shape: type[Contract], text: str, other: object) -> None:
    told = json.loads(text) | {"schema": other}
    has = repr(other) if isinstance(other, str) else "no schema"
    said = f"a.json is not a .* it has .*{has}.*reads '{schema_of(shape)}'"
    with pytest.raises(FormatError, match=said):
        decode(json.dumps(told), shape, "a.json")


@pytest.mark.parametrize("bad", ["", "{", "[]", "null", '"x"', "[" * 100_000, b"\xff\xfe{"])
def test_what_is_no_document_is_refused_in_words(shape: type[Contract], bad: str | bytes) -> None:
    with pytest.raises(FormatError, match=r"^a\.json is not a "):
        decode(bad, shape, "a.json")


def test_fields_that_an_older_version_lacked_have_a_default() -> None:
    told = json.loads(kept_diagnosis("serial-loader"))
    for key in ("ladder", "abstentions", "unknown_events"):
        del told[key]
    del told["ranks"][0]["mfu"]
    del told["findings"][0]["places"]
    found = decode(json.dumps(told), DiagnosisDocument, "a.json")
    assert (found.ladder, found.unknown_events, found.ranks[0].mfu) == ((), 0, None)
    assert found.findings[0].source_locations == ()
    assert not found.abstentions


def test_a_number_out_of_range_is_refused_at_its_place() -> None:
    told = json.loads(kept_diagnosis("serial-loader"))
    told["findings"][0]["predicted_low"] = -0.5
    with pytest.raises(FormatError, match=r"predicted_low"):
        decode(json.dumps(told), DiagnosisDocument, "a.json")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    share: float | None = None


class Many(Contract, frozen=True, kw_only=True, tag="stepscope.many/1"):
    items: tuple[Item, ...]
    few: tuple[int, ...] = ()


@pytest.mark.parametrize("num", [0, 1, MANY, MANY + 1, 100])
def test_a_long_list_is_written_as_a_short_one_is(num: int) -> None:
    items = tuple(Item(number=number, share=number / 3) for number in range(num))
    many = Many(items=items, few=(1, 2))
    assert encode(many) == json.dumps(plain(many), indent=2)
    strange = Many(items=(*items, Item(number=1, share=float("inf"))))
    assert json.loads(encode(strange))["items"][-1] == {"number": 1, "share": None}
