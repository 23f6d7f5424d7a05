"""What products, attention and experts reach, by the generation of the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.constants import DEFAULT
from stepscope.plan.devices import make_cluster
from stepscope.plan.estimate import estimate_one
from stepscope.plan.framework import FSDP, MEGATRON_CORE, NANOTRON, TORCHTITAN
from stepscope.plan.job import TrainingJob
from stepscope.plan.layer_time import layer_time
from stepscope.plan.layout import Layout, Layouts
from stepscope.plan.memory import layer_bytes, memory
from stepscope.plan.network import Group, Network
from stepscope.plan.parameters import can_run, fullest_stage, last_stage, parameters
from stepscope.plan.rates import Rates, rates_of
from stepscope.plan.step_time import has_stalled_sends

TERA = 1e12


def rates(device: str, precision: str = "bf16", **options: int) -> Rates:
    made = rates_of(make_cluster(device, 8), precision, DEFAULT, 2, **options)
    assert made is not None
    return made


def rate_of(device: str, m: int, n: int, k: int) -> float:
    return 2 * m * n * k / float(rates(device).gemm_s(m, n, k)) / TERA


@pytest.mark.parametrize(
    ("device", "sizes", "measured"),
    [
        # SimuMax, configs/system: large products one after the other, 6 % slower in its steps.
        ("b200", (4096, 16384, 16384), 0.94 * 1159),
        ("b200", (16384, 28672, 8192), 0.94 * 1087),
        ("b200", (32768, 8192, 16384), 0.94 * 1133),
        # docs/planner.md: an H200.
        ("h200", (8192, 8192, 8192), 660),
    ],
)
def test_large_products_run_at_the_rate_they_keep_up(
    device: str, sizes: tuple[int, int, int], measured: float
) -> None:
    assert rate_of(device, *sizes) == pytest.approx(measured, rel=0.08)


def test_products_that_are_added_up_in_fp32_are_slower_on_blackwell() -> None:
    """SimuMax, as above: weights' gradients of 4,096 tokens reach 0.454 of the peak in a row."""
    sizes = (57344, 8192, 4096)
    took = float(rates("b200").gemm_s(*sizes, added_bytes=8.0))
    assert 2 * np.prod(sizes) / took / TERA == pytest.approx(0.94 * 0.454 * 2250, rel=0.06)
    # Rates of 8 bits were set on whole steps, which have it.
    for plain in (rates("h100"), rates("b200", "fp8")):
        assert plain.gemm_s(*sizes, added_bytes=8.0) == plain.gemm_s(*sizes)


def test_gathers_reach_less_of_fifth_generation_links_than_reduces() -> None:
    """SimuMax, as above: 0.673 and 0.742 of 900 GB/s."""
    network, group = Network(make_cluster("b200", 8), DEFAULT), Group(8, 1)
    assert network.bus_bytes_per_s(group) == pytest.approx(0.742 * 900e9, rel=0.01)
    assert network.bus_bytes_per_s(group, is_gather=True) == pytest.approx(606e9, rel=0.01)


def test_boards_with_more_power_clock_higher() -> None:
    b200, gb200, gb300 = (rates(name).gemm for name in ("b200", "gb200", "gb300"))
    assert b200 < gb200 < gb300
    slow = parse_cluster("1x8xH100-96GB-500W")
    limited = rates_of(slow, "bf16", DEFAULT, 2)
    assert limited is not None
    assert limited.gemm < 0.85 * rates("h100").gemm


def test_boards_of_one_peak_differ_by_their_power_on_cdna_3_too() -> None:
    """MAMF: 668 TFLOP/s at 750 W, 785 at 1,000 W."""
    mi300x, mi325x = (rates(name).gemm for name in ("mi300x", "mi325x"))
    assert mi325x / mi300x == pytest.approx(785 / 668, rel=0.01)


def test_attention_on_blackwell_is_the_one_kernel_that_runs_there() -> None:
    old, new = (rates("b200", attention_generation=number).attention for number in (2, 3))
    assert old == new
    assert rates("h100", attention_generation=2).attention < 0.6 * rates("h100").peak


