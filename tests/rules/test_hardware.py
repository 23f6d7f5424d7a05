"""A calibrated machine's own rates stand in place of usual shares of its datasheet's; on any other
machine nothing changes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.analyses.rank_context import build_context, device_of
from stepscope.calibrate.hardware_file import save
from stepscope.cli.main import main
from stepscope.core.calibrated import (
    AttentionPoint,
    Calibrated,
    CopyPoint,
    GemmPoint,
    Launch,
    Machine,
    Timing,
)
from stepscope.core.hardware import DeviceSpec, MeasuredTime, ProbedTimes
from stepscope.core.trace import DeviceProperties
from stepscope.hardware.lookup import find_spec
from stepscope.pipeline.contexts import RankContexts
from stepscope.pipeline.measure import measure_job
from stepscope.pipeline.workers import local_workers
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from stepscope.rules.case import case_of
from stepscope.rules.job_case import Job
from stepscope.rules.judge_job import judge_job
from stepscope.rules.shared.pcie_copies import pinned_bytes_per_s
from stepscope.rules.shared.rates import (
    Layout,
    attention_ns,
    convolution_ns,
    matrix_ns,
    stream_ns,
)
from tests.shared_data import SMALL, lab_trace
from tests.wording import any_mentions, mentions

PEAKS = {"fp32": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12}
BANDWIDTH = 4.8e12


def timed(seconds: float) -> Timing:
    return Timing(seconds=seconds, low_s=seconds, high_s=seconds, repeats=5)


def machine(
    share: float = 0.5,
    stream: float = 0.5,
    shortest_s: float = 1.85e-6,
    attention: Sequence[AttentionPoint] = (),
) -> Calibrated:
    """An H200 that reaches these shares of its datasheet."""
    side = 4096
    return Calibrated(
        schema="stepscope.hardware/1",
        made_by="test",
        date="2026-01-02T03:04:05Z",
        how="",
        machine=Machine(kind="cuda", device="NVIDIA H200"),
        gemms=tuple(
            GemmPoint(
                precision=name, m=side, n=side, k=side, time=timed(2 * side**3 / (share * peak))
            )
            for name, peak in PEAKS.items()
        ),
        copies=(
            CopyPoint(kind="device", size_bytes=10**9, time=timed(2e9 / (stream * BANDWIDTH))),
            CopyPoint(kind="to_device_pinned", size_bytes=10**9, time=timed(1 / 40)),
        ),
        launch=Launch(host=timed(6e-6), device=timed(shortest_s)),
        attention=tuple(attention),
    )


def h200() -> DeviceSpec:
    device = DeviceProperties(
        index=0,
        name="NVIDIA H200",
        memory_bytes=150109880320,
        num_sms=132,
        compute_capability=(9, 0),
        warp_size=32,
    )
    spec = find_spec(device)
    assert spec is not None
    assert {name: spec.peak_flops[name].value for name in PEAKS} == pytest.approx(PEAKS)
    assert spec.bandwidth_bytes_per_s.value == pytest.approx(BANDWIDTH)
    return spec


def times(roofs: DevicePeaks) -> list[float]:
    return [
        matrix_ns(roofs, 1e12, 1e6, "bf16"),
        matrix_ns(roofs, 1e12, 1e6, "tf32", num_across=1, slowdown=4.0),
        matrix_ns(roofs, 1e6, 1e9, "bf16"),
        convolution_ns(roofs, 1e12, 1e8, "bf16", backward=False, channels=256, layout="turned"),
        convolution_ns(roofs, 1e12, 1e8, "bf16", backward=True, channels=256),
        stream_ns(roofs, 1e9),
        attention_ns(
            roofs, batch=64, queries=1024, keys=1024, dim=64, precision="bf16", causal=True
        ),
    ]


def test_a_machine_that_reaches_the_usual_shares_changes_nothing() -> None:
    spec = h200()
    usual = times(DevicePeaks(spec=spec))
    assert times(DevicePeaks(spec=spec, measured=machine(0.78, 0.88))) == pytest.approx(usual), (
        "never peak, share and measured at once"
    )
    assert times(DevicePeaks(spec=spec, measured=machine(0.39, 0.88)))[0] != pytest.approx(usual[0])


def test_measured_rates_are_the_rates() -> None:
    roofs = DevicePeaks(spec=h200(), measured=machine(0.5, 0.25, shortest_s=3.7e-6))
    # Twice the shortest kernel that the fixed times belong to: six microseconds for three.
    assert matrix_ns(roofs, 1e12, 0.0, "bf16") == pytest.approx(
        6000 + 1e12 / (0.5 * 989.4e12) * 1e9
    )
    assert matrix_ns(roofs, 1e12, 0.0, "fp32") == pytest.approx(6000 + 1e12 / (0.5 * 66.9e12) * 1e9)
    assert stream_ns(roofs, 1e9) == pytest.approx(6000 + 1e9 / (0.25 * 4.8e12) * 1e9)
    assert matrix_ns(roofs, 1e12, 0.0, "fp64") == pytest.approx(
        6000 + 1e12 / (roofs.peak_flops("fp64", matrix=True) or 0) / 0.78 * 1e9
    )
    assert roofs.peak_flops("bf16", matrix=True) == pytest.approx(989.4e12), (
        "MFU stays against the datasheet"
    )
    assert roofs.traffic_ns(4.8e12) == pytest.approx(1e9)
    assert math.isnan(matrix_ns(roofs, 1e12, 0.0, "fp4"))


def test_few_channels_fill_a_part_of_the_tiles() -> None:
    roofs = DevicePeaks(spec=h200())
    # Recorded on an H200 in bf16: the stem of a resnet18 over 256 images of 224 x 224, and a
    # 3 x 3 convolution of 64 channels over 128 of 56 x 56, in NHWC and in NCHW.
    stem = convolution_ns(roofs, 60.4e9, 0.49e9, "bf16", backward=False, channels=3)
    assert stem == pytest.approx(1_751_000, rel=0.1)
    flops, moved = 29.6e9, 103e6
    many = convolution_ns(roofs, flops, moved, "bf16", backward=False, channels=64)
    assert many == pytest.approx(66_000, rel=0.2)
    turned = convolution_ns(
        roofs, flops, moved, "bf16", backward=False, channels=64, layout="turned"
    )
    assert turned - many == pytest.approx(5_000 + 4.5 * moved / 4.8e12 * 1e9, rel=0.02)


def test_tf32_convolutions_take_what_measured_ones_took() -> None:
    roofs = DevicePeaks(spec=h200())
    # Measured on an H200: 3 x 3, 64 images of 64 channels of 56 x 56, in NHWC and in NCHW.
    flops, moved = 14.8e9, 103e6
    measured: dict[tuple[Layout, bool], int] = {
        ("nhwc", False): 72,
        ("nhwc", True): 240,
        ("turned", False): 142,
        ("turned", True): 366,
    }
    for (layout, backward), us in measured.items():
        passes = 2 if backward else 1
        found = convolution_ns(
            roofs,
            passes * flops,
            passes * moved,
            "tf32",
            backward=backward,
            channels=64,
            layout=layout,
        )
        assert found == pytest.approx(us * 1e3, rel=0.1)


def test_tf32_products_across_the_sum_are_slower_where_arithmetic_holds_them_up() -> None:
    roofs = DevicePeaks(spec=h200())
    # Recorded on an H200: 8192 x 3072 x 768 of a BERT, forward, dgrad and wgrad.
    flops, moved = 2.0 * 8192 * 3072 * 768, 135e6
    forward, images, weights = (
        matrix_ns(roofs, flops, moved, "tf32", num_across=across) for across in range(3)
    )
    assert forward == pytest.approx(104_600, rel=0.2)
    assert images == pytest.approx(121_000, rel=0.25)
    assert weights == pytest.approx(186_700, rel=0.15)
    assert matrix_ns(roofs, flops, moved, "bf16", num_across=2) == matrix_ns(
        roofs, flops, moved, "bf16"
    )
    wide = (matrix_ns(roofs, 1e9, 1e9, "tf32", num_across=across) for across in range(3))
    assert len(set(wide)) == 1, "traffic takes as long however its matrices lie"


def test_attention_takes_what_it_took() -> None:
    def point(length: int, dim: int, seconds: float, direction: str = "forward") -> AttentionPoint:
        return AttentionPoint(
            precision="bf16",
            direction=direction,
            batch=2,
            heads=8,
            length=length,
            head_dim=dim,
            time=timed(seconds),
        )

    points = (
        point(512, 64, 1e-3),
        point(4096, 64, 9e-3),
        point(512, 128, 5e-3),
        point(512, 64, 7.0, "backward"),
    )
    plain, roofs = (
        DevicePeaks(spec=h200()),
        DevicePeaks(spec=h200(), measured=machine(attention=points)),
    )

    def took(
        of: DevicePeaks, length: int, dim: int, precision: str = "bf16", *, causal: bool = True
    ) -> float:
        return attention_ns(
            of, batch=16, queries=length, keys=length, dim=dim, precision=precision, causal=causal
        )

    assert took(roofs, 512, 64) == pytest.approx(1e6)
    assert took(roofs, 512, 64, "fp16") == pytest.approx(1e6)
    assert took(roofs, 512, 128) == pytest.approx(5e6)
    assert took(roofs, 700, 80) == pytest.approx(
        took(plain, 700, 80) * 1e6 / took(plain, 512, 64)
    ), "the nearest"
    long = took(plain, 512, 64, causal=False) * 9e6 / took(plain, 4096, 64)
    assert took(roofs, 512, 64, causal=False) == pytest.approx(long), (
        "no mask, no half-empty blocks: the longest"
    )
    assert took(roofs, 512, 64, "fp32") == took(plain, 512, 64, "fp32"), "not measured in fp32"


@pytest.fixture(scope="module")
def source() -> Source:
    return Source(path=SMALL, label="demo")


@pytest.fixture(scope="module")
def plain(source: Source) -> Job:
    """By datasheets."""
    return measure_job([source])


def test_another_device_is_judged_by_datasheets(source: Source, plain: Job) -> None:
    other = replace(machine(), machine=Machine(kind="cuda", device="NVIDIA A100"))
    told = measure_job([source], contexts=RankContexts(use_cache=False, hardware=other))
    assert told.facts == plain.facts
    assert judge_job(told) == judge_job(plain)
    (added,) = set(told.notes) - set(plain.notes)
    assert mentions(added, "measured on NVIDIA A100", "run is of NVIDIA H200", "datasheets")


def test_mfu_is_told_against_both(source: Source, plain: Job) -> None:
    told = measure_job(
        [source], contexts=RankContexts(use_cache=False, hardware=machine(share=0.5))
    )
    mfu = plain.facts.ranks[0].roofline.mfu
    assert mfu is not None
    assert told.facts.ranks[0].roofline == plain.facts.ranks[0].roofline, (
        "against the datasheet, as before"
    )
    found = next(
        match for note in told.notes if (match := re.search(r"MFU (.*)% is .* it is (.*)%", note))
    )
    assert float(found[1]) == pytest.approx(100 * mfu, abs=0.06)
    assert float(found[2]) == pytest.approx(2 * 100 * mfu, abs=0.06), (
        "half of the peak is reached in every precision"
    )
    assert any("measured on NVIDIA H200 (2026-01-02T03:04:05Z)" in note for note in told.notes)


def test_it_travels_to_workers() -> None:
    hardware = machine()
    files = [Source(path=SMALL, label=f"rank{rank}") for rank in range(2)]
    alone = measure_job(files, contexts=RankContexts(use_cache=False, hardware=hardware))
    with local_workers(2) as workers:
        assert (
            measure_job(
                files, workers=workers, contexts=RankContexts(use_cache=False, hardware=hardware)
            )
            == alone
        )
    assert sum("measured on NVIDIA H200" in note for note in alone.notes) == 1


def test_copies_go_at_the_measured_rate() -> None:
    path = lab_trace("single/h2d_pageable.slow")
    trace = read_trace(Source(path=path, label=path.name), use_cache=False)
    device = device_of(trace)
    assert device is not None
    case = case_of(build_context(trace, find_spec(device), machine()), 0, None)
    assert pinned_bytes_per_s(case) == pytest.approx(40e9)
    assert pinned_bytes_per_s(case, 0.6) == pytest.approx(30e9), "as cautious as with the datasheet"
    plain = case_of(build_context(trace, find_spec(device)), 0, None)
    assert pinned_bytes_per_s(plain) == pytest.approx(64e9 * 0.8)


def test_copies_go_as_they_were_timed() -> None:
    path = lab_trace("single/h2d_pageable.slow")
    trace = read_trace(Source(path=path, label=path.name), use_cache=False)
    device = device_of(trace)
    assert device is not None
    asked = ProbedTimes()
    modelled = case_of(build_context(trace, find_spec(device), probed=asked), 0, None)
    assert pinned_bytes_per_s(modelled) == pytest.approx(64e9 * 0.8)
    (wanted,) = asked.asked
    assert (wanted.call.op, wanted.way) == ("copy_to_device", "pinned")
    (size,) = wanted.call.dims[0]
    assert isinstance(size, int)
    ns = size / 50.0
    time = MeasuredTime(ns=ns, low_ns=ns, high_ns=ns, samples=5)
    probed = ProbedTimes(times={wanted: time})
    timed = case_of(build_context(trace, find_spec(device), probed=probed), 0, None)
    assert pinned_bytes_per_s(timed) == pytest.approx(50e9)


def notes(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert main(["diagnose", str(SMALL), "--no-cache", "--format", "json", *options]) == 0
    told: list[str] = json.loads(capsys.readouterr().out)["notes"]
    return told


def test_the_option_and_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "here.json", tmp_path / "other.json"
    save(machine(), path)
    save(replace(machine(), machine=Machine(kind="cuda", device="NVIDIA A100")), other)
    monkeypatch.delenv("STEPSCOPE_HARDWARE", raising=False)
    plain = notes(capsys)
    assert any_mentions(notes(capsys, "--hardware", str(path)), "measured on NVIDIA H200")
    monkeypatch.setenv("STEPSCOPE_HARDWARE", str(other))
    assert any("judged by datasheets" in note for note in notes(capsys))
    assert not any(
        "judged by datasheets" in note for note in notes(capsys, "--hardware", str(path))
    ), "the option goes first"
    monkeypatch.setenv("STEPSCOPE_HARDWARE", "")
    assert notes(capsys) == plain


@pytest.mark.parametrize("command", ["diagnose", "report"])
def test_a_file_that_is_none_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    out = ["-o", str(tmp_path / "x.html")] if command == "report" else []
    assert main([command, str(SMALL), "--no-cache", *out, "--hardware", str(bad)]) == 2
    assert mentions(capsys.readouterr().err, "not a hardware")


def test_a_job_is_not_started_with_a_bad_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [
        "run",
        "--hardware",
        str(tmp_path / "none.json"),
        "--",
        "touch",
        str(tmp_path / "started"),
    ]
    assert main(command) == 2
    assert "No such file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_report_draws_the_machines_own_roofs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other, out = tmp_path / "here.json", tmp_path / "other.json", tmp_path / "x.html"
    save(machine(), path)
    save(replace(machine(), machine=Machine(kind="cuda", device="NVIDIA A100")), other)
    for file, is_drawn in ((path, True), (other, False)):
        assert (
            main(["report", str(SMALL), "--no-cache", "-o", str(out), "--hardware", str(file)]) == 0
        )
        assert (f"measured, {file.name}" in out.read_text()) == is_drawn
    capsys.readouterr()
