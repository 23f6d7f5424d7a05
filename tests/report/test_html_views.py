"""The report's views: steps and ranks by their parts, modules, allocations, single calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.pipeline.options import Options
from stepscope.pipeline.page import page_of_recording
from stepscope.pipeline.recording import Recording
from stepscope.report.html import render_page
from stepscope.report.html.model import page_of
from tests.analyses.test_profiler_views import step
from tests.builders import trace_text, write
from tests.shared_data import DEMO, ROOT, lab_traces
from tests.wording import mentions


def page_at(*paths: Path) -> dict[str, object]:
    options = Options(use_cache=False, jobs=1)
    with Recording([str(path) for path in paths], options) as recording:
        return page_of(page_of_recording(recording))


def text_of(page: dict[str, object], section: str) -> str:
    found = re.search(rf'<section id="{section}">.*?</section>', render_page(page), re.DOTALL)
    return "" if found is None else re.sub(r"<[^>]+>", " ", found[0])


@pytest.fixture
def built(tmp_path: Path) -> Path:
    device = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 1 << 37}
    events = [each for number in range(4) for each in step(number)]
    header = {"deviceProperties": [device], "with_stack": 1}
    return write(tmp_path / "trace.json", trace_text(events, header=header))


def test_modules_memory_and_calls_are_on_the_page(built: Path) -> None:
    page = page_at(built)
    assert "Linear_0" in text_of(page, "modules")
    memory = text_of(page, "memory-by-operator")
    assert "aten::addmm" in memory
    assert "on the device" in memory
    kernels = page["kernels"]
    assert isinstance(kernels, list)
    gemm = next(row for row in kernels if row["full"] == "gemm")
    assert (gemm["mean_us"], gemm["min_us"], gemm["max_us"]) == (100, 100, 100)
    assert (gemm["occupancy"], gemm["blocks_per_sm"]) == (25, 0.5)
    assert "25 %" in text_of(page, "kernels")
    ops = page["ops"]
    assert isinstance(ops, list)
    row = next(row for row in ops if row["name"] == "aten::addmm")
    assert row["own_host_ms"] == pytest.approx(0.06 * row["host_calls"])


def test_steps_sum_to_their_length() -> None:
    views = page_at(DEMO)["views"]
    assert isinstance(views, dict)
    rows = views["steps"]["rows"]
    assert len(rows) == 2
    for row in rows:
        assert sum(part["ms"] for part in row["parts"]) == pytest.approx(row["ms"])
        assert row["parts"][-1]["at"] + row["parts"][-1]["width"] <= 1000.1
    assert views["ranks"] is None
    assert not views["recorded"].modules
    assert not views["recorded"].memory


def test_ranks_stand_side_by_side() -> None:
    paths = lab_traces("rank_traces/gloo_late_rank.slow.*")
    page = page_at(*paths)
    views = page["views"]
    assert isinstance(views, dict)
    assert [row["number"] for row in views["ranks"]["rows"]] == [str(n) for n in range(len(paths))]
    assert mentions(text_of(page, "each-rank"), "ranks, side by side")


def test_a_kept_diagnosis_has_none_of_them(tmp_path: Path) -> None:
    from stepscope.cli.main import main

    out = tmp_path / "report.html"
    kept = ROOT / "tests" / "kept" / "run" / "diagnosis.json"
    assert main(["report", str(kept), "-o", str(out)]) == 0
    assert "each-step" not in out.read_text(encoding="utf-8")