@pytest.mark.parametrize(
    ("num", "m", "n", "k", "out_bytes", "measured"),
    [
        # SimuMax, configs/system/b200_bf16_ceperm.json: forward, and weights' gradients in fp32.
        # Run in a row; a step's arithmetic is planned 6 % slower.
        (40, 616, 3072, 5120, 2.0, 1039),
        (20, 1232, 3072, 5120, 2.0, 1155),
        (256, 7168, 4096, 128, 8.0, 174),
        (64, 7168, 4096, 512, 8.0, 493),
    ],
)
def test_experts_products_are_bound_by_their_weights_where_tokens_are_few(
    num: int, m: int, n: int, k: int, out_bytes: float, measured: float
) -> None:
    took = float(rates("b200").grouped_s(num, m, n, k, out_bytes))
    assert 2 * num * m * n * k / took / TERA == pytest.approx(measured, rel=0.27)


def test_amd_devices_are_planned_below_what_their_datasheet_would_give() -> None:
    for name in ("mi300x", "mi325x", "mi350x", "mi355x"):
        made = rates(name)
        assert 0.4 < made.gemm / made.peak < 0.62
        assert not made.is_blackwell


def job_of(framework: object, model: str = "llama3-405b", cluster: str = "8x8xH100") -> TrainingJob:
    return TrainingJob(
        model=find_model(model),
        cluster=parse_cluster(cluster),
        seq_len=4096,
        global_batch=64,
        framework=framework,  # type: ignore[arg-type]
    )


def test_stages_that_keep_what_they_gathered_hold_whole_weights_and_gradients() -> None:
    layout = Layout(tp=8, pp=2, dp=4, micro_batch=1, num_micro=16, zero_stage=3)
    job = job_of(TORCHTITAN, "llama3-70b")
    kept = estimate_one(job, layout)
    let_go = estimate_one(
        replace(job, framework=replace(TORCHTITAN, keeps_gathered_stages=False)), layout
    )
    params = parameters(job, Layouts.of([layout]))
    assert kept.memory.gathered[0] == pytest.approx((params.dense * 6)[0])
    assert kept.memory.gathered[0] > 2 * let_go.memory.gathered[0]
    assert kept.times.shard_comms[0] <= let_go.times.shard_comms[0]
    alone = replace(layout, pp=1, dp=8, num_micro=8)
    assert (
        estimate_one(job, alone).memory.gathered[0]
        == estimate_one(
            replace(job, framework=replace(TORCHTITAN, keeps_gathered_stages=False)), alone
        ).memory.gathered[0]
    )


def test_megatron_leaves_stages_even_where_they_divide() -> None:
    layouts = Layouts.of([Layout(pp=2, dp=32), Layout(pp=4, dp=16), Layout(pp=32, dp=2)])
    even = fullest_stage(job_of(MEGATRON_CORE, "llama3-70b"), layouts)
    assert even.tolist()[:2] == [40, 20]
    by_cost = fullest_stage(job_of(NANOTRON, "llama3-70b"), layouts)
    assert (by_cost >= even).all()


def test_a_mixtures_fullest_stage_has_experts_in_every_layer() -> None:
    job = job_of(MEGATRON_CORE, "deepseek-v3")
    model = job.model
    assert model.experts is not None
    params = parameters(job, Layouts.of([Layout(pp=4, dp=16, ep=8)]))
    layers = np.ceil(fullest_stage(job, Layouts.of([Layout(pp=4, dp=16, ep=8)])))
    assert params.routed[0] == pytest.approx(
        float(layers[0]) * model.experts.num * model.expert_params / 8
    )


def test_the_stage_with_the_head_has_what_its_share_leaves() -> None:
    layouts = Layouts.of([Layout(pp=2, dp=32), Layout(pp=4, dp=16)])
    small = small_nanotron_job()
    assert last_stage(small, layouts, fullest_stage(small, layouts)).tolist() == [6, 1]
    even = job_of(MEGATRON_CORE, "llama3-70b")
    most = fullest_stage(even, layouts)
    assert last_stage(even, layouts, most).tolist() == most.tolist()


