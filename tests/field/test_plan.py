"""Which layout, which framework, and what a collective sends: asked of the planner."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from stepscope.calibrate.region_fit import fit_collectives
from stepscope.core.calibrated import SCHEMA, Calibrated, CollectivePoint, Machine, Timing
from tests.field.asking import ask
from tests.wording import mentions

A100 = ("plan", "--model", "llama2-7b", "--cluster", "1x4xA100-80GB", "--seq", 4096)
GPU_3090 = ("--seq", 2048, "--allow-offload", "--host-memory", 256)


def test_zero_2_is_found_where_it_is_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    """7B on four A100: no recomputation, and no weights to gather."""
    answer = ask(capsys, *A100, "--global-batch", 64, "--framework", "fsdp")
    assert mentions(answer, "ZeRO-2")
    assert re.search(r"best\s+\S+ %\s+\S+ GiB\s+tp1-pp1-dp4-mb1-z2", answer), answer


def test_a_scenario_has_its_frameworks_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, *A100, "--global-batch", 64, "--framework", "all")
    assert mentions(answer, "Frameworks", "deepspeed", "fsdp", "ddp", "megatron-core", "torchtitan")


def test_offload_fits_13b_on_one_consumer_card(capsys: pytest.CaptureFixture[str]) -> None:
    """ZeRO-Offload: weights, gradients and states are on the host."""
    cluster = ("--cluster", "1x1xRTX3090", "--global-batch", 8)
    answer = ask(capsys, "plan", "--model", "13b", *cluster, *GPU_3090)
    assert mentions(answer, "offload", "of each device's 24.0 GiB")


def test_10b_on_two_consumer_cards(capsys: pytest.CaptureFixture[str]) -> None:
    """With a framework whose file --emit writes."""
    cluster = ("--cluster", "1x2xRTX3090", "--global-batch", 16)
    answer = ask(capsys, "plan", "--model", "10b", *cluster, *GPU_3090)
    assert mentions(answer, "offload", "deepspeed", "its engine around model")


def test_a_ring_sends_twice_its_bytes_nearly(capsys: pytest.CaptureFixture[str]) -> None:
    """2 (N - 1) M / N: 1.75 GB for 1 GB on 8."""
    size = ("--collective", "all_reduce", "--bytes", "1GB", "--cluster", "1x8xH100")
    answer = ask(capsys, "plan", *size, "--ranks", 8)
    assert mentions(answer, "sends 1.75 GB", "14 steps")


def test_a_file_of_another_machine_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Links of a host that were measured with gloo say nothing of an H100's."""
    path = tmp_path / "hw.json"
    points = tuple(
        CollectivePoint(
            kind="all_reduce",
            backend="gloo",
            tier="node",
            group_size=2,
            size_bytes=1 << power,
            time=Timing(seconds=1e-4 + (1 << power) / 1e9, low_s=1e-5, high_s=1.0, repeats=5),
        )
        for power in range(10, 24)
    )
    made = Calibrated(
        schema=SCHEMA,
        made_by="test",
        date="2026-11-01",
        how="test",
        machine=Machine(kind="cpu", device="Xeon"),
        collectives=points,
        collective_fits=fit_collectives(points),
    )
    path.write_bytes(msgspec.json.encode(made))
    asked = ("--collective", "all_reduce", "--bytes", "1GB", "--cluster", "1x2xH100")
    answer = ask(capsys, "plan", *asked, "--hardware", path)
    assert mentions(answer, "as measured", "Xeon (cpu), not on NVIDIA H100")
