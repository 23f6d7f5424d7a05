"""What layers with experts cost beyond their products."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.constants import DEFAULT
from stepscope.plan.estimate import estimate, estimate_one
from stepscope.plan.framework import MEGATRON_CORE, Framework
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import FEW, Layout, Layouts
from stepscope.plan.memory import layer_bytes
from stepscope.plan.network import Group, Network
from stepscope.plan.row_parts import framework_of
from stepscope.plan.rows import best_of, published_result

FAR = Layout(dp=64, ep=64, num_micro=4, zero_stage=1)


def job_of(model: str, cluster: str = "8x8xH100", **conventions: object) -> TrainingJob:
    framework: Framework = replace(MEGATRON_CORE, **conventions)  # type: ignore[arg-type]
    return TrainingJob(
        model=find_model(model),
        cluster=parse_cluster(cluster),
        seq_len=4096,
        global_batch=256,
        framework=framework,
    )


def exchange_s(job: TrainingJob, layout: Layout = FAR) -> float:
    return float(estimate_one(job, layout).times.expert_comms[0])


def test_copies_that_go_apart_each_cross_the_network() -> None:
    """Eight copies over eight nodes: seven leave, where a token that goes to a node once is drawn
    by 5.25 of them."""
    network = Network(parse_cluster("8x8xH100"), DEFAULT)
    once, apart = (
        float(network.scatter_all_s(Group(64, 1), 1e9, 8, is_apart=is_apart))
        for is_apart in (False, True)
    )
    assert apart / once == pytest.approx(1 / (1 - (7 / 8) ** 8), rel=0.01)
    assert apart == pytest.approx(7 * 1e9 / (50e9 * DEFAULT.exchange_share), rel=0.01)


def test_copies_that_go_apart_do_not_all_stay_in_the_node() -> None:
    network = Network(parse_cluster("1x8xH100"), DEFAULT)
    one, eight = (
        float(network.scatter_all_s(Group(8, 1), 1e9, num, is_apart=True)) for num in (1, 8)
    )
    assert eight / one == pytest.approx(8, rel=0.02)


def test_groups_of_experts_mean_nothing_to_copies_that_go_apart() -> None:
    job = job_of("deepseek-v3", sends_copies=True)
    experts = job.model.experts
    assert experts is not None
    free = replace(job, model=replace(job.model, experts=replace(experts, num_groups=1)))
    assert exchange_s(job) == exchange_s(free)


def test_an_exchange_behind_other_work_leaves_what_is_longer_than_the_work() -> None:
    open_s, behind_s = (
        exchange_s(job_of("qwen3-235b-a22b", overlaps_experts=is_behind))
        for is_behind in (False, True)
    )
    assert 0 < behind_s < 0.8 * open_s


@pytest.mark.parametrize(
    "layout",
    [
        replace(FAR, recompute="full"),
        replace(FAR, num_micro=1),
        Layout(pp=2, dp=32, ep=32, num_micro=8, zero_stage=1),
    ],
)
def test_an_exchange_has_nothing_to_run_behind(layout: Layout) -> None:
    """Without another micro-batch whose work is at hand: whole recomputation, one micro-batch, or
    stages that are not interleaved."""
    open_s, behind_s = (
        exchange_s(job_of("qwen3-235b-a22b", overlaps_experts=is_behind), layout)
        for is_behind in (False, True)
    )
    assert behind_s == open_s


def test_many_layouts_at_once_are_what_each_is_alone() -> None:
    """Layouts that cut a layer alike are computed once, and not all of them have work beside."""
    job = job_of("qwen3-235b-a22b", overlaps_experts=True)
    layouts = [
        Layout(pp=pp, vpp=vpp, dp=32 // pp, ep=8, num_micro=num, recompute=recompute, zero_stage=1)
        for pp in (1, 2)
        for vpp in ((1, 2) if pp > 1 else (1,))
        for num in (1, 8)
        for recompute in ("none", "full")
    ]
    many = Layouts.of(layouts * 8)
    assert len(many) > FEW
    together = estimate(job, many).step_s
    alone = [float(estimate_one(job, layout).step_s[0]) for layout in layouts]
    assert list(together) == pytest.approx(alone * 8)


def test_experts_with_biases_have_passes_of_their_own() -> None:
    """GPT-OSS: 28 + 38 bytes of a second product's output, 8 + 18 of a first's."""
    biased = job_of("gpt-oss-120b", "1x8xH100")
    plain = replace(biased, model=replace(biased.model, has_mlp_bias=False))
    layout = Layout(dp=8, ep=8, zero_stage=1)
    more_s = [float(estimate_one(job, layout).times.stream[0]) for job in (biased, plain)]
    rows = 4096 * 4 * 36
    moved = rows * (2880 * 66 + 5760 * 26)
    bandwidth = biased.cluster.bandwidth_bytes_per_s * DEFAULT.stream_share
    assert more_s[0] - more_s[1] == pytest.approx(moved / bandwidth, rel=0.01)


def test_experts_with_biases_are_not_fused() -> None:
    layout = Layout(dp=8, ep=8, zero_stage=1)
    gemm = [
        float(estimate_one(job_of("gpt-oss-120b", "B200", fuses_experts=fuses), layout).step_s[0])
        for fuses in (False, True)
    ]
    assert gemm[0] == gemm[1]


def bridge_row(**said: object) -> dict[str, object]:
    row: dict[str, object] = {
        "id": "a",
        "framework": "Megatron-Bridge 26.02 NeMo Container",
        "model": {"name": "qwen3-235b-a22b"},
        "seq_len": 4096,
        "global_batch": 8192,
        "cluster": {"gpu": "H100", "num_gpus": 256},
        "layout": {"tp": 2, "pp": 8, "vpp": 4, "ep": 32, "dp": 16, "micro_batch": 1},
    }
    return row | said


def test_bridge_keeps_gradients_in_bf16_and_overlaps_an_exchange_over_nodes() -> None:
    framework, _ = framework_of(bridge_row())
    assert (framework.grad_bytes, framework.comm_grad_bytes) == (2.0, 2.0)
    assert framework.sends_copies
    assert framework.overlaps_experts
    older, _ = framework_of(bridge_row(framework="Megatron-Bridge 25.09 NeMo Container"))
    assert not older.overlaps_experts


@pytest.mark.parametrize(
    "said",
    [
        {"cluster": {"gpu": "GB200", "num_gpus": 256}},
        {"model": {"name": "deepseek-v3"}},
    ],
)
def test_bridge_sends_a_token_once_in_a_rack_and_to_groups(said: dict[str, object]) -> None:
    framework, _ = framework_of(bridge_row(**said))
    assert not framework.sends_copies
    assert not framework.overlaps_experts


def test_bridge_overlaps_every_exchange_where_steps_are_graphs() -> None:
    name = "Megatron-Bridge 26.06 NeMo Container"
    graphs, _ = framework_of(bridge_row(framework=name, cluster={"gpu": "GB300", "num_gpus": 256}))
    assert graphs.overlaps_experts
    hopper, _ = framework_of(bridge_row(framework=name, layout={"pp": 1, "ep": 32}))
    assert not hopper.overlaps_experts


def test_a_mixture_that_does_not_say_so_is_not_recomputed_whole() -> None:
    """None of Megatron-Bridge's recipes for mixtures does; of its dense ones some do."""
    layout = {"pp": 2, "dp": 8, "micro_batch": 8}
    full = {}
    for name in ("qwen3-235b-a22b", "llama3-70b"):
        row = bridge_row(
            model={"name": name}, layout=layout, cluster={"gpu": "H100", "num_gpus": 16}
        )
        estimates, index = best_of(published_result(row))
        full[name] = int(estimates.layouts.recompute[index]) == 2
    assert full == {"qwen3-235b-a22b": False, "llama3-70b": True}
    told = published_result(bridge_row(layout=layout | {"recompute": "full"}))
    assert set(told.layouts.recompute) == {2}


