"""What cannot be is said, with the nearest that can."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import UsageError
from stepscope.plan.catalog import find_model
from stepscope.plan.cluster import resized
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.estimate import estimate_one
from stepscope.plan.framework import MEGATRON, NANOTRON
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout
from stepscope.plan.layout_words import parse_layout
from stepscope.plan.search import least_memory
from stepscope.plan.space import Grid, Space
from stepscope.plan.validate import (
    Shortfall,
    check_job,
    check_layout,
    check_space,
    memory_fit,
    problems,
    shortfall,
    warnings,
)
from tests.wording import mentions


def job_of(
    model: str, cluster: str, seq_len: int, global_batch: int, **rest: object
) -> TrainingJob:
    job = TrainingJob(
        model=find_model(model),
        cluster=parse_cluster(cluster),
        seq_len=seq_len,
        global_batch=global_batch,
    )
    return replace(job, **rest)  # type: ignore[arg-type]


LLAMA = job_of("llama3-70b", "8x8xH100", 8192, 1024)
GPT = job_of("gpt3-175b", "12x8xA100", 2048, 96, framework=MEGATRON)
MIXTRAL = job_of("mixtral-8x7b", "8x8xH100", 4096, 1024)

widths = st.integers(1, 4096)
layouts = st.builds(
    Layout, tp=widths, pp=widths, vpp=widths, dp=widths, cp=widths, ep=widths, micro_batch=widths,
    zero_stage=st.integers(1, 3), is_sequence_parallel=st.booleans(), is_flash=st.booleans(),
    recompute=st.sampled_from(RECOMPUTE), schedule=st.sampled_from(SCHEDULES),
    offload=st.sampled_from(OFFLOAD),
)  # fmt: skip


@given(layouts, st.randoms(use_true_random=False), st.integers(0, 4095))
def test_a_layout_is_read_as_it_is_printed_in_any_order(
    layout: Layout, random: object, shard: int
) -> None:
    layout = replace(layout, shard=shard if shard < layout.dp else 0)
    assert parse_layout(str(layout)) == layout
    words = str(layout).replace("offload-", "offload_").replace("no-", "no_").split("-")
    random.shuffle(words)  # type: ignore[attr-defined]
    assert parse_layout(" ".join(words).upper()) == layout


def test_what_is_left_out_comes_from_the_job() -> None:
    assert parse_layout("tp8-pp4-mb2", LLAMA) == Layout(
        tp=8, pp=4, dp=2, micro_batch=2, num_micro=256
    )
    assert parse_layout("fsdp", LLAMA) == Layout(dp=64, zero_stage=3, num_micro=16)
    assert parse_layout("tp4-zero1-vpp2-pp2") == Layout(tp=4, zero_stage=1, vpp=2, pp=2)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("tp8-tp4", "tp twice"),
        ("fsdp-z1", "zero stage twice"),
        ("tp0", "at least 1"),
        ("z4", "stages 0 to 3"),
        ("tp8-selectiv", "near it: selective"),
        ("", "means nothing"),
        ("tp", "means nothing"),
        ("tp8/2", "means nothing"),
        ("dp8v2", "means nothing"),
        ("tp8-\x1b[31m", r"\x1b"),
        ("tp8" * 100, "not so many"),
        ("tp99999999999", "means nothing"),
    ],
)
def test_a_word_that_means_nothing_is_named(word: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_layout(word)
    assert said in str(caught.value)
    assert "\x1b" not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_a_layout_or_an_error(word: str) -> None:
    said = ""
    try:
        parse_layout(word, LLAMA)
    except UsageError as problem:
        said = str(problem)
    assert said.isprintable()


@pytest.mark.parametrize(
    ("job", "word", "said"),
    [
        (LLAMA, "tp8-pp8-dp2", ("128 devices", "has 64", "dp1")),
        (LLAMA, "tp8-pp3-dp2", ("tp x cp x pp", "divide 64", "16 or 32", "24")),
        (
            LLAMA,
            "tp7-pp1-dp9",
            ("64 heads (8", "7 tensor ranks", "4 or 8"),
        ),
        (
            LLAMA,
            "tp2-dp32-mb3",
            ("batch of 1024", "dp32 x mb3 = 96", "960 or 1056", "mb2"),
        ),
        (
            LLAMA,
            "cp3-dp64",
            ("8192 tokens", "3 context ranks", "2 or 4"),
        ),
        (LLAMA, "dp64-sp", ("sequence parallelism", "tensor ranks")),
        (LLAMA, "dp64-ep8", ("llama3-70b has no experts",)),
        (LLAMA, "dp64-zbv", ("zbv", "pipeline")),
        (LLAMA, "dp64-v2", ("v2 interleaves",)),
        (
            LLAMA,
            "pp16v3-dp4",
            ("80 layers", "16 stages of 3 pieces", "1 or 5"),
        ),
        (
            LLAMA,
            "tp2-pp8v2-dp4-mb64",
            ("groups of pp8", "there are 4", "batch of 2048"),
        ),
        (
            LLAMA,
            "pp64-dp1-mb64-zb2p",
            ("zb2p", "128 micro-batches", "there are 16"),
        ),
        (LLAMA, "dp64-z3/7", ("64 data ranks", "shards of 7", "4 or 8")),
        (GPT, "tp1-pp64-dp1", ("96 layers", "64 equal stages", "48 or 96")),
        (MIXTRAL, "dp64-ep3", ("ep3", "8 experts", "dp x cp = 64", "2 or 4")),
        (replace(LLAMA, precision="fp4"), "dp64", ("no unit for 'fp4'", "fp8 or bf16")),
        (replace(GPT, seq_len=4096), "dp96", ("2048 tokens", "not 4096")),
    ],
)
def test_a_bad_layout_gets_the_reason_and_the_nearest_good_choice(
    job: TrainingJob, word: str, said: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        check_layout(job, parse_layout(word, job))
    assert any(mentions(problem, *said) for problem in str(caught.value).splitlines())


@pytest.mark.parametrize("job", [LLAMA, MIXTRAL, replace(GPT, framework=LLAMA.framework)])
def test_what_the_search_tries_has_no_problem(job: TrainingJob) -> None:
    chunk = next(Grid(job, replace(Space(), offload=OFFLOAD)).chunks())
    tried = [chunk.layout(place) for place in range(0, len(chunk), 499)]
    assert len(tried) > 10
    assert [problems(job, layout) for layout in tried] == [[]] * len(tried)


def test_wide_tensor_groups_and_zero_2_under_a_pipeline_are_warned_of() -> None:
    assert mentions(warnings(LLAMA, Layout(tp=16))[0], "node of 8")
    assert mentions(warnings(LLAMA, Layout(tp=3))[0], "two nodes", "2 or 4")
    assert "ZeRO-1 does it once" in warnings(LLAMA, Layout(pp=2, zero_stage=2))[0]
    assert warnings(LLAMA, Layout(tp=8, zero_stage=1, pp=2)) == []


def test_stages_of_nanotron_are_warned_of() -> None:
    job = job_of("llama2-7b", "64x8xH100@efa", 4096, 1024, framework=NANOTRON)
    wide, narrow = Layout(tp=8, pp=2, dp=32, zero_stage=1), Layout(tp=8, pp=2, dp=4, zero_stage=1)
    assert mentions(warnings(job, wide)[0], "in the plan")
    assert not mentions(warnings(job, wide)[0], "not in the plan")
    assert mentions(warnings(job, narrow)[0], "not in the plan")
    assert warnings(job, Layout(tp=8, dp=64, zero_stage=1)) == []


def test_a_layout_that_does_not_fit_gets_one_that_does() -> None:
    layout = parse_layout("tp2-pp1-dp32-mb4-z1", LLAMA)
    room = memory_fit(LLAMA, layout)
    alone = float(estimate_one(LLAMA, layout).memory_bytes[0])
    assert room.memory_bytes == alone
    assert room.missing_bytes == alone - LLAMA.cluster.usable_bytes > 0
    assert room.nearest is not None
    check_layout(LLAMA, room.nearest)
    assert estimate_one(LLAMA, room.nearest).memory_bytes[0] <= LLAMA.cluster.usable_bytes
    assert (room.nearest.tp, room.nearest.pp, room.nearest.dp) == (2, 1, 32)
    fits = memory_fit(LLAMA, parse_layout("tp8-pp8-mb1-z1-sp-full", LLAMA))
    assert (fits.missing_bytes, fits.nearest) == (0.0, None)


# Jobs.


@pytest.mark.parametrize(
    ("job", "space", "said"),
    [
        (replace(LLAMA, global_batch=0), Space(), "batch of 0"),
        (replace(LLAMA, precision="fp4"), Space(), "use fp8 or bf16"),
        (replace(LLAMA, global_batch=100), Space(dp=(64,)), "batch of 64 or 128"),
        (LLAMA, Space(tp=(3,)), "fills 64 devices"),
        (LLAMA, Space(tp=(0,)), "tp must be 1"),
        (
            LLAMA,
            Space(recompute=("some",)),
            "one of none, selective, full, not 'some'",
        ),
        (LLAMA, Space(zero_stage=(4,)), "one of 0, 1, 2, 3"),
        (LLAMA, Space(schedule=()), "schedule is one of"),
    ],
)
def test_a_job_without_a_layout_gets_the_reason(job: TrainingJob, space: Space, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_job(job, space)
    assert said in str(caught.value)


def test_a_good_job_passes() -> None:
    check_job(LLAMA)
    check_space(Space(shard=(0, 8)))


def test_a_cluster_that_is_too_small_says_by_how_much_and_what_helps() -> None:
    job = job_of("llama2-7b", "1xA100", 4096, 64)
    found = shortfall(job)
    assert isinstance(found, Shortfall)
    least = least_memory(job)
    assert least is not None
    assert found.missing_bytes == least.memory_bytes - job.cluster.usable_bytes > 0
    # 16 bytes a parameter do not go into 80 GiB.
    assert found.memory_bytes > 16 * job.model.num_params
    text = "; ".join(found.helps)
    for what in ("offload to the host", "adapters", "devices instead of 1"):
        assert what in text
    assert "recompute" not in text
    num = int(next(each for each in found.helps if "instead of 1" in each).split()[0])
    there = least_memory(replace(job, cluster=resized(job.cluster, num)))
    assert there is not None
    assert there.memory_bytes <= job.cluster.usable_bytes


def test_what_was_ruled_out_is_what_helps_first() -> None:
    job = job_of("llama3-8b", "8xA100-40GB", 8192, 64)
    found = shortfall(job, Space(recompute=("none",), cp=(1,), tp=(1,)))
    assert found is not None
    assert found.helps[0].startswith("recompute")


def test_a_job_that_fits_falls_short_of_nothing() -> None:
    assert shortfall(LLAMA) is None
