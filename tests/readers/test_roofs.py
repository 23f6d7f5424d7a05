"""Measured roofs, and what is said of files that hold none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.errors import InputError
from stepscope.readers.roofs import read_roofs
from tests.shared_data import SHARED, needs_shared


@needs_shared
def test_a_real_file() -> None:
    path = SHARED / "lab" / "formats" / "peaks.json"
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
        ("no json", "not a file of measured roofs"),
        ("[1]", "not a file of measured roofs"),
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
