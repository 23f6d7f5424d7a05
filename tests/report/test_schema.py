"""The published schema holds for what is really printed, and refuses what is not the contract."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from msgspec.structs import replace

from stepscope.cli.main import main
from stepscope.core.codec import schema_of
from stepscope.core.comms import CommsFacts
from stepscope.core.diagnosis import BOUNDS, DiagnosisDocument, Finding
from stepscope.core.facts import PARTS
from stepscope.core.run import RankMetadata, RunFacts
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import diagnose
from stepscope.report.diagnosis.json import to_json
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.nccl_logs import two_nodes
from tests.scenarios import SCENARIOS
from tests.shared_data import ROOT, SMALL, lab_traces
from tests.wording import mentions

pytestmark = pytest.mark.usefixtures("measured_once")

PUBLISHED = json.loads((ROOT / "docs" / "diagnosis.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(PUBLISHED)


def faults(value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in VALIDATOR.iter_errors(value)]


def diagnosed(*paths: Path, step_ms: float | None = None) -> dict[str, Any]:
    diagnosis = diagnose(
        [str(path) for path in paths],
        Options(step_ms=step_ms, use_cache=False, jobs=1, all_findings=True),
    )
    diagnosis.self_check()
    value: dict[str, Any] = json.loads(to_json(diagnosis))
    return value


@pytest.fixture(scope="module")
def demo(measured_once: None) -> dict[str, Any]:
    return diagnosed(SMALL, step_ms=65.48)


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(PUBLISHED)
    assert PUBLISHED["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert PUBLISHED["properties"]["schema"] == {"const": schema_of(DiagnosisDocument)}


def test_the_demo_keeps_the_schema(demo: dict[str, Any]) -> None:
    assert faults(demo) == []
    assert demo["findings"]
    assert demo["replay"] is not None


# Names of a stranger's making break the pattern of codes, which are our own; a half character is no
# JSON.
@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - {"evil_names"}))
def test_every_scenario_keeps_the_schema(name: str) -> None:
    made = SCENARIOS[name]()
    made.self_check()
    assert faults(json.loads(to_json(made))) == []


@pytest.mark.parametrize("path", lab_traces("single/*.slow.*"), ids=lambda p: p.name)
def test_traces_of_one_device_keep_the_schema(path: Path) -> None:
    assert faults(diagnosed(path)) == []


@pytest.mark.parametrize("case", ["ranks2/fsdp_even.slow", "rank_traces/pp_gpipe_w4.slow"])
def test_traces_of_several_ranks_keep_the_schema(case: str) -> None:
    document = diagnosed(*lab_traces(f"{case}.*"))
    assert faults(document) == []
    assert len(document["ranks"]) > 1
    assert document["comms"]["rows"]


def test_a_run_without_traces_keeps_the_schema(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    add_steps(write_rank(run, 0), [row(step) for step in range(1, 60)])
    document = diagnosed(run)
    assert document["ranks"] == []
    assert document["run"]["ranks"][0]["steps"]["num"] > 0
    assert document["step"]["source"] == "measured"
    assert faults(document) == []


WIDE = {"cpu_user_cores": 1e308, "cpu_sys_cores": 1e308, "children_cores": 1e308}
NOT_MEASURED = {
    "Infinity": {"cpu_user_cores": math.inf},
    "-Infinity": {"cpu_user_cores": -math.inf},
    "NaN": {"cpu_user_cores": math.nan, "busiest_child_cores": math.nan},
    "a sum beyond doubles": WIDE,
    "a device busier than it can be": {
        "cpu_user_cores": math.nan,
        "devices": [{"gpu_util_percent": 1e300, "gpu_power_w": math.inf}],
    },
}


@pytest.mark.parametrize("told", NOT_MEASURED.values(), ids=NOT_MEASURED)
def test_what_is_not_finite_was_not_measured(told: dict[str, Any], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rank = write_rank(run, 0)
    add_steps(rank, [row(step) for step in range(1, 60)])
    lines = [json.dumps({"at_ns": at, "step": at, **told}) for at in range(5)]
    (rank / "samples.jsonl").write_text("\n".join(lines) + "\n")
    document = diagnosed(run)
    assert document["run"]["ranks"][0]["cores_used"] is None
    assert faults(document) == []


def test_a_number_that_is_not_finite_is_null_and_noted() -> None:
    made = SCENARIOS["data_bound"]()
    step = replace(made.step, ms=math.inf, profiled_ms=math.nan)
    document = json.loads(to_json(replace(made, step=step)), parse_constant=pytest.fail)
    assert document["step"]["ms"] is document["step"]["profiled_ms"] is None
    assert document["notes"][-1].endswith("step.ms, step.profiled_ms")
    assert faults(document) == []


def test_a_wait_longer_than_its_step_is_no_part_of_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    add_steps(
        write_rank(run, 0),
        [row(step, wait_ns=10**9 if step % 9 == 0 else 1000) for step in range(1, 100)],
    )
    document = diagnosed(run)
    assert faults(document) == []
    assert document["verdict"]["shares"]["data"] < 0.01


def test_waits_that_do_not_fit_into_the_steps_are_told_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    add_steps(write_rank(run, 0), [row(step, wait_ns=10**9) for step in range(1, 100)])
    document = diagnosed(run)
    assert faults(document) == []
    assert document["verdict"]["shares"] == {}
    assert mentions(document["verdict"]["summary"], "not fit", "steps")


def test_an_empty_trace_keeps_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"traceEvents": []}')
    document = diagnosed(path)
    assert document["ranks"][0]["partition_ms"] is None
    assert faults(document) == []


def test_logs_of_nccl_keep_the_schema(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text(two_nodes())
    document = diagnosed(SMALL, log)
    assert document["nccl"]["connections"]
    assert document["nccl"]["communicators"][0]["rings"]
    assert faults(document) == []


def test_a_gate_keeps_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    conditions = [
        "--fail-if",
        "step_ms > 1",
        "--fail-if",
        "share.data < 0",
        "--fail-if",
        "finding.memory-growth > 1.1",
    ]
    assert main(["diagnose", str(SMALL), "--no-cache", "--format", "json", *conditions]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [check["status"] for check in document["gate"]["checks"]] == [
        "failed",
        "passed",
        "undecided",
    ]
    assert faults(document) == []


def _set(value: Any, *path: str | int) -> Callable[[dict[str, Any]], None]:
    def change(diagnosis: dict[str, Any]) -> None:
        at: Any = diagnosis
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def _drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    def change(diagnosis: dict[str, Any]) -> None:
        at: Any = diagnosis
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


MUTATIONS = {
    "another schema": (_set("stepscope.diagnosis/2", "schema"), "$.schema"),
    "no verdict": (_drop("verdict"), "$"),
    "no replay, not even null": (_drop("replay"), "$"),
    "a key of its own": (_set(1, "extra"), "$"),
    "a bound that is none": (_set("gpu", "verdict", "bound"), "$.verdict.bound"),
    "a share of an unknown resource": (_set(0.1, "verdict", "shares", "gpu"), "$.verdict.shares"),
    "a share above the step": (_set(1.5, "verdict", "shares", "data"), "$.verdict.shares.data"),
    "a step time in words": (_set("65 ms", "step", "ms"), "$.step.ms"),
    "a negative step time": (_set(-1.0, "step", "ms"), "$.step.ms"),
    "a source that is none": (_set("guessed", "step", "source"), "$.step.source"),
    "half a step": (_set(2.5, "step", "count"), "$.step.count"),
    "a part too few": (_drop("ranks", 0, "partition_ms", "idle_io"), "$.ranks[0].partition_ms"),
    "a part too many": (_set(1.0, "ranks", 0, "partition_ms", "idle"), "$.ranks[0].partition_ms"),
    "a part that is null": (
        _set(None, "ranks", 0, "partition_ms", "compute"),
        "$.ranks[0].partition_ms",
    ),
    "fractions of a nanosecond": (
        _set(1.5, "ranks", 0, "device_ns", "busy"),
        "$.ranks[0].device_ns.busy",
    ),
    "no mfu, not even null": (_drop("ranks", 0, "mfu"), "$.ranks[0]"),
    "a code with a space": (_set("serial loader", "findings", 0, "code"), "$.findings[0].code"),
    "a share below nothing": (_set(-0.1, "verdict", "shares", "data"), "$.verdict.shares.data"),
    "a step that never ends": (
        _set(0.0, "findings", 0, "predicted_speedup"),
        "$.findings[0].predicted_speedup",
    ),
    "a gain below nothing": (
        _set(-0.5, "findings", 0, "predicted_low"),
        "$.findings[0].predicted_low",
    ),
    "a gain not known": (_set(None, "findings", 0, "predicted_low"), "$.findings[0].predicted_low"),
    "evidence as one text": (_set("much", "findings", 0, "evidence"), "$.findings[0].evidence"),
    "a place without its share": (
        _set([{"line": None, "module": "A"}], "findings", 0, "places"),
        "$.findings[0].places[0]",
    ),
    "notes as one text": (_set("none", "notes"), "$.notes"),
    "unknown events not counted": (_set(None, "unknown_events"), "$.unknown_events"),
    "an empty gate": (
        _set({"passed": True, "missing": "fail", "baseline": None, "checks": []}, "gate"),
        "$.gate.checks",
    ),
    "a run of nothing": (_set({}, "run"), "$.run"),
    "comms of nothing": (_set({}, "comms"), "$.comms"),
    "nccl of nothing": (_set({}, "nccl"), "$.nccl"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_not_the_contract_is_refused_at_its_place(name: str, demo: dict[str, Any]) -> None:
    change, place = MUTATIONS[name]
    changed = copy.deepcopy(demo)
    change(changed)
    assert {error.json_path for error in VALIDATOR.iter_errors(changed)} == {place}


def test_what_may_be_null_may_be(demo: dict[str, Any]) -> None:
    changed = copy.deepcopy(demo)
    changed["replay"] = changed["step"]["ms"] = changed["step"]["profiled_ms"] = None
    changed["ranks"][0] |= {"partition_ms": None, "gpu_busy_ms": None, "mfu": None}
    assert faults(changed) == []
    changed["ranks"][0]["partition_ms"] = demo["ranks"][0]["partition_ms"] | {"comms_wait": None}
    assert faults(changed) == []


def test_the_schema_has_every_field_of_the_shapes() -> None:
    defs = PUBLISHED["$defs"]
    for shape in (CommsFacts, RunFacts, RankMetadata, Finding):
        assert set(defs[shape.__name__]["properties"]) == set(shape.__struct_encode_fields__)
    assert tuple(defs["Partition"]["properties"]) == PARTS
    assert tuple(defs["Verdict"]["properties"]["bound"]["enum"]) == BOUNDS


def test_every_object_of_the_schema_is_closed() -> None:
    def objects(at: Any) -> list[Any]:
        inner = [
            one
            for value in (at.values() if isinstance(at, dict) else at)
            if isinstance(value, dict | list)
            for one in objects(value)
        ]
        return inner + (
            [at] if isinstance(at, dict) and isinstance(at.get("properties"), dict) else []
        )

    closed = objects(PUBLISHED)
    assert len(closed) > 20
    for one in closed:
        assert one["additionalProperties"] is False
        assert set(one["required"]) <= set(one["properties"])
