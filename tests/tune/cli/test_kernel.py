"""`tune kernel` from its arguments to what it prints, with kernels that hang and die in processes
of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.core.codec import plain
from stepscope.core.hardware import DeviceRates
from stepscope.errors import InputError, UsageError
from stepscope.report.document.markdown import to_markdown
from stepscope.report.document.terminal import to_text
from stepscope.tune.cache import TuningCache
from stepscope.tune.cli.kernel import run_kernel
from stepscope.tune.kernel_report.view import kernel_tuning_document
from stepscope.tune.kernels.tuner import datasheet_roofs, floor_of
from stepscope.tune.shapes.kernel_tuning import (
    RIGHT,
    WRONG,
    Case,
    CaseResult,
    Check,
    Deviation,
    Device,
    Error,
    Floor,
    Gain,
    KernelTuning,
    Timed,
    Timing,
    Trying,
)
from tests.capture.jobs import light_path
from tests.wording import mentions

FOLDER = Path(__file__).parents[2] / "kernels"
BLOCKED = f"{FOLDER}/blocked.py"


def run(*words: str) -> int:
    return run_kernel(words)


def test_a_sweep_outlives_kernels_that_raise_die_and_hang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # Its processes have our path, and PYTHONPATH not.
    monkeypatch.syspath_prepend(light_path(tmp_path))
    cache = tmp_path / "tuned.jsonl"
    code = run(
        f"{BLOCKED}:moody", "--reference", f"{BLOCKED}:plain", "--shapes", "4x9", "--edges", "1x1",
        "--config", "mood=raises,dies,hangs,writes,good", "--config-timeout", "5",
        "--budget", "600", "--format", "json", "--device", "cpu",
        "--no-gradients", "--cache", str(cache),
    )  # fmt: skip
    assert code == 0
    tuning = json.loads(capsys.readouterr().out)
    assert tuning["schema"] == "stepscope.kernel_tuning/1"
    outcomes = {config["settings"].get("mood", "base"): config for config in tuning["configs"]}
    assert {name: config["outcome"] for name, config in outcomes.items()} == {
        "base": "right", "raises": "failed", "dies": "failed", "hangs": "failed",
        "writes": "wrong", "good": "right",
    }  # fmt: skip
    assert "shared memory" in outcomes["raises"]["why"]
    assert "ended with code 11" in outcomes["dies"]["why"]
    assert "longer than" in outcomes["hangs"]["why"]
    assert outcomes["hangs"]["failed_at"]["shapes"] == [[1, 1]]
    (case,) = tuning["cases"]
    assert case["settings"] in ({}, {"mood": "good"})
    assert case["times"][1:5] == [None] * 4
    assert case["floor"]["bytes"] == 2 * 4 * 9 * 4
    assert case["floor"]["ns"] is None
    (entry,) = TuningCache(cache).entries()
    assert entry.checked
    assert entry.settings == case["settings"]
    assert (entry.key.shapes, entry.key.dtype) == ("4x9", "float32")
    assert entry.key.versions["torch"] == tuning["versions"]["torch"]


def test_mistakes_are_told_with_what_to_do() -> None:
    for words, message in (
        ((f"{BLOCKED}:softmax", "--shapes", "4by4"), "no shape"),
        ((f"{BLOCKED}:softmax", "--shapes", "4x4", "--config", "BLOCK"), "NAME=VALUE"),
        ((f"{BLOCKED}:softmax", "--shapes", "4x4", "--dtypes", "int3"), "none of float32"),
    ):
        with pytest.raises(UsageError, match=message):
            run(*words)
    with pytest.raises(InputError, match="cannot read"):
        run(f"{BLOCKED}:softmax", "--shapes", "4x4", "--hardware", "/no/such/file")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere_at_all:f", "--shapes", "4"), "cannot import nowhere_at_all"),
        ((f"{BLOCKED}:sofmax", "--shapes", "4"), "no 'sofmax'.*softmax"),
        ((f"{BLOCKED}:softmax",), "give the shapes"),
        (
            (f"{BLOCKED}:matmul", "--shapes", "4x4", "--config", "SPLIT=1,2"),
            "cannot be called without SPLIT",
        ),
    ],
)
def test_mistakes_in_the_target_are_told_by_its_process(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.tune.kernels.remote._Worker", InThisProcess)
    with pytest.raises(UsageError, match=message):
        run(*words, "--device", "cpu")


class InThisProcess:
    """A worker without a process."""

    def __init__(self, opening: object) -> None:
        from stepscope.tune.kernels import worker as kernel_worker

        assert isinstance(opening, kernel_worker.Opening)
        self._bench = kernel_worker.open_bench(opening)

    def ask(self, request: object, limit_s: float) -> object:
        from stepscope.tune.kernels import worker as kernel_worker

        assert isinstance(request, kernel_worker.Request)
        reply = kernel_worker.answer(self._bench, request)
        if reply.usage:
            raise UsageError(reply.usage)
        return reply

    def close(self) -> None:
        pass


def made() -> KernelTuning:
    case = Case(shapes=((4096, 1000),), dtype="bfloat16", is_timed=True)
    edge = Case(shapes=((1, 1),), dtype="bfloat16", is_timed=False)
    wrong = Deviation(case=edge, output="output", error=0.5, allowed=0.01, measure="rms")
    hostile = "\x1b[31m|<b>x</b>`"

    def took(us: float) -> Timed:
        return Timed(ns=us * 1e3, low_ns=us * 990, high_ns=us * 1010, num_samples=22)

    return KernelTuning(
        what="m:f", reference="m:plain", device=Device(name="NVIDIA H200", kind="cuda"),
        versions={"torch": "2.11"},
        measured=Timing(by="device", caches="warm", gradients=False),
        check=Check(
            tolerance=4.0, allowed={"bfloat16": Error(worst=0.016, rms=0.009)},
            cases=(edge, case), gradients=True,
        ),
        roofs="datasheet of NVIDIA H200",
        tryings=(
            Trying(settings={}, outcome=RIGHT, num_checks=2),
            Trying(settings={"BLOCK": 1024}, outcome=RIGHT, num_checks=2),
            Trying(settings={"BLOCK": hostile}, outcome=WRONG, worst=wrong, num_checks=2),
        ),
        cases=(
            CaseResult(
                case=case,
                floor=Floor(
                    bytes_moved=16_384_000, flops=0.0, ns=3413.0, bound="memory", fits_cache=True
                ),
                times=(took(20), took(5), None), reference=took(10), baseline=0, winner=1,
                settings={"BLOCK": 1024}, gain=Gain(value=4.0, low=3.9, high=4.1, num_pairs=31),
            ),
        ),
        overall=1, wall_s=3.0,
    )  # fmt: skip


def test_the_terminal_says_the_winner_its_gain_and_what_was_wrong() -> None:
    text = " ".join(to_text(kernel_tuning_document(made())).split())
    assert mentions(text, "4096x1000 bfloat16: BLOCK=1024, 4.00x faster (3.90-4.10), 5.00 us")
    assert mentions(text, "68 % of the memory floor")
    assert mentions(text, "off by 0.5 (rms; 0.01 allowed) at 1x1 bfloat16")
    assert "10.0 us 2.0 % 2.00x 34 % the reference" in text
    assert "\x1b" not in text


def test_markdown_obeys_no_stranger() -> None:
    text = to_markdown(kernel_tuning_document(made()))
    assert "\x1b" not in text
    assert "<b>" not in text
    wrong = text[text.index("### Wrong") :].splitlines()
    (line,) = [line for line in wrong if line.startswith("- BLOCK=")]
    assert "|" not in line
    assert mentions(line, "off by 0.5")


def test_json_names_configurations_by_their_place() -> None:
    tuning = plain(made())
    (case,) = tuning["cases"]
    assert tuning["configs"][case["winner"]]["settings"] == case["settings"] == {"BLOCK": 1024}
    assert case["share_of_floor"] == pytest.approx(3413 / 5000)
    assert case["times"][2] is None
    json.dumps(tuning, allow_nan=False)


def test_floors_are_bytes_over_bandwidth_or_products_over_the_peak() -> None:
    roofs = datasheet_roofs("h100-sxm")
    assert roofs is not None
    memory = floor_of(roofs, "bfloat16", 3_350_000, 0.0, cache_bytes=0, allows_tf32=False)
    assert memory.bound == "memory"
    assert memory.ns == pytest.approx(3_350_000 / roofs.bandwidth_bytes_per_s * 1e9)
    arithmetic = floor_of(roofs, "float16", 1, 1e12, cache_bytes=0, allows_tf32=False)
    assert arithmetic.bound == "arithmetic"
    assert arithmetic.ns == pytest.approx(1e21 / roofs.peak_flops["fp16"])
    plain, tensor = (
        floor_of(roofs, "float32", 1, 1e12, cache_bytes=9, allows_tf32=allowed).ns
        for allowed in (False, True)
    )
    assert plain is not None
    assert tensor is not None
    assert plain / tensor == pytest.approx(roofs.peak_flops["tf32"] / roofs.peak_flops["fp32"])
    nothing = DeviceRates(device="d", source="s", peak_flops={}, bandwidth_bytes_per_s=1e9)
    assert floor_of(nothing, "float32", 1000, 5e9, cache_bytes=0, allows_tf32=False).ns == 1000


def test_a_file_that_is_no_cache_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    assert main(["tune", "kernel", "math:sqrt", "--cache", str(script)]) == 2
    assert "no tuning cache" in capsys.readouterr().err
    assert script.read_text() == "import torch\n"
