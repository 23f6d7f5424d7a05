"""The questions people bring, against bounds that need no planner."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from stepscope.errors import UsageError
from stepscope.plan.catalog import find_model, scaled_model
from stepscope.plan.cluster import resized
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.estimate import Choice, choice_of
from stepscope.plan.framework import (
    DEEPSPEED,
    FSDP,
    GRADS,
    MEGATRON,
    Framework,
    find_framework,
    grads_setting,
    with_grads,
)
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import OFFLOAD, TO_HOST, Layout, Layouts
from stepscope.plan.memory import host_bytes
from stepscope.plan.parameters import parameters
from stepscope.plan.search import search
from stepscope.plan.space import Space
from stepscope.plan.what_if import (
    Change,
    budget,
    changed_job,
    fastest,
    fitting,
    largest_model,
    parse_change,
    scaling,
    smallest_cluster,
)

GIB = 2**30
STATE_BYTES = 16
"""Of a parameter in training with Adam and mixed precision, the least that any framework here
keeps."""


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


def at_peak_s(job: TrainingJob) -> float:
    """Seconds of a step if every device ran at its peak: six operations for each weight and token,
    attention left out."""
    body = job.model.active_params - job.model.embedding_params
    return 6 * body * job.tokens / (job.cluster.num_devices * job.cluster.peak_flops[job.precision])


LLAMA_70B = job_of("llama3-70b", "8x8xH100", 8192, 1024)


# What the issue names.


def test_7b_is_fine_tuned_on_four_a100s() -> None:
    job = job_of("llama2-7b", "4xA100", 4096, 64)
    choice = fastest(job)
    assert choice is not None
    assert at_peak_s(job) < choice.step_s < 4 * at_peak_s(job)
    assert STATE_BYTES * job.model.num_params / 4 < choice.memory_bytes <= job.cluster.memory_bytes
    # On one it needs offload or adapters.
    alone = replace(job, cluster=resized(job.cluster, 1))
    assert fitting(alone) is None
    assert fitting(alone, Space(offload=OFFLOAD)) is not None
    assert fitting(replace(alone, is_adapter=True)) is not None


def test_70b_is_pre_trained_on_64_h100s() -> None:
    found = search(LLAMA_70B)
    assert at_peak_s(LLAMA_70B) < found.best[0].step_s < 3.5 * at_peak_s(LLAMA_70B)
    assert 0.3 < found.best[0].mfu < 0.8
    for each in found.best:
        # Weights in 16 bits are not kept whole on a device of 80 GiB, so something cuts them.
        assert each.layout.tp * each.layout.pp > 1 or each.layout.zero_stage == 3
        assert each.layout.num_devices == 64
        assert each.layout.global_batch == 1024


def test_10b_goes_on_two_rtx_3090_only_with_offload() -> None:
    job = job_of("10b", "2xRTX3090", 2048, 16, precision="fp16", framework=FSDP)
    roomy = replace(job, cluster=replace(job.cluster, host_memory_bytes=256 * GIB))
    assert STATE_BYTES * job.model.num_params > 2 * job.cluster.memory_bytes
    assert fitting(roomy) is None
    choice = fastest(roomy, Space(offload=TO_HOST))
    assert choice is not None
    assert choice.layout.offload != "none"
    assert choice.step_s > at_peak_s(job)
    poor = replace(job, cluster=replace(job.cluster, host_memory_bytes=32 * GIB))
    assert fitting(poor, Space(offload=TO_HOST)) is None


@pytest.mark.parametrize("framework", [FSDP, DEEPSPEED])
def test_13b_is_trained_on_one_card_of_24_gb(framework: Framework) -> None:
    """Gradients leave during backward: there is never more than a layer's of them on the card."""
    job = job_of("13b", "1xRTX4090", 2048, 8, framework=framework)
    choice = fastest(job, Space(offload=TO_HOST))
    assert choice is not None
    assert choice.layout.zero_stage >= 2
    assert choice.memory["gradients"] == 0
    assert choice.memory_bytes < job.cluster.usable_bytes < 2 * job.model.num_params
    staying = replace(job, framework=replace(framework, frees_offloaded=False))
    kept = choice_of(staying, choice.layout)
    assert kept.memory["gradients"] > 1.99 * job.model.num_params
    # Of one micro-batch the same crosses, then behind backward.
    assert kept.times["offload"] >= choice.times["offload"]


