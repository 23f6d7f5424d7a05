"""Throughputs in place of traces: given, or stated by a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.errors import UsageError
from stepscope.pipeline.options import Options
from stepscope.scaling.command import scale_paths
from stepscope.scaling.shapes import Scaling


def scaled(*paths: object) -> Scaling:
    scaling = scale_paths([str(path) for path in paths], (), None, Options())
    scaling.self_check()
    return scaling


def log(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_rates_that_are_given() -> None:
    scaling = scaled("64=3200", "1=100", "8=600")
    assert [run.width for run in scaling.runs] == [1, 8, 64]
    _, eight, wide = scaling.gains
    assert eight is not None
    assert wide is not None
    assert (eight.efficiency, wide.efficiency, wide.loss) == (0.75, 0.5, None)
    assert eight.karp_flatt == pytest.approx(1 / 21)
    assert scaling.amdahl is not None


@pytest.mark.parametrize(
    ("line", "rate", "unit"),
    [
        ("step 3 loss 2.3 throughput 601.5 samples/s", 601.5, "samples/s"),
        ("{'loss': 2.1, 'tokens_per_second': 1200.0}", 1200.0, "tokens/s"),
        ("12,345 tokens/sec | lr 1e-3", 12345.0, "tokens/s"),
        ("150 images/s/gpu", 600.0, "images/s"),
    ],
)
def test_a_log_states_its_rate(tmp_path: Path, line: str, rate: float, unit: str) -> None:
    """Of one device it is as many times more as there are."""
    path = log(tmp_path / "w4.log", "99 samples/day", line)
    run = scaled("1=100", path).runs[1]
    assert (run.rate_per_s, run.rate_unit, run.width) == (rate, unit, 4)


def test_the_first_half_of_a_log_is_no_steady_rate(tmp_path: Path) -> None:
    path = log(tmp_path / "w4.log", "1 samples/s", "2 samples/s", "300 samples/s", "310 samples/s")
    assert scaled("1=100", path).runs[1].rate_per_s == 305.0


def test_the_width_is_given_or_the_logs_or_its_names(tmp_path: Path) -> None:
    path = log(tmp_path / "w4.log", "world_size: 8", "300 samples/s")
    assert [run.width_source for run in scaled("1=100", path).runs] == [
        "given",
        "world_size in the log",
    ]
    assert scaled("1=100", f"16={path}").runs[1].width == 16
    plain = log(tmp_path / "train.log", "300 samples/s")
    with pytest.raises(UsageError, match="give it as 8="):
        scaled("1=100", plain)


def test_rates_of_several_units_and_mixtures_are_refused(tmp_path: Path) -> None:
    path = log(tmp_path / "w4.log", "300 samples/s")
    with pytest.raises(UsageError, match="one unit"):
        scaled("1=100 tokens/s", path)
    with pytest.raises(UsageError, match="compares rates with rates"):
        scaled("1=100", tmp_path / "none.json")
    with pytest.raises(UsageError, match="both 4 ranks"):
        scaled("4=100", path)
