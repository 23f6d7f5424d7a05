"""`compare PLAN.json RUN`: which part of the plan was off, and a plan that has learned from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from tests.shared_data import DEMO, SAMPLES, SHARED, SMALL, lab_traces, needs_shared
from tests.wording import mentions

pytestmark = pytest.mark.usefixtures("measured_once")

SINGLE = SHARED / "lab" / "single"
TRUTH = SAMPLES / "truth.json"


def lab_model(layers: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2", "n_embd": 1024, "n_layer": layers, "n_head": 16,
        "n_positions": 2048, "vocab_size": 32000, "tie_word_embeddings": False,
    }  # fmt: skip


def planned(folder: Path, layout: str, *more: str, seq: int = 1024, layers: int = 12) -> list[str]:
    """The lab's GPT on one H200, as lab.py trains it."""
    path = folder / f"lab{layers}.json"
    path.write_text(json.dumps(lab_model(layers)))
    shape = ["--seq", str(seq), "--framework", "ddp", "--explain", layout]
    return ["plan", "--model", str(path), "--cluster", "1xH200", *shape, *more]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    out = tmp_path / "PLAN.json"
    arguments = planned(tmp_path, "tp1-pp1-dp1-mb8", "--global-batch", "8")
    assert main([*arguments, "--format", "json", "-o", str(out)]) == 0
    return out


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["compare", *arguments, "--format", "json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_run_that_waits_for_input_is_told_so(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo's trace is that job with its loader in the training process: 65.5 ms a step, and
    31.5 with workers."""
    document = compared(capsys, str(plan), str(DEMO), "--step-ms", "65.48")
    assert document["schema"] == "stepscope.plan-comparison/1"
    assert document["most_off"] == "input"
    parts = {part["part"]: part for part in document["parts"]}
    assert parts["input"]["planned_s"] is None
    assert parts["input"]["measured_s"] == pytest.approx(0.06548 - 0.03154, rel=0.03)
    known = [part["measured_s"] for part in document["parts"] if part["measured_s"] is not None]
    assert sum(known) == pytest.approx(document["measured_step_s"], rel=1e-6)
    assert document["memory"]["measured_bytes"] is None
    assert any(mentions(note, "memory", "not recorded") for note in document["notes"])


def test_the_text_has_the_answer_first(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["compare", str(plan), str(SMALL), "--step-ms", "65.48"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "longer than planned" in text
    assert mentions(text, "most of it", "waiting for input")
    assert "reserved not recorded" in text


def test_a_run_of_another_model_is_told_so_and_teaches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, kept = tmp_path / "PLAN.json", tmp_path / "C.json"
    arguments = planned(tmp_path, "tp1-pp1-dp1-mb8", "--global-batch", "8", layers=48)
    assert main([*arguments, "--format", "json", "-o", str(out)]) == 0
    document = compared(capsys, str(out), str(SMALL))
    assert mentions(document["other_work"], "another model")
    assert set(document["factors"].values()) == {None}
    assert main(["compare", str(out), str(SMALL)]) == 0
    assert mentions(capsys.readouterr().out, "not a run")
    assert main(["compare", str(out), str(SMALL), "--recalibrate", str(kept)]) == 2
    assert mentions(capsys.readouterr().err, "another model")
    assert not kept.exists()


JOBS = [
    ("ckpt_unneeded", "slow_ms", "tp1-pp1-dp1-mb8-full", 1024, 8, 12),
    ("attn_math", "fixed_ms", "tp1-pp1-dp1-mb4", 2048, 4, 12),
    ("sync_item", "fixed_ms", "tp1-pp1-dp1-mb2", 512, 2, 12),
    ("small_batch", "fixed_ms", "tp1-pp1-dp1-mb8", 512, 8, 12),
    ("small_batch", "slow_ms", "tp1-pp1-dp1-mb1", 512, 8, 12),
    ("optim_loop", "fixed_ms", "tp1-pp1-dp1-mb2", 512, 2, 24),
]
"""Jobs of the lab that the plan does not learn from."""


@needs_shared
def test_what_one_run_teaches_holds_for_other_jobs(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "learned.json"
    run = str(SINGLE / "loader_serial.fixed.pt.trace.json.gz")
    arguments = (str(plan), run, "--step-ms", "31.54", "--recalibrate", str(kept))
    document = compared(capsys, *arguments)
    assert document["recalibrated_step_s"] == pytest.approx(0.03154, rel=0.03)
    truth = json.loads(TRUTH.read_text())["cases"]
    errors: dict[bool, list[float]] = {False: [], True: []}
    for case, which, layout, seq, batch, layers in JOBS:
        measured = truth[case][which] / 1e3
        for has_learned in (False, True):
            more = ["--calibration", str(kept)] if has_learned else []
            command = planned(tmp_path, layout, *more, seq=seq, layers=layers)
            assert main([*command, "--global-batch", str(batch), "--format", "json"]) == 0
            step = json.loads(capsys.readouterr().out)["explained"]["step_s"]
            errors[has_learned].append(abs(step / measured - 1))
    assert max(errors[True]) < 0.15
    assert sum(errors[True]) < sum(errors[False])


def test_two_ranks_that_share_a_device_are_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over loopback sockets: collectives are most of the step, and compute takes twice as long;
    with the update beside it, which the recorded job loops over tensors in lists and the plan takes
    for fused, two and a half times."""
    model = tmp_path / "small.json"
    model.write_text(json.dumps({**lab_model(6), "n_embd": 512, "n_head": 8}))
    job = ["plan", "--model", str(model), "--cluster", "2x1xH200@10gbe", "--seq", "512",
           "--framework", "ddp", "--explain", "tp1-pp1-dp2-mb4", "--format", "json"]  # fmt: skip
    plan, kept = tmp_path / "PLAN.json", tmp_path / "learned.json"
    assert main([*job, "--global-batch", "8", "-o", str(plan)]) == 0
    ranks = lab_traces("ranks2/ddp_even.slow.*")
    document = compared(capsys, str(plan), *map(str, ranks), "--recalibrate", str(kept))
    assert document["measured_ranks"] == 2
    assert document["most_off"] == "comms"
    assert document["factors"]["compute"] == pytest.approx(2.5, abs=0.3)
    assert document["recalibrated_step_s"] == pytest.approx(document["measured_step_s"], rel=0.05)
    # The same with four micro-batches and one all-reduce took 149.9 ms.
    assert main([*job, "--global-batch", "32", "--calibration", str(kept)]) == 0
    step = json.loads(capsys.readouterr().out)["explained"]["step_s"]
    assert step == pytest.approx(0.1499, rel=0.1)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err


def test_what_makes_no_sense_is_refused(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(SMALL)
    assert "PLAN.json RUN" in refused(capsys, "compare", run, run, "--recalibrate", "x.json")
    gated = refused(capsys, "compare", str(plan), run, "--fail-if", "step_ms > 1")
    assert mentions(gated, "--fail-if", "plan")
    assert "text and JSON" in refused(capsys, "compare", str(plan), run, "--format", "markdown")
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema": "stepscope.plan/1", "job": 1}')
    assert mentions(refused(capsys, "compare", str(broken), run), "broken.json", "schema")
    wide = tmp_path / "wide.json"
    wide.write_text(plan.read_text().replace('"num_devices": 1', '"num_devices": 8'))
    told = refused(capsys, "compare", str(wide), run, "--recalibrate", str(tmp_path / "x.json"))
    assert mentions(told, "8 devices", "1 rank")
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("explained", "layout", "tp"), 0),
        (("explained", "layout", "recompute"), "nonesuch"),
        (("explained", "layout", "zero_stage"), 9),
        (("explained", "layout", "dp"), 10**12),
        (("job", "precision"), "nonesuch"),
        (("job", "seq_len"), 0),
        (("job", "cluster", "num_devices"), 0),
        (("job", "cluster", "device"), "nonesuch"),
        (("job", "framework"), "nonesuch"),
        (("job", "model", "name"), "nonesuch"),
        (("explained", "time_parts_s", "nonesuch"), 1.0),
        (("explained", "step_s"), 0),
    ],
)
def test_a_strange_plan_gives_ratios_or_a_sentence(
    path: tuple[str, ...], value: object, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(plan.read_text())
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    plan.write_text(json.dumps(document))
    capsys.readouterr()
    code = main(["compare", str(plan), str(SMALL), "--step-ms", "65.48", "--format", "json"])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert code == (2 if path[-1] == "step_s" else 0)


def test_a_calibration_of_another_device_or_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other: dict[str, Any] = {
        "schema": "stepscope.plan-calibration/1", "device": "NVIDIA A100 SXM 80 GB",
        "num_devices": 1, "model": "x", "layout": "tp1", "framework": "ddp", "precision": "bf16",
        "planned_step_s": 1.0, "measured_step_s": 2.0, "source": "run",
        "factors": {"compute": 2.0, "comms": None, "host": None, "memory": None},
    }  # fmt: skip
    path = tmp_path / "learned.json"
    path.write_text(json.dumps(other))
    command = planned(tmp_path, "tp1-pp1-dp1-mb8", "--global-batch", "8")
    assert "was learned on NVIDIA A100" in refused(capsys, *command, "--calibration", str(path))
    wild = {**other, "device": "NVIDIA H200 SXM", "factors": {**other["factors"], "compute": 1e9}}
    path.write_text(json.dumps(wild))
    assert mentions(refused(capsys, *command, "--calibration", str(path)), "not a plan-calibration")
    missing = refused(capsys, *command, "--calibration", str(tmp_path / "no.json"))
    assert "cannot read" in missing