def test_gradients_in_16_bits_are_half_as_large_where_a_framework_keeps_them_so() -> None:
    job = job_of("llama2-7b", "4xA100-80GB", 4096, 16)
    for name, stage in (("megatron-core", 1), ("deepspeed", 1), ("fsdp", 2), ("torchtitan", 3)):
        framework = find_framework(name)
        assert framework is not None
        layout = Layout(dp=4, num_micro=4, zero_stage=stage)
        narrow, wide = (
            choice_of(replace(job, framework=with_grads(framework, width)), layout).memory
            for width in GRADS
        )
        parts = 4 if stage > 1 else 1
        assert narrow["gradients"] == pytest.approx(2 * job.model.num_params / parts, rel=0.01)
        assert wide["gradients"] >= 2 * narrow["gradients"]
        assert narrow["optimizer"] <= wide["optimizer"]
        assert grads_setting(framework, "bf16")
    changed = changed_job(job, parse_change("framework=deepspeed,grads=fp32"))
    assert changed.framework.extra_grad_bytes == 4.0
    with pytest.raises(UsageError, match="ddp keeps no gradients in bf16; deepspeed, "):
        changed_job(job, parse_change("framework=ddp,grads=bf16"))
    with pytest.raises(UsageError, match="bf16 or fp32"):
        parse_change("grads=int8")


def test_disks_hold_what_the_host_does_not() -> None:
    """As ZeRO-Infinity does: states pass through the host a piece at a time, at the disks' rate."""
    job = job_of("70b", "1x4xRTX4090", 2048, 8, framework=DEEPSPEED)
    poor = replace(job, cluster=replace(job.cluster, host_memory_bytes=256 * GIB))
    assert fastest(poor, Space(offload=TO_HOST)) is None
    choice = fastest(poor, Space(offload=OFFLOAD))
    assert choice is not None
    assert choice.layout.offload == "nvme"
    # Copy and moments out and in, weights out: of all devices over one node's disks.
    least_s = (2 * 12 + 2) * job.model.num_params / job.cluster.disk_bytes_per_s
    assert choice.times["offload"] > least_s
    quick = replace(poor, cluster=replace(poor.cluster, disk_bytes_per_s=50e9))
    assert choice_of(quick, choice.layout).times["offload"] < choice.times["offload"]
    # The gradients alone are in the host's memory.
    layouts = Layouts.of([choice.layout])
    held = float(host_bytes(poor, layouts, parameters(poor, layouts))[0])
    assert held == pytest.approx(2 * job.model.num_params, rel=0.01)


THEN = Space(
    recompute=("full",),
    is_flash=(False,),
    schedule=("1f1b",),
    vpp=(1,),
    zero_stage=(0,),
    is_sequence_parallel=(False,),
    cp=(1,),
)


@pytest.mark.parametrize(("num_devices", "tflops"), [(384, 153), (768, 149), (1536, 141)])
def test_175b_under_the_constraints_of_2021_has_its_published_layout_near_the_top(
    num_devices: int, tflops: float
) -> None:
    """Narayanan et al. 2021, Table 2: tp8, pp12, a batch of 1536, so many TFLOP/s a device,
    recomputation counted."""
    job = job_of(
        "gpt3-175b", f"{num_devices // 8}x8xA100", 2048, 1536, precision="fp16", framework=MEGATRON
    )
    published = Layout(
        tp=8,
        pp=12,
        dp=num_devices // 96,
        num_micro=1536 * 96 // num_devices,
        recompute="full",
        is_flash=False,
    )
    found, step_s = search(job, THEN), choice_of(job, published).step_s
    # The paper's own count of operations, formula 3.
    layers, hidden, vocab = 96, 12288, 51200
    flops = (
        96
        * job.tokens
        * layers
        * hidden**2
        * (1 + 2048 / (6 * hidden) + vocab / (16 * layers * hidden))
    )
    assert choice_of(job, published).memory_bytes <= job.cluster.usable_bytes
    assert step_s == pytest.approx(flops / (num_devices * tflops * 1e12), rel=0.1)
    assert step_s < 1.15 * found.best[0].step_s
    # Without them, one is found that needs much less.
    free = fastest(replace(job, framework=LLAMA_70B.framework, precision="bf16"))
    assert free is not None
    assert free.step_s < 0.8 * step_s


