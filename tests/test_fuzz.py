"""Damaged files of every format go the whole way, or are refused in words. `python -m
benchmarks.fuzz` runs more of the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepscope.errors import StepscopeError
from stepscope.readers.formats import FORMATS
from tests.format_samples import BESIDES, Sample, samples
from tests.fuzzing import ask, kinds, run_round, run_splice

ROUNDS = 2 * int(os.environ.get("STEPSCOPE_FUZZ", "1"))
"""Of each format. STEPSCOPE_FUZZ says how many times as many as in CI."""
NEEDS_PACKAGE = "ncu-rep"
"""Read by NVIDIA's own package alone."""


def test_every_format_has_a_sample() -> None:
    assert set(kinds()) == {each.name for each in FORMATS} | set(BESIDES)


@pytest.mark.parametrize(
    "sample", samples(), ids=lambda sample: f"{sample.kind} {next(iter(sample.files))}"
)
def test_an_undamaged_sample_is_read(sample: Sample, tmp_path: Path) -> None:
    """Else its damage would tell nothing."""
    for name, data in sample.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if sample.kind == NEEDS_PACKAGE:
        with pytest.raises(StepscopeError, match="ncu-report"):
            ask(sample.kind, [tmp_path / name for name in sample.files], tmp_path)
    else:
        ask(sample.kind, [tmp_path / name for name in sample.files], tmp_path)


@pytest.mark.parametrize("kind", kinds())
def test_a_damaged_file_is_diagnosed_or_refused(kind: str, tmp_path: Path) -> None:
    outcomes = [run_round(kind, seed, tmp_path / "input") for seed in range(ROUNDS)]
    assert [
        f"seed {outcome.seed}: {outcome.problem}"
        for outcome in outcomes
        if outcome.problem is not None
    ] == []


def test_files_made_of_pieces_of_others_are_diagnosed_or_refused(tmp_path: Path) -> None:
    outcomes = [run_splice(seed, tmp_path / "input") for seed in range(12 * ROUNDS)]
    assert len({outcome.answer for outcome in outcomes}) == 2
    assert [
        f"seed {outcome.seed}: {outcome.problem}"
        for outcome in outcomes
        if outcome.problem is not None
    ] == []
