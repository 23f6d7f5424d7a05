from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepscope.analyses.peak_waterfall import (
    Clock,
    job_waterfall,
    peak_clock_mhz,
    rank_waterfall,
    with_waterfalls,
)
from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import build_context
from stepscope.core.facts import Facts, RankFacts
from stepscope.core.peak import PeakWaterfall
from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.system import (
    DeviceSeries,
    Spread,
    SystemRecording,
    SystemReport,
)
from stepscope.core.run import DeviceSample, RankMetadata, RunFacts
from stepscope.core.trace import NONE, Launch
from stepscope.hardware.lookup import find_spec_by_key
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import measure
from tests.shared_data import DEMO, lab_traces
from tests.tracing import Event, call, inputs, kernel, mark, op, trace_of

BF16 = '["c10::BFloat16", "c10::BFloat16"]'
FLOAT = '["float", "float"]'
FLOPS = 2 * 2048**3
STEP_NS = 1_000_000


def grid(*blocks: int) -> Launch:
    return Launch(grid=blocks, block=(128,), registers=None, shared_bytes=None, occupancy_pct=None)


def steps(
    *,
    name: str = "nvjet_tst",
    types: str = BF16,
    dims: str = "[[2048, 2048], [2048, 2048]]",
    end: int = 410_000,
    launch: Launch | None = None,
    operator: str = "aten::mm",
) -> list[Event]:
    """Three steps of 1 ms, each with one product."""
    events: list[Event] = []
    for i in range(3):
        at = i * STEP_NS
        events += [
            mark(f"ProfilerStep#{i}", at, at + 900_000),
            op(operator, at + 1000, at + 9000, detail=inputs(dims, types)),
            call("cudaLaunchKernel", at + 2000, at + 3000, i + 1),
            kernel(name, at + 10_000, at + end, i + 1, detail=launch),
        ]
    return events


def measured(*events: Event, spec: str | None = "h100-sxm") -> RankFacts:
    found = None if spec is None else find_spec_by_key(spec)
    facts = measure_rank(build_context(trace_of(*events), found), 0)
    return with_waterfalls(Facts(ranks=(facts,))).ranks[0]


def parts_of(rank: RankFacts) -> dict[str, int]:
    waterfall = rank.peak_waterfall
    assert waterfall is not None
    waterfall.self_check()
    return {part.what: part.ns for part in waterfall.parts}


def waterfall_of(rank: RankFacts) -> PeakWaterfall:
    assert rank.peak_waterfall is not None
    return rank.peak_waterfall


def test_a_product_is_its_flops_at_the_peak_and_what_it_lacks() -> None:
    rank = measured(*steps())
    parts, waterfall = parts_of(rank), waterfall_of(rank)
    at_peak = FLOPS / 989.4e12 * 1e9
    assert parts["achieved"] == pytest.approx(2 * at_peak, abs=20)
    assert parts["below_peak"] == 2 * 400_000 - parts["achieved"]
    assert parts["precision"] == parts["recomputation"] == parts["unknown_work"] == 0
    assert (waterfall.precision, waterfall.num_steps, waterfall.total_ns) == (
        "bf16",
        2,
        2 * STEP_NS,
    )
    assert waterfall.achieved == pytest.approx(rank.roofline.mfu, rel=1e-3)
    assert not waterfall.is_least


def test_what_fp32_costs_is_the_lower_peak() -> None:
    rank = measured(*steps(types=FLOAT, name="ampere_sgemm_nn", end=900_000))
    parts = parts_of(rank)
    assert waterfall_of(rank).precision == "bf16"
    assert rank.roofline.mfu is not None
    used = parts["achieved"] + parts["precision"]
    assert used == pytest.approx(rank.roofline.mfu * 2 * STEP_NS, rel=1e-3)
    assert parts["precision"] > 10 * parts["achieved"]


def test_fp8_in_use_is_the_whole() -> None:
    rank = measured(*steps(types='["c10::Float8_e4m3fn", "c10::Float8_e4m3fn"]'))
    assert waterfall_of(rank).precision == "fp8"
    assert parts_of(rank)["precision"] == 0


def test_bytes_that_arithmetic_does_not_hide_are_memory() -> None:
    rank = measured(
        *steps(
            name="vectorized_elementwise_kernel",
            operator="aten::add",
            dims="[[67108864], [67108864], []]",
            types='["c10::BFloat16", "c10::BFloat16", "Scalar"]',
        )
    )
    parts = parts_of(rank)
    assert parts["memory_bound"] == pytest.approx(2 * 3 * 2 * 67108864 / 3.35e12 * 1e9, rel=1e-3)
    assert parts["below_bandwidth"] == 2 * 400_000 - parts["memory_bound"]
    assert parts["achieved"] == 0


def test_a_wave_that_is_not_whole_leaves_sms_idle() -> None:
    assert "not_filled" not in parts_of(measured(*steps()))
    whole = parts_of(measured(*steps(launch=grid(132, 2))))
    assert whole["not_filled"] == 0
    half = parts_of(measured(*steps(launch=grid(66))))
    assert half["not_filled"] == pytest.approx(400_000, abs=2)


def test_padded_tiles_are_not_filled() -> None:
    wide = measured(
        *steps(
            name="nvjet_hsh_128x256_64x4",
            dims="[[130, 2048], [2048, 2048]]",
            launch=grid(132),
        )
    )
    assert parts_of(wide)["not_filled"] == pytest.approx(2 * 400_000 * (1 - 130 / 256), rel=1e-3)