def test_the_first_stage_holds_less_than_the_one_with_the_logits() -> None:
    """A large micro-batch's logits fill the last one."""
    job = small_nanotron_job()
    layouts = Layouts.of([Layout(pp=2, dp=32, micro_batch=8)])
    params = parameters(job, layouts)
    first, fullest = memory(job, layouts, params, is_first=True), memory(job, layouts, params)
    assert first.logits[0] == 0 < fullest.logits[0]
    assert first.total[0] < fullest.total[0]


def test_a_step_fills_the_pipeline_where_the_engine_asks_for_it() -> None:
    layouts = Layouts.of([Layout(pp=4, num_micro=number) for number in (1, 2, 3, 4)])
    assert can_run(small_nanotron_job(), layouts).tolist() == [False, False, True, True]
    assert can_run(job_of(MEGATRON_CORE, "llama2-7b"), layouts).all()


def test_the_host_needs_longer_with_tensor_ranks_and_stages_in_several_nodes() -> None:
    """A layer of one micro-batch takes at least 9 to 116 ms (the ultra-scale sweep)."""
    job = small_nanotron_job()
    widths = (2, 4, 8, 16, 32)
    least = [
        layer_ms(job, Layout(tp=tp, pp=2, dp=32 // tp, is_sequence_parallel=True)) for tp in widths
    ]
    assert least == pytest.approx([9, 13, 21, 46, 116], rel=0.3)
    in_node = layer_ms(job, Layout(tp=4, pp=2, is_sequence_parallel=True))
    without = layer_ms(job, Layout(tp=4, dp=16, is_sequence_parallel=True))
    assert in_node == pytest.approx(without) == pytest.approx(4.5, rel=0.1)
    core = replace(job, framework=MEGATRON_CORE)
    assert layer_ms(core, Layout(tp=8, pp=2, dp=4, is_sequence_parallel=True)) < 5


def layer_ms(job: TrainingJob, layout: Layout) -> float:
    """The host's time for a layer of one micro-batch, there and back."""
    rates_there = rates_of(job.cluster, job.precision, job.constants, 2)
    assert rates_there is not None
    network = Network(job.cluster, job.constants)
    layer = layer_time(job, Layouts.of([layout]), rates_there, network, is_mixture=False)
    return float((layer.forward.host + layer.backward.host)[0]) * 1e3


def test_gathered_inputs_stay_reserved_where_the_host_is_ahead() -> None:
    job = small_nanotron_job()
    prompt = replace(job, framework=replace(NANOTRON, late_gathered=0.0))
    base = Layout(tp=8, dp=8, micro_batch=16, num_micro=4, is_sequence_parallel=True)
    gathered = 16 * job.seq_len * 7 / 8 * job.model.hidden * 2 * job.model.layers
    staged = replace(base, pp=2, dp=4, micro_batch=64)
    late = {
        replace(base, micro_batch=1): 0.0,
        base: 1.9 * gathered,
        # All forwards come first, or forwards and backwards take turns.
        replace(staged, num_micro=2): 0.0,
        replace(staged, num_micro=8): 4 * 1.9 * gathered,
    }
    for layout, wanted in late.items():
        assert slack_of(job, layout) - slack_of(prompt, layout) == pytest.approx(wanted, rel=0.35)


def test_backward_gathers_again_what_its_products_do_not_hide() -> None:
    """Behind products in a node, and past them over a network that waits at each step."""
    near = small_nanotron_job()
    far = replace(near, cluster=parse_cluster("8x8xH100@efa"))
    once = replace(far, framework=replace(NANOTRON, gathers_again=False))
    wide = Layout(tp=16, dp=4, is_sequence_parallel=True)
    assert tensor_s(far, wide) == pytest.approx(1.25 * tensor_s(once, wide), rel=0.05)
    roomy = Layout(tp=2, dp=32, micro_batch=8, is_sequence_parallel=True)
    assert tensor_s(near, roomy) == pytest.approx(
        tensor_s(replace(near, framework=once.framework), roomy), rel=0.05
    )


def tensor_s(job: TrainingJob, layout: Layout) -> float:
    return float(estimate_one(job, layout).times.tensor_comms[0])


@pytest.mark.parametrize(
    ("layout", "stalled_s"),
    [
        # The ultra-scale sweep, measured less planned: 0.66 s, 1.15 s and 1.4 s a micro-batch.
        (Layout(tp=16, pp=2, dp=16, num_micro=16), 0.57 * 16),
        (Layout(tp=16, pp=4, dp=8, num_micro=32), 1.15 * 32),
        (Layout(tp=8, pp=32, dp=2, num_micro=64), 1.4 * 64),
        (Layout(tp=32, pp=4, num_micro=32), 1.16 * 32),
        (Layout(tp=8, pp=4, dp=8, num_micro=32), 0.0),
        (Layout(tp=8, dp=64, num_micro=32), 0.0),
    ],
)
def test_sends_between_many_nodes_stall_under_nanotron(layout: Layout, stalled_s: float) -> None:
    job = replace(small_nanotron_job(), cluster=parse_cluster("64x8xH100@efa"))
    without = replace(job, framework=replace(NANOTRON, stalled_send_s=0.0))
    more = estimate_one(job, layout).step_s[0] - estimate_one(without, layout).step_s[0]
    assert more == pytest.approx(stalled_s, rel=0.06)
    core = replace(job, framework=MEGATRON_CORE)
    assert not has_stalled_sends(core, Layouts.of([layout])).any()


def test_nanotron_reduces_behind_backward_where_all_ranks_keep_gradients() -> None:
    """By its code: DDP's hook at stage 0, after backward at stage 1. On 32 nodes stage 1 takes
    0.27 s longer (the ultra-scale sweep, 8 billion parameters)."""
    job = replace(small_nanotron_job(), cluster=parse_cluster("32x8xH100@efa"))
    base = Layout(tp=8, dp=32, micro_batch=8, is_sequence_parallel=True)
    whole, split = (
        float(estimate_one(job, replace(base, zero_stage=stage)).times.data_comms[0])
        for stage in (0, 1)
    )
    assert whole < 0.4 * split


def test_only_rotated_models_keep_what_was_rotated() -> None:
    """Queries and keys once more; MPT's scores are biased instead."""
    biased = job_of(FSDP, "mpt-7b")
    rotated = replace(biased, model=replace(biased.model, is_rotated=True))
    layouts = Layouts.of([Layout(dp=64, zero_stage=3)])
    more = layer_bytes(rotated, layouts) - layer_bytes(biased, layouts)
    assert more[0] == biased.seq_len * 2 * biased.model.hidden * 2


def slack_of(job: TrainingJob, layout: Layout) -> float:
    layouts = Layouts.of([layout])
    held = memory(job, layouts, parameters(job, layouts), is_first=True)
    return float(np.broadcast_to(held.slack, 1)[0])


def small_nanotron_job() -> TrainingJob:
    return replace(
        job_of(NANOTRON, "llama2-7b"),
        model=replace(
            find_model("llama2-7b"), layers=16, hidden=2048, ffn_hidden=8192, vocab=131072,
            heads=32, kv_heads=32, head_dim=64, is_tied=True,
        ),
    )  # fmt: skip


def test_stages_filled_by_cost_cannot_be_more_than_the_head_leaves() -> None:
    # nanotron's build_model: a head worth 4 of 16 layers leaves the last of 16 stages empty.
    small = small_nanotron_job()
    layouts = Layouts.of([Layout(pp=number, num_micro=32) for number in (1, 2, 4, 8, 16)])
    assert can_run(small, layouts).tolist() == [True, True, True, True, False]
    assert can_run(replace(small, framework=MEGATRON_CORE), layouts).all()
    assert not can_run(small, Layouts.of([Layout(pp=32, num_micro=32)]))[0]


def test_the_head_stays_in_16_bits_where_layers_multiply_in_8() -> None:
    job = job_of(MEGATRON_CORE, "llama3-8b", "1x8xH100")
    layout = Layout(dp=8, zero_stage=1)
    narrow, plain = (
        estimate_one(replace(job, precision=precision), layout).times
        for precision in ("fp8", "bf16")
    )
    assert narrow.head == pytest.approx(plain.head)
    assert narrow.gemm < 0.7 * plain.gemm


def test_selective_recompute_frees_nothing_of_a_layer_without_experts() -> None:
    """Megatron-Core repeats attention there, whose kernel keeps no scores."""
    for model, is_less in (("llama3-8b", False), ("mixtral-8x7b", True)):
        job = job_of(MEGATRON_CORE, model, "1x8xH100")
        layouts = Layouts.of([Layout(dp=8, ep=1, recompute=kind) for kind in ("none", "selective")])
        kept, again = layer_bytes(job, layouts)
        assert (again < kept) == is_less
        slower = [float(estimate_one(job, layouts.layout(index)).step_s[0]) for index in (0, 1)]
        assert slower[1] > slower[0]


def exchange_s(job: TrainingJob) -> float:
    return float(estimate_one(job, Layout(dp=64, ep=64, zero_stage=1)).times.expert_comms[0])


def test_experts_in_few_groups_are_in_few_nodes() -> None:
    """DeepSeek-V3: 8 experts of a token in 4 of 8 groups, so in no more than 4 of 8 nodes."""
    job = job_of(replace(MEGATRON_CORE, sends_copies=False), "deepseek-v3", "8x8xH100")
    experts = job.model.experts
    assert experts is not None
    assert (experts.num_groups, experts.top_groups) == (8, 4)
    free = replace(job, model=replace(job.model, experts=replace(experts, num_groups=1)))
    reached, of_all = 4 * (1 - (3 / 4) ** 8), 8 * (1 - (7 / 8) ** 8)
    assert exchange_s(job) / exchange_s(free) == pytest.approx(reached / of_all, rel=0.03)


def test_tokens_are_put_into_order_once_where_the_sender_takes_them_as_they_lie() -> None:
    job = job_of(FSDP, "qwen3-30b-a3b", "1x8xH100")
    once = replace(job, framework=replace(FSDP, orders_once=True))
    layout = Layout(dp=8, ep=8, zero_stage=3)
    twice_s, once_s = (float(estimate_one(each, layout).times.stream[0]) for each in (job, once))
    assert once_s < 0.75 * twice_s


def test_weights_that_were_gathered_are_copied_out_under_fsdp2() -> None:
    """42 bytes of each parameter on one rank: planned without it, a step of this shape on an H200
    was 40 ms too short, head and embedding included."""
    model = replace(
        find_model("llama3-8b"), layers=28, hidden=3072, heads=24, kv_heads=8, ffn_hidden=8192
    )
    job = TrainingJob(
        model=model,
        cluster=parse_cluster("H200"),
        seq_len=2048,
        global_batch=4,
        framework=FSDP,
    )
    layout = Layout(micro_batch=4, zero_stage=3)
    assert estimate_one(job, layout).times.shard_comms[0] == pytest.approx(0.031, rel=0.03)
    viewed = replace(job, framework=replace(FSDP, copies_gathered=False))
    assert estimate_one(viewed, layout).times.shard_comms[0] == 0.0


def test_products_in_8_bits_write_what_they_read_once_more() -> None:
    job = job_of(MEGATRON_CORE, "llama3-8b", "1x8xH100")
    layout = Layout(dp=8, zero_stage=1)
    narrow, plain = (
        float(estimate_one(replace(job, precision=precision), layout).times.stream[0])
        for precision in ("fp8", "bf16")
    )
    assert 1.2 < narrow / plain < 1.8


def test_weights_of_products_in_eight_bits_are_gathered_so_by_torchao() -> None:
    """405B over 16 data ranks waits for its gathers, and half as much goes around."""
    job = TrainingJob(
        model=find_model("llama3-405b"), cluster=parse_cluster("16x8xH100"), seq_len=8192,
        global_batch=32, precision="fp8", framework=TORCHTITAN,
    )  # fmt: skip
    wide = replace(job, framework=replace(TORCHTITAN, gathers_narrow=False))
    layout = Layout(tp=8, dp=16, micro_batch=2, zero_stage=3, recompute="full",
                    is_sequence_parallel=True)  # fmt: skip
    narrow_s, wide_s = (
        float(estimate_one(each, layout).times.shard_comms[0]) for each in (job, wide)
    )
    assert narrow_s < 0.7 * wide_s
    in_16_bits = [replace(each, precision="bf16") for each in (job, wide)]
    assert len({float(estimate_one(each, layout).step_s[0]) for each in in_16_bits}) == 1