# The largest model.


def test_the_largest_model_fits_and_a_little_more_does_not() -> None:
    job = job_of("7b", "8xA100", 2048, 512)
    found = largest_model(job)
    assert found.model is not None
    assert found.choice is not None
    room = job.cluster.num_devices * job.cluster.memory_bytes
    assert 0.5 * room < STATE_BYTES * found.model.num_params < room
    assert found.choice.memory_bytes <= job.cluster.memory_bytes
    assert fitting(replace(job, model=scaled_model(1.1 * found.model.num_params))) is None
    assert found.named is not None
    assert fitting(replace(job, model=found.named)) is not None


def test_more_devices_and_offload_make_room() -> None:
    job = job_of("7b", "2xRTX3090", 2048, 16, precision="fp16")
    sizes = [
        largest_model(replace(job, cluster=resized(job.cluster, num)), space).model
        for num, space in ((2, Space()), (4, Space()), (2, Space(offload=OFFLOAD)))
    ]
    two, four, offloaded = (0 if model is None else model.num_params for model in sizes)
    assert 0 < two < four
    assert two < offloaded


def test_nothing_fits_where_the_driver_fills_the_device() -> None:
    job = job_of("7b", "1xA100", 2048, 8)
    tiny = replace(job, cluster=replace(job.cluster, memory_bytes=1e8))
    found = largest_model(tiny)
    assert (found.model, found.choice, found.named) == (None, None, None)


# The smallest cluster.


@pytest.mark.parametrize(
    ("model", "cluster", "seq_len", "batch"),
    [
        ("llama2-7b", "8xA100", 4096, 64),
        ("llama3-70b", "8xH100", 8192, 1024),
        ("gpt3-175b", "1024xA100", 2048, 1536),
    ],
)
def test_the_smallest_cluster_holds_it_and_the_next_smaller_does_not(
    model: str, cluster: str, seq_len: int, batch: int
) -> None:
    job = job_of(model, cluster, seq_len, batch)
    found = smallest_cluster(job)
    assert found is not None
    assert found.num_devices * job.cluster.memory_bytes > STATE_BYTES * job.model.num_params
    assert found.num_devices * job.cluster.memory_bytes < 3 * STATE_BYTES * job.model.num_params
    per_node = job.cluster.devices_per_node
    assert found.num_devices % per_node == 0 or per_node % found.num_devices == 0
    smaller = (
        found.num_devices - per_node if found.num_devices > per_node else found.num_devices // 2
    )
    assert fitting(replace(job, cluster=resized(job.cluster, smaller))) is None
    assert found.choice.layout.num_devices == found.num_devices == found.job.cluster.num_devices
    assert found.least.memory_bytes <= found.choice.memory_bytes <= job.cluster.memory_bytes


def test_experts_count_once_in_the_smallest_cluster() -> None:
    job = job_of("mixtral-8x7b", "8xA100", 4096, 256)
    found = smallest_cluster(job)
    assert found is not None
    assert found.num_devices * job.cluster.memory_bytes > STATE_BYTES * job.model.num_params


def test_no_cluster_may_be_large_enough() -> None:
    assert smallest_cluster(job_of("gpt3-175b", "8xA100", 2048, 1536), most_nodes=2) is None


# Scaling.


def test_a_scaling_curve_falls_and_loses_little() -> None:
    points = scaling(LLAMA_70B, Space(), [8, 32, 64, 128, 256])
    assert points[0].choice is None
    choices = [each.choice for each in points[1:] if each.choice is not None]
    assert len(choices) == 4
    assert all(later.step_s < before.step_s for before, later in itertools.pairwise(choices))
    device_s = [choice.step_s * choice.layout.num_devices for choice in choices]
    assert [choice.layout.num_devices for choice in choices] == [32, 64, 128, 256]
    # On 32 memory leaves only cuts that cost more: wider ones gain before they lose.
    assert device_s[1] < device_s[0]
    assert all(0.7 < device_s[1] / each <= 1.01 for each in device_s)


# What if.


