"""Recorded on an H200: what is said of a trace, and what torch's own counters said."""

from __future__ import annotations

import json
from functools import cache

import pytest

from benchmarks.memory import FOLDER, Recorded, compared
from benchmarks.ways_out import Row, rows
from stepscope.analyses.memory.recomputed import recomputed
from stepscope.pipeline.contexts import context_of
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from tests.shared_data import SHARED, lab_trace, needs_shared

WHOLE = SHARED / "recordings" / "memory"
NAMES = ("small_fp32_sgd", "small_fp32_adamw", "resnet50_fp32_sgdm")
KINDS_WITHIN, PEAK_WITHIN, BATCH_WITHIN = 0.03, 0.01, 0.05


@cache
def measured(name: str) -> Recorded:
    return compared(lab_trace(f"memory/{name}"), name)


@pytest.mark.parametrize("name", NAMES)
def test_kinds_are_what_the_live_tensors_take(name: str) -> None:
    for kind, (said, real) in measured(name).kinds.items():
        assert said == pytest.approx(real, rel=KINDS_WITHIN), kind


@pytest.mark.parametrize("name", NAMES)
def test_phases_peak_where_the_allocators_counters_do(name: str) -> None:
    for phase, (said, real) in measured(name).phases.items():
        assert said == pytest.approx(real, rel=1e-4), phase


@pytest.mark.parametrize("name", NAMES)
def test_a_larger_batch_peaks_where_it_was_predicted(name: str) -> None:
    batches = measured(name).batches
    assert len(batches) > 3
    for times, (said, real) in batches.items():
        assert said == pytest.approx(real, rel=PEAK_WITHIN), times


def largest_batches_are_near(found: Recorded) -> None:
    """A batch is a whole number: one more or less is as near as can be."""
    assert len(found.fits) == 2
    for said, real in found.fits:
        assert said == pytest.approx(real, rel=BATCH_WITHIN, abs=1.0)


@pytest.mark.parametrize("name", ["small_fp32_sgd", "unet_amp_adamw"])
def test_the_largest_batch_under_a_limit_is_near_the_real_one(name: str) -> None:
    largest_batches_are_near(measured(name))


@needs_shared
def test_the_largest_batch_of_a_bigger_model_is_near_the_real_one() -> None:
    for name in ("gpt2_bf16_adamw", "vit_amp_momentum"):
        largest_batches_are_near(compared(WHOLE / f"{name}.pt.trace.json.gz", name))


@needs_shared
def test_blocks_that_are_no_longer_checkpointed_peak_where_it_was_predicted() -> None:
    truth = json.loads((FOLDER / "truth.json").read_text())["models"]["ckpt_bf16_adamw"]
    source = Source(path=WHOLE / "ckpt_bf16_adamw.pt.trace.json.gz", label="ckpt")
    held = recomputed(context_of(read_trace(source, use_cache=False), None))
    assert held is not None
    assert held.num_blocks == 24
    for row in truth["checkpointing"]:
        said = held.peak_at(1 - row["checkpointed"] / held.num_blocks)
        assert said == pytest.approx(row["peak_allocated"], rel=0.05)


WAYS_WITHIN, MIDDLE_WITHIN = 0.2, 0.06


@cache
def ways(name: str = "ways_out") -> tuple[Row, ...]:
    return tuple(rows(json.loads((FOLDER / f"{name}.json").read_text())))


@pytest.mark.parametrize("name", ["ways_out", "ways_out_second"])
def test_no_way_out_is_said_to_be_enough_that_is_not(name: str) -> None:
    known = [row for row in ways(name) if None not in (row.is_enough, row.runs)]
    assert len(known) > 30
    assert [row for row in known if row.is_enough and not row.runs] == []
    assert sum(row.is_enough == row.runs for row in known) >= 0.85 * len(known)


def test_the_step_peaks_with_a_way_out_where_it_was_predicted() -> None:
    """Of what forward failed in, half a block is guessed: far off where there are four."""
    off = sorted(abs(row.off) for row in ways() if row.off is not None)
    assert len(off) > 30
    assert off[-1] < WAYS_WITHIN
    assert off[len(off) // 2] < MIDDLE_WITHIN


@pytest.mark.parametrize("job", ["deep", "pictures"])
def test_checkpointed_blocks_peak_where_it_was_predicted(job: str) -> None:
    """24 of a transformer, 12 of residual convolutions: each keeps what it is given."""
    found = [row for row in ways("ways_out_second") if row.job == job]
    off = [row.off for row in found if row.way.startswith("checkpoint") and row.off is not None]
    assert len(off) == 3
    assert max(map(abs, off)) < 0.03