def test_a_clock_below_that_of_the_peak_costs_what_it_lengthens() -> None:
    rank = measured(*steps())
    slow = rank_waterfall(rank, Clock(mhz=915, max_mhz=1980))
    assert slow is not None
    slow.self_check()
    parts = {part.what: part.ns for part in slow.parts}
    assert parts["clock"] == pytest.approx(400_000, rel=1e-3)
    fast = rank_waterfall(rank, Clock(mhz=1980, max_mhz=1980))
    assert fast is not None
    assert {part.what: part.ns for part in fast.parts}["clock"] == 0
    assert "clock" not in parts_of(rank)


def test_the_clock_is_the_runs_own_or_that_of_the_only_device() -> None:
    rank = measured(*steps())
    sample = DeviceSample(sm_clock_mhz=915.0, max_sm_clock_mhz=1980.0)
    run = RunFacts(
        path="run",
        command=(),
        exit_code=0,
        ranks=(RankMetadata(rank=0, device=sample),),
    )
    spread = Spread(num=9, low=900.0, median=915.0, high=930.0)
    series = DeviceSeries(index=0, sm_clock_working_mhz=spread, max_sm_clock_mhz=1980.0)
    recording = SystemRecording(format="nvidia-smi", paths=("smi.csv",), devices=(series,))
    beside = Auxiliary(system=SystemReport(recordings=(recording,)))
    for facts in (Facts(ranks=(rank,), run=run), Facts(ranks=(rank,), auxiliary=beside)):
        parts = parts_of(with_waterfalls(facts).ranks[0])
        assert parts["clock"] == pytest.approx(400_000, rel=1e-3)
    two = (rank, replace(rank, rank=1))
    assert "clock" not in parts_of(with_waterfalls(Facts(ranks=two, auxiliary=beside)).ranks[0])


@pytest.mark.parametrize(
    ("key", "max_mhz", "mhz"),
    [
        ("h100-sxm", 1980, 1830),
        ("a100-sxm-80gb", 1410, 1410),
        ("v100-sxm2-16gb", 1530, 1530),
        ("mi300x", 2100, 2100),
    ],
)
def test_a_datasheets_peak_tells_its_clock(key: str, max_mhz: float, mhz: float) -> None:
    spec = find_spec_by_key(key)
    assert spec is not None
    assert spec.num_sms is not None
    found = peak_clock_mhz(spec.peak_flops["fp16"].value, spec.num_sms, max_mhz)
    assert found == pytest.approx(mhz, rel=0.005)


def test_without_peaks_the_kernels_are_not_told() -> None:
    rank = measured(*steps(), spec=None)
    waterfall, parts = waterfall_of(rank), parts_of(rank)
    assert parts["unknown_work"] == 2 * 400_000
    assert "achieved" not in parts
    assert waterfall.achieved is None
    assert waterfall.peak_flops is None


def test_a_job_is_its_ranks_with_as_many_steps_each() -> None:
    two = waterfall_of(measured(*steps()))
    one = replace(
        two,
        num_steps=1,
        total_ns=two.total_ns // 2,
        parts=tuple(replace(part, ns=part.ns // 2) for part in two.parts),
    )
    even = replace(two, parts=tuple(replace(part, ns=part.ns // 2 * 2) for part in two.parts))
    even = replace(even, total_ns=sum(part.ns for part in even.parts))
    one = replace(one, total_ns=sum(part.ns for part in one.parts))
    job = job_waterfall([even, one])
    assert job is not None
    job.self_check()
    assert (job.num_ranks, job.num_steps) == (2, 2)
    assert job.total_ns == 2 * even.total_ns


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2_500_000),
            st.integers(0, 300_000),
            st.sampled_from(["nvjet_128x128", "elementwise", "ncclDevKernel_AllReduce"]),
            st.sampled_from([None, grid(1), grid(133), grid(500)]),
        ),
        max_size=30,
    )
)
def test_every_nanosecond_is_in_one_part(
    kernels: list[tuple[int, int, str, Launch | None]],
) -> None:
    more = [
        kernel(name, start, start + length, 100 + at, stream=at % 3, detail=launch)
        for at, (start, length, name, launch) in enumerate(kernels)
    ]
    rank = measured(*steps(), *more)
    rank.self_check()
    assert rank.compute_split is not None
    assert rank.partition is not None
    for at, compute in enumerate(rank.partition.parts["compute"]):
        values = [per_window[at] for per_window in rank.compute_split.parts.values()]
        assert min(values) >= 0
        assert sum(values) == compute


@pytest.mark.parametrize(
    "path",
    [DEMO, *lab_traces("single/*", "ranks2/*.rank0.*")],
    ids=lambda path: path.name,
)
def test_recorded_steps_add_up(path: Path) -> None:
    facts = measure([str(path)], Options(use_cache=False, jobs=1)).facts
    facts.self_check()
    for rank in facts.ranks:
        assert (rank.peak_waterfall is not None) == (rank.steps.where == "device")
    assert facts.peak_waterfall is not None


def test_parts_sum_in_a_damaged_file_whose_kernel_runs_for_a_century() -> None:
    """More nanoseconds than a double holds."""
    end = 3_701_056_572_812_701_571
    rank = measured(op("aten::mm", 0, 9000), kernel("nvjet_tst", 10, end, NONE))
    assert rank.peak_waterfall is not None
    assert sum(part.ns for part in rank.peak_waterfall.parts) == rank.peak_waterfall.total_ns
