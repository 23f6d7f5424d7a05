"""Triton kernels through the interpreter; skipped where Triton is not installed, which weighs 300
MB."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.errors import UsageError
from stepscope.tune.kernels.errors import times
from stepscope.tune.kernels.execution import autotune_configs
from stepscope.tune.kernels.worker import Opening, describe, open_bench
from tests.installed import need
from tests.kernels.running import bench_of, case
from tests.shared_data import ROOT

need("Triton")


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def test_a_triton_kernel_is_checked_with_its_settings() -> None:
    bench = bench_of("tritoned:double", reference="tritoned:plain", gradients=False)
    where = case((7, 30))
    error = bench.refer(where).error
    assert error is not None
    assert bench.check({"BLOCK": 16, "num_warps": 2}, where, times(error, 4)).is_right
    wrong = bench.check({"BLOCK": 16, "short": 1}, where, times(error, 4))
    assert not wrong.is_right
    assert "NaN" in wrong.measure


def test_autotuned_kernels_take_one_configuration_at_a_time() -> None:
    bench = bench_of("tritoned:tuned_double", reference="tritoned:plain", gradients=False)
    assert autotune_configs(bench.target) == (
        {"BLOCK": 16, "num_warps": 2, "num_stages": 3},
        {"BLOCK": 64, "num_warps": 4, "num_stages": 3},
    )
    where = case((7, 30))
    error = bench.refer(where).error
    assert error is not None
    assert bench.check({"BLOCK": 32}, where, times(error, 4)).is_right
    (kernel,) = bench.target.autotuned
    assert [config.kwargs for config in kernel.configs] == [{"BLOCK": 32}]
    bench.refer(case((3, 3)))
    assert len(kernel.configs) == 2


def test_the_example_of_the_documentation_is_told_right_from_wrong(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tune-kernel.md").read_text(encoding="utf-8")
    example = tmp_path / "softmax_of_docs.py"
    example.write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], encoding="utf-8")
    bench = open_bench(Opening(target=f"{example}:softmax", device="cpu"))
    described = describe(bench)
    assert described.shapes == (((64, 1000),),)
    assert described.configs is not None
    assert len(described.configs) == 6
    where = case((64, 1000))
    error = bench.refer(where).error
    assert error is not None
    checks = {
        str(config["BLOCK"]): bench.check(config, where, times(error, 4))
        for config in described.configs[::2]
    }
    assert {name: check.is_right for name, check in checks.items()} == {
        "512": False,
        "1024": True,
        "2048": True,
    }
    shown = re.findall(r"in (\d+) of (\d+) elements", text)
    assert shown == re.findall(r"in (\d+) of (\d+) elements", checks["512"].measure)


def test_a_bare_kernel_is_refused_with_what_to_give_instead() -> None:
    for name in ("double_kernel", "tuned_kernel"):
        with pytest.raises(UsageError, match=r"bare Triton kernel.*function"):
            bench_of(f"tritoned:{name}")