def test_what_experts_give_is_kept_where_it_is_weighed_afterwards() -> None:
    layouts = Layouts.of([Layout(dp=8, ep=8)])
    inside, after = (
        float(layer_bytes(job_of("qwen3-30b-a3b", weighs_inside=is_inside), layouts)[0])
        for is_inside in (True, False)
    )
    assert after - inside == 4096 * 8 * 2048 * 2


def test_experts_keep_what_they_get_in_8_bits() -> None:
    layouts = Layouts.of([Layout(dp=8, ep=8)])
    job = job_of("qwen3-30b-a3b")
    wide, narrow = (
        float(layer_bytes(replace(job, precision=word), layouts)[0]) for word in ("bf16", "fp8")
    )
    less = wide - narrow
    q, width = 32 * 128, 8 * 768
    assert less == 4096 * (2 * 2048 + width + 8 * 2048 - q)


def narrowing_s(model: str, device: str, *, fuses: bool) -> float:
    """What a step's passes take longer in 8 bits."""
    job = job_of(model, device, fuses_experts=fuses)
    layout = Layout(dp=8, ep=8, zero_stage=1)
    wide, narrow = (
        float(estimate_one(replace(job, precision=word), layout).times.stream[0])
        for word in ("bf16", "fp8")
    )
    return narrow - wide


def test_experts_have_their_inputs_written_in_8_bits_for_each_token_of_theirs() -> None:
    """Qwen3-30B: 8 x 2,048 channels to the experts and as many gradients from them, where a layer
    without them has 2,048."""
    apart_s = narrowing_s("qwen3-30b-a3b", "B200", fuses=False)
    within_s = narrowing_s("qwen3-30b-a3b", "B200", fuses=True)
    each = 4 * (2 * 8 * 2048 + 3 * 8 * 768) * 4096 * 48
    bandwidth = parse_cluster("B200").bandwidth_bytes_per_s * DEFAULT.stream_share_blackwell
    assert apart_s - within_s == pytest.approx(each / bandwidth, rel=0.01)
    assert within_s > 0


def test_automodel_trains_without_a_copy_in_fp32() -> None:
    """Parameters in bf16 under PyTorch's Adam: 8 bytes of each, and half of an update's passes."""
    row = bridge_row(
        framework="FSDP2 (NeMo AutoModel)",
        model={"name": "gpt-oss-20b"},
        cluster={"gpu": "H100", "num_gpus": 8},
        layout={"ep": 8, "micro_batch": 2, "fsdp": "on", "recompute": "none"},
    )
    framework, _ = framework_of(row)
    assert framework.trains_narrow
    job = published_result(row).job
    layout = Layout(dp=8, ep=8, micro_batch=2, num_micro=4, zero_stage=3)
    narrow = estimate_one(job, layout)
    wide = estimate_one(replace(job, framework=replace(framework, trains_narrow=False)), layout)
    for name in ("weights", "gradients", "optimizer"):
        halves = getattr(wide.memory, name)[0] / getattr(narrow.memory, name)[0]
        assert halves == pytest.approx(2.0)
    assert narrow.times.optimizer[0] < wide.times.optimizer[0]
    states = narrow.memory.weights + narrow.memory.gradients + narrow.memory.optimizer
    assert states[0] * 8 / job.model.num_params == pytest.approx(8.0, rel=0.02)