def test_changes_are_read_and_made() -> None:
    change = parse_change("device=B200, network=2x, batch=1/2,seq=0.5,nodes=2,precision=fp8")
    assert change == Change(
        words=change.words, device="B200", network=2.0, batch=0.5, seq=0.5, nodes=2.0,
        precision="fp8",
    )  # fmt: skip
    assert change.words.split(", ") == [
        "device B200", "precision fp8", "network x 2", "batch x 0.5", "seq x 0.5", "nodes x 2",
    ]  # fmt: skip
    job = changed_job(LLAMA_70B, change)
    assert (job.global_batch, job.seq_len, job.precision, job.cluster.num_devices) == (
        512,
        4096,
        "fp8",
        128,
    )
    assert "B200" in job.cluster.device.name
    usual = changed_job(LLAMA_70B, parse_change("device=B200")).cluster
    assert job.cluster.tiers[-1].bytes_per_s == 2 * usual.tiers[-1].bytes_per_s
    assert job.cluster.tiers[0].bytes_per_s == usual.tiers[0].bytes_per_s


@pytest.mark.parametrize(
    "word",
    [
        "",
        "batch",
        "batch=",
        "batch=0",
        "batch=-1",
        "batch=1/0",
        "speed=2",
        "batch=2,batch=2",
        "precision=fp3",
        "network=\x1b",
    ],
)
def test_a_change_that_makes_no_sense_says_so(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_change(word)
    assert str(caught.value).isprintable()


def test_a_change_that_cannot_be_made_says_so() -> None:
    with pytest.raises(UsageError, match="whole number"):
        changed_job(LLAMA_70B, parse_change("batch=0.3"))
    with pytest.raises(UsageError, match="no unit for fp8"):
        changed_job(LLAMA_70B, parse_change("device=A100,precision=fp8"))


def test_the_next_generation_and_a_faster_network_help_and_half_the_batch_does_not() -> None:
    words = ("device=B200", "network=2", "batch=1/2")
    jobs = [changed_job(LLAMA_70B, parse_change(word)) for word in words]
    found = [fastest(job) for job in jobs]
    before = fastest(LLAMA_70B)
    assert before is not None
    device, network, batch = (
        each.tokens_per_s / before.tokens_per_s for each in found if each is not None
    )
    peaks = [job.cluster.peak_flops["bf16"] for job in (jobs[0], LLAMA_70B)]
    assert 1.3 < device < 2.5 * peaks[0] / peaks[1]
    assert 1.0 <= network < 1.5
    assert 0.7 < batch <= 1.001


# Time and cost.


def test_a_budget_is_steps_times_devices() -> None:
    cluster = replace(LLAMA_70B.cluster, price_per_hour=2.0, power_w=1000.0)
    job = replace(LLAMA_70B, cluster=cluster)
    choice = Choice(
        layout=Layout(dp=64, num_micro=16),
        step_s=90.0,
        memory_bytes=1.0,
        tokens_per_s_per_device=1.0,
        mfu=0.4,
        times={},
        memory={},
    )
    found = budget(job, choice, 1e12)
    # A step is 8,388,608 tokens: 119,210 of them, 90 s each, on 64 devices.
    assert found.num_steps == 119_210
    assert found.days == pytest.approx(119_210 * 90 / 86400)
    assert found.device_hours == pytest.approx(119_210 * 90 * 64 / 3600)
    assert found.cost == pytest.approx(2 * found.device_hours)
    assert found.energy_kwh == pytest.approx(found.device_hours)
    unknown = budget(
        replace(job, cluster=replace(cluster, price_per_hour=None, power_w=None)), choice, 1e12
    )
    assert (unknown.cost, unknown.energy_kwh) == (None, None)
    with pytest.raises(UsageError):
        budget(job, choice, 0)


@pytest.mark.parametrize("cluster", ["1xH100", "1xRTX3090", "1xMI300X"])
def test_405b_on_a_single_card_gets_a_count_in_whole_nodes(cluster: str) -> None:
    job = job_of("llama3-405b", cluster, 4096, 8)
    assert fitting(job) is None
    smallest = smallest_cluster(job)
    assert smallest is not None
    per_node = smallest.job.cluster.devices_per_node
    assert per_node in (4, 8)
    assert smallest.num_devices % per_node == 0
    assert smallest.num_devices * job.cluster.memory_bytes > STATE_BYTES * job.model.num_params
