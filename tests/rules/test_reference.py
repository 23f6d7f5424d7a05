"""Real traces against figures computed from their raw events, to the nanosecond."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from stepscope.core.facts import RankFacts
from stepscope.pipeline.measure import measure_file
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from tests.installed import once_unless
from tests.shared_data import (
    DEMO,
    SAMPLES,
    SHARED,
    lab_trace,
    lab_traces,
    needs_shared,
    shared_traces,
    some,
)

TRUTH: dict[str, dict[str, Any]] = json.loads((SAMPLES / "truth.json").read_text())["cases"]
SAMPLED = lab_traces("single/*", "ranks2/*")
NUM_SHARDS = 3


def facts_of(path: Path) -> RankFacts:
    measured = measure_file(Source(path=path, label=path.name), None, False)
    assert measured.facts is not None, measured.problem
    measured.facts.self_check()
    return measured.facts


@needs_shared
@pytest.mark.parametrize("shard", once_unless("the shared recordings", range(NUM_SHARDS)))
def test_every_reference_figure_is_met_to_the_nanosecond(shard: int) -> None:
    """Public traces against figures computed from their raw events by other means."""
    reference = json.loads((SHARED / "public" / "reference.json").read_text())
    assert len(reference) > NUM_SHARDS
    for name in sorted(reference)[shard::NUM_SHARDS]:
        path = SHARED / "public" / name
        every_event_is_there(path, reference[name])
        expected, facts = reference[name], facts_of(path)
        assert facts.num_events == expected["events"], name
        figures = {f"{key}_ns": value for key, value in asdict(facts.device).items()}
        if expected["device_events"]:
            assert figures == {key: expected[key] for key in figures}, name
        else:
            assert set(figures.values()) == {0}, name


def every_event_is_there(path: Path, expected: dict[str, Any]) -> None:
    trace = read_trace(Source(path=path, label=path.name), use_cache=False)
    trace.self_check()
    assert trace.num_raw_events == expected["events"]
    work = trace.device_work
    assert int(work.sum()) == expected["device_events"]
    assert trace.unknown == {}
    assert trace.notes == ()
    if "span_ns" in expected:
        assert int(trace.end_ns[work].max() - trace.start_ns[work].min()) == expected["span_ns"]


def partition_sums_exactly_and_steps_agree(path: Path) -> None:
    facts = facts_of(path)
    parts = facts.typical_parts_ns
    assert parts is not None
    assert sum(parts.values()) == facts.steps.step_interval_ns
    assert facts.steps.source == "ProfilerStep"
    assert facts.steps.is_step_interval
    assert facts.launches is not None
    assert facts.launches.num_unlinked == 0


@pytest.mark.parametrize(
    "path", SAMPLED, ids=lambda path: f"{path.parent.name}/{path.name.split('.pt')[0]}"
)
def test_lab_partitions_sum_exactly_and_steps_agree(path: Path) -> None:
    partition_sums_exactly_and_steps_agree(path)


@needs_shared
@pytest.mark.parametrize("shard", once_unless("the shared recordings", range(NUM_SHARDS)))
def test_the_labs_partitions_sum_exactly_and_steps_agree(shard: int) -> None:
    paths = shared_traces("lab/single/*.gz", "lab/ranks2/*.gz", "lab/ranks4/*.gz")
    assert len(paths) > NUM_SHARDS
    mine = paths[shard::NUM_SHARDS]
    for path in some(mine, 6):
        partition_sums_exactly_and_steps_agree(path)
    for path in mine:
        if path.name.startswith("attn_math.slow"):
            interval_is_the_unprofiled_step(path)


DEVICE_BOUND = (
    "fp32_no_tf32.slow",
    "nchw.slow",
    "nchw.fixed",
    "elementwise_chain.slow",
    "h2d_pageable.fixed",
    "healthy.slow",
)


@pytest.mark.parametrize("case", DEVICE_BOUND)
def test_where_the_device_is_the_limit_the_interval_is_the_unprofiled_step(case: str) -> None:
    interval_is_the_unprofiled_step(lab_trace(f"single/{case}"))


def interval_is_the_unprofiled_step(path: Path) -> None:
    name, variant, *_ = path.name.split(".")
    facts = facts_of(path)
    assert facts.steps.step_interval_ns == pytest.approx(
        TRUTH[name][f"{variant}_ms"] * 1e6, rel=0.02
    )


def test_model_flops_of_a_known_model_meet_the_formula() -> None:
    model_flops_meet_the_formula(facts_of(lab_trace("single/fp32_no_tf32.slow")))


def model_flops_meet_the_formula(facts: RankFacts) -> None:
    # GPT of lab.py: d 1024, 12 layers, vocabulary 32000, 8 x 1024 tokens; 6P + 12 L d s per token,
    # attention halved: causal.
    d, layers, vocabulary, sequence, tokens = 1024, 12, 32000, 1024, 8 * 1024
    parameters = 12 * layers * d * d + d * vocabulary
    expected = (6 * parameters + 12 * layers * d * sequence / 2) * tokens
    assert facts.roofline.model_flops == pytest.approx(expected, rel=0.002)


@needs_shared
def test_recomputed_work_is_found_where_it_was_planted_and_nowhere_else() -> None:
    slow, fixed, other = (
        facts_of(SHARED / "lab" / "single" / f"{case}.pt.trace.json.gz")
        for case in ("ckpt_unneeded.slow", "ckpt_unneeded.fixed", "fp32_no_tf32.fixed")
    )
    for facts in (slow, fixed, other):
        model_flops_meet_the_formula(facts)
    assert slow.phases is not None
    assert fixed.phases is not None
    assert slow.phases.recomputed_ns > 0.1 * slow.phases.backward_ns
    assert fixed.phases.recomputed_ns == 0
    assert slow.roofline.hfu is not None
    assert slow.roofline.mfu is not None
    assert slow.roofline.hfu > 1.15 * slow.roofline.mfu


def test_the_embedded_trace_agrees_with_plain_arithmetic_on_its_raw_events() -> None:
    facts = facts_of(DEMO)
    raw = json.loads(gzip.decompress(DEMO.read_bytes()), parse_float=Decimal)["traceEvents"]
    spans = sorted(
        (int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000))
        for event in raw
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    busy, reach = 0, spans[0][0]
    for start, end in spans:
        busy += max(0, end - max(start, reach))
        reach = max(reach, end)
    assert facts.num_events == len(raw)
    assert facts.device.busy == busy
    assert facts.device.span == reach - spans[0][0]
