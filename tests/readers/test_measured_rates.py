"""Measured roofs, and what is said of files that hold none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.system import SystemReport
from stepscope.errors import InputError
from stepscope.readers.detect import formats_of
from stepscope.readers.format import Source
from stepscope.readers.measured_rates import is_mine, read_file, read_roofs
from tests.recording_texts import texts_of
from tests.shared_data import SAMPLES


def test_a_real_file() -> None:
    path = SAMPLES / "formats" / "peaks.json"
    told = json.loads(path.read_text())
    roofs = read_roofs(path)
    assert roofs.device == "NVIDIA H200"
    assert set(roofs.peak_flops) == {"bf16", "fp16", "tf32", "fp32"}
    best = max(told[f"gemm_bf16_{size}_tflops"] for size in (1024, 4096, 8192))
    assert roofs.peak_flops["bf16"] == pytest.approx(best * 1e12)
    assert roofs.bandwidth_bytes_per_s == pytest.approx(told["copy_TBps"] * 1e12)
    assert "measured" in roofs.source


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "not a file"),
        ("[1]", "not a file"),
        ('{"copy_TBps": 4}', "no gemm_PRECISION_SIZE_tflops"),
        ('{"gemm_bf16_8192_tflops": 800}', "no copy_TBps"),
        ('{"gemm_bf16_8192_tflops": -1, "copy_TBps": 4}', "no gemm"),
        ('{"gemm_bf16_8192_tflops": NaN, "copy_TBps": 4}', "no gemm"),
    ],
)
def test_what_holds_none_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "peaks.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_roofs(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_roofs(tmp_path / "none.json")


def test_given_like_a_recording_it_says_what_it_gives() -> None:
    path = SAMPLES / "formats" / "peaks.json"
    told = json.loads(path.read_text())
    assert [each.name for each in formats_of(path.read_bytes(), path.name)] == ["measured-rates"]
    report = SystemReport(recordings=(read_file(Source(path=path, label=str(path))),))
    (rates,) = report.rates
    assert rates.roofs == read_roofs(path)
    assert not rates.is_hardware
    lines = dict(texts_of(report)[0].pairs)
    assert lines["products"].startswith(f"bf16 {told['gemm_bf16_8192_tflops']:.4g}, ")
    assert f"{told['h2d_pageable_GBps']:.4g}" in lines["copies"]
    rows = {row[0]: row[1:] for row in texts_of(report)[0].tables[0].rows}
    assert rows["fp32"] == tuple(
        f"{told[f'gemm_fp32_{size}_tflops']:.4g}" for size in (1024, 4096, 8192)
    )


def test_a_calibrated_machine_given_like_a_recording(tmp_path: Path) -> None:
    from tests.readers.test_hardware_file import told, written

    path = written(tmp_path, told())
    assert is_mine(path.read_bytes(), path.name)
    report = SystemReport(recordings=(read_file(Source(path=path, label=str(path))),))
    assert report.rates[0].is_hardware
    assert report.rates[0].roofs.peak_flops == pytest.approx(
        {"bf16": 2 * 4e9 / 2e-3, "fp8": 2 * 1e9 / 2e-3}
    )
    assert "--hardware" in dict(texts_of(report)[0].pairs)["gives"]


@pytest.mark.parametrize(
    "text",
    [
        '{"gemm_bf16_8192_tflops": 800',
        '{"gemm_bf16_8192_tflops": "many", "copy_TBps": []}',
        '{"schema": "stepscope.hardware/1"}',
        '{"schema": "stepscope.hardware/99", "gemms": []}',
    ],
)
def test_damaged_rates_are_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "peaks.json"
    path.write_text(text)
    assert is_mine(text.encode(), path.name)
    with pytest.raises(InputError, match=r"peaks\.json"):
        read_file(Source(path=path, label=str(path)))


def test_other_json_is_not_claimed() -> None:
    for text in (
        b'{"traceEvents": [{"name": "gemm_bf16_8192_tflops"}]}',
        b'{"schema": "stepscope.diagnosis/1"}',
        b"[]",
        b"",
    ):
        assert not is_mine(text, "x.json")


def samples() -> Iterator[tuple[str, str, bytes]]:
    rates = {
        "device": "H200",
        "gemm_bf16_8192_tflops": 800,
        "gemm_fp32_1024_tflops": 50.5,
        "copy_TBps": 4.1,
        "launch_us": 3,
    }
    yield "measured-rates", "peaks.json", json.dumps(rates).encode()
