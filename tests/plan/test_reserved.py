"""What PyTorch's allocator reserves beyond the tensors, beside steps that ran on an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.constants import DEFAULT
from stepscope.plan.estimate import estimate_one
from stepscope.plan.framework import DDP, FSDP
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout
from stepscope.plan.learn import with_factors
from stepscope.plan.model import Model
from stepscope.plan.search import least_memory

GIB = 2**30
WAYS = {
    "plain": replace(DDP, has_fused_update=True),
    "checkpointed": replace(DDP, has_fused_update=True),
    "fsdp": replace(FSDP, has_fused_update=True, attention=DDP.attention),
    "fp8": replace(DDP, has_fused_update=True, fuses=True, is_compiled=True),
}
# Layers, hidden, heads, key and value heads, MLP, vocabulary; tokens, sequences; and in GiB what
# was allocated and reserved (docs/planner.md).
MEASURED = (
    ("plain", (28, 1536, 12, 2, 8960, 151936), 4096, 4, 95.2, 105.6),
    ("plain", (22, 2048, 32, 4, 5632, 32000), 4096, 4, 49.8, 53.0),
    ("fsdp", (28, 3072, 24, 8, 8192, 128256), 2048, 4, 78.2, 99.5),
    ("fsdp", (16, 4096, 32, 8, 14336, 32000), 4096, 2, 67.3, 83.5),
    ("checkpointed", (32, 3072, 32, 32, 8192, 32064), 8192, 2, 59.4, 65.3),
    ("checkpointed", (36, 2048, 16, 2, 11008, 151936), 4096, 4, 71.1, 85.4),
    ("fp8", (12, 3584, 28, 4, 18944, 152064), 4096, 2, 77.0, 80.5),
    ("fp8", (12, 4096, 32, 8, 14336, 128256), 8192, 1, 70.5, 74.3),
)


def job_of(way: str, shape: tuple[int, ...], length: int, batch: int) -> TrainingJob:
    layers, hidden, heads, kv_heads, ffn_hidden, vocab = shape
    return TrainingJob(
        model=Model(
            name="llama", layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads,
            ffn_hidden=ffn_hidden, vocab=vocab, head_dim=hidden // heads,
        ),
        cluster=parse_cluster("H200"),
        seq_len=length,
        global_batch=batch,
        precision="fp8" if way == "fp8" else "bf16",
        framework=WAYS[way],
    )  # fmt: skip


def held(job: TrainingJob, way: str, micro_batch: int) -> dict[str, float]:
    layout = Layout(
        micro_batch=micro_batch,
        zero_stage=3 if way == "fsdp" else 0,
        recompute="full" if way == "checkpointed" else "none",
    )
    memory = estimate_one(job, layout).memory
    parts = {name: float(value[0]) for name, value in memory.parts.items()}
    return parts | {
        "allocated": float(memory.allocated[0]),
        "reserved": float(memory.reserved[0]),
    }


@pytest.mark.parametrize(("way", "shape", "length", "batch", "allocated", "reserved"), MEASURED)
def test_reserved_memory_is_near_what_a_step_had(
    way: str,
    shape: tuple[int, ...],
    length: int,
    batch: int,
    allocated: float,
    reserved: float,
) -> None:
    found = held(job_of(way, shape, length, batch), way, batch)
    assert found["allocated"] / GIB == pytest.approx(allocated, rel=0.06)
    assert found["reserved"] / GIB == pytest.approx(reserved, rel=0.06)


def test_fsdp_reserves_gradients_that_activations_cannot_use() -> None:
    """They are made on a stream of their own; plain PyTorch puts them where activations were."""
    _, shape, length, batch, *_ = MEASURED[3]
    job = job_of("fsdp", shape, length, batch)
    found = held(job, "fsdp", batch)
    assert found["gradients"] == 0
    assert found["slack"] > found["weights"]  # Both in fp32.
    one_stream = replace(job, framework=replace(job.framework, has_grad_stream=False))
    assert held(one_stream, "fsdp", batch)["slack"] < 0.4 * found["slack"]


def test_logits_leave_a_block_that_their_gradients_do_not_fit_into() -> None:
    way, shape, length, batch, *_ = MEASURED[5]
    job = job_of(way, shape, length, batch)
    kept = replace(job, framework=replace(job.framework, idle_logit_bytes=0.0))
    more = held(job, way, batch)["slack"] - held(kept, way, batch)["slack"]
    assert more == 2.0 * length * batch * 151936


def test_few_tokens_leave_no_block_for_gradients() -> None:
    """A matrix of the MLP in fp32 is larger than any activation: 4 x 4,096 bytes to 2 x 4,096."""
    shape = (16, 4096, 32, 8, 11264, 50304)
    few = held(job_of("plain", shape, 4096, 1), "plain", 1)
    many = held(job_of("plain", shape, 4096, 2), "plain", 2)
    assert few["slack"] > 1.4 * many["slack"]


def test_gradients_stand_beside_the_first_layer_that_is_recomputed() -> None:
    """At the end of backward all are there, and one layer's activations are too."""
    way, shape, length, batch, *_ = MEASURED[4]
    found = held(job_of(way, shape, length, batch), way, batch)
    parameters = found["optimizer"] / 8
    assert found["allocated"] > (16 * parameters) * 1.02


def test_the_least_memory_may_have_one_micro_batch_instead_of_two() -> None:
    """Two add their gradients up, which stay while the second one runs."""
    job = job_of("plain", (16, 4096, 32, 8, 14336, 32000), 512, 2)
    least = least_memory(job)
    assert least is not None
    assert (least.layout.micro_batch, least.layout.num_micro) == (2, 1)


def test_memory_of_a_run_recalibrates_plain_pytorch() -> None:
    way, shape, length, batch, *_ = MEASURED[1]
    job = job_of(way, shape, length, batch)
    learned = replace(job, constants=with_factors(DEFAULT, {"memory": 1.2}))
    ratio = held(learned, way, batch)["reserved"] / held(job, way, batch)["reserved"]
    assert ratio > 1.1
