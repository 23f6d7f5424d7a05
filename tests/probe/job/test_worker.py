"""The worker times cases with torch on a CPU, and says in a line what it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.installed import package

torch = package("torch")

from stepscope.probe.job import timing, worker


def call(op: str, dims: list[Any], types: list[str], concrete: list[str]) -> dict[str, Any]:
    strides: list[list[int]] = []
    return {"op": op, "dims": dims, "types": types, "strides": strides, "concrete": concrete}


PRODUCT = call("aten::mm", [[8, 16], [16, 4]], ["fp32", "fp32"], ["", ""])
IMAGES = call("batch_norm_backward", [[2, 8, 4, 4]], ["fp32"], [""])
SCORES = call(
    "attention_backward",
    [[2, 2, 8, 4], [2, 2, 8, 4], [2, 2, 8, 4], [], []],
    ["fp32", "fp32", "fp32", "", ""],
    ["", "", "", "", "causal"],
)
CONVOLUTION = call(
    "aten::convolution_backward",
    [[2, 8, 4, 4], [2, 3, 8, 8], [8, 3, 3, 3], *[[] for _ in range(8)]],
    ["fp32", "fp32", "fp32", *["ScalarList"] * 4, "Scalar", "ScalarList", "Scalar", "ScalarList"],
    [
        "",
        "",
        "",
        "[0]",
        "[2, 2]",
        "[1, 1]",
        "[1, 1]",
        "False",
        "[0, 0]",
        "1",
        "[True, True, False]",
    ],
)
UPDATE = call("optimizer", [[[4, 8], [8]], []], ["", ""], ["AdamW", ""])


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE_S", 1e-6)
    monkeypatch.setattr(timing, "CASE_S", 1e-6)


def lines_of(tmp_path: Path, cases: list[dict[str, Any]], budget_s: float = 60) -> list[Any]:
    asked, out = tmp_path / "cases.json", tmp_path / "out.jsonl"
    indexed = [{"index": index, **case} for index, case in enumerate(cases)]
    asked.write_text(json.dumps({"budget_s": budget_s, "device": "cpu", "cases": indexed}))
    assert worker.main([str(asked), str(out)]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.parametrize(
    ("case", "way"),
    [
        (PRODUCT, "tf32"),
        (PRODUCT, "bf16"),
        (IMAGES, "asis"),
        (IMAGES, "bf16+nhwc"),
        (SCORES, "bf16"),
        (CONVOLUTION, "fp32+nhwc"),
        (CONVOLUTION, "bf16+benchmark"),
        (UPDATE, "fp32+fused"),
        (UPDATE, "fp32+foreach"),
        (call("cast", [[64]], ["fp32"], [""]), "bf16"),
        (
            call("aten::add_", [[8, 8], [8, 8], []], ["fp32", "fp32", "Scalar"], ["", "", "1"]),
            "bf16",
        ),
        (
            call(
                "aten::sum", [[8, 8], [], []], ["fp32", "ScalarList", "Scalar"], ["", "[1]", "True"]
            ),
            "asis",
        ),
        (call("aten::abs", [[8, 8], [8, 8]], ["fp32", "fp32"], ["", ""]), "asis"),
    ],
)
def test_a_case_is_timed(tmp_path: Path, case: dict[str, Any], way: str) -> None:
    about, row, end = lines_of(tmp_path, [{"call": case, "way": way}])
    assert about["about"]["kind"] == "cpu"
    assert about["about"]["torch"] == torch.__version__
    assert end == {"done": 1, "left": 0}, row
    time = row["time"]
    assert 0 < time["low_ns"] <= time["ns"] <= time["high_ns"]
    assert time["samples"] >= 3


def test_what_fails_is_one_line_and_the_rest_goes_on(tmp_path: Path) -> None:
    cases = [
        {"call": call("aten::nonsense", [[4]], ["fp32"], [""]), "way": "asis"},
        {
            "call": call("aten::cat", [[[4], [4]], []], ["TensorList", "Scalar"], ["", "0"]),
            "way": "asis",
        },
        {"call": call("aten::mm", [[8, 16], [8, 4]], ["fp32", "fp32"], ["", ""]), "way": "asis"},
        {
            "call": call("aten::mm", [[10**7, 10**6], [10**6, 1]], ["fp32", "fp32"], []),
            "way": "asis",
        },
        {"call": PRODUCT, "way": "asis"},
    ]
    _, unknown, several, misfit, large, good, end = lines_of(tmp_path, cases)
    assert unknown["problem"].startswith("there is no aten::nonsense")
    assert several["problem"] == "a list of tensors"
    assert "shapes cannot be multiplied" in misfit["problem"]
    assert "are free" in large["problem"]
    assert "time" in good
    assert end == {"done": 1, "left": 4}


def test_it_ends_when_its_budget_is_spent(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, [{"call": PRODUCT, "way": "asis"}], budget_s=0)
    assert lines[-1] == {"done": 0, "left": 1}
    assert len(lines) == 2


CHAIN = {
    **call("chain", [], [], ["0"]),
    "parts": [call("aten::neg", [[8, 8]], ["fp32"], ["#0"])],
}


@pytest.mark.parametrize(("reserved_s", "first"), [(0.0, 1), (60.0, 0)])
def test_time_is_kept_for_what_is_compiled(tmp_path: Path, reserved_s: float, first: int) -> None:
    asked, out = tmp_path / "cases.json", tmp_path / "out.jsonl"
    cases = [{"index": i, "call": each, "way": "asis"} for i, each in enumerate((CHAIN, PRODUCT))]
    about = {"budget_s": 60, "reserved_s": reserved_s, "device": "cpu", "cases": cases}
    asked.write_text(json.dumps(about))
    assert worker.main([str(asked), str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["index"] for row in rows[1:-1]] == [first, 1 - first]
    assert rows[-1] == {"done": 2, "left": 0}


def test_nothing_is_compiled_where_no_time_is_left_for_it(tmp_path: Path) -> None:
    case = {"call": CHAIN, "way": "asis+compiled"}
    assert lines_of(tmp_path, [case], budget_s=worker.COMPILE_S)[-1] == {"done": 0, "left": 1}


def test_it_compiles_for_others_and_times_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(worker, "compiled_chain", lambda _, each: made.append(each))
    asked, out = tmp_path / "cases.json", tmp_path / "out.jsonl"
    cases = [{"index": 0, "call": CHAIN, "way": way} for way in ("asis", "asis+compiled")]
    cases.append({"index": 2, "call": PRODUCT, "way": "bf16"})
    about = {"budget_s": 60, "compile": True, "device": "cpu", "cases": cases}
    asked.write_text(json.dumps(about))
    assert worker.main([str(asked), str(out)]) == 0
    assert made == [CHAIN]
    assert out.read_text() == ""


def test_it_leaves_the_switches_of_the_process_to_the_way() -> None:
    from stepscope.probe.job.operators import Way

    Way("fp32+benchmark").set_switches(torch)
    assert torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32
    Way("asis").set_switches(torch)
    assert not torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.allow_tf32
