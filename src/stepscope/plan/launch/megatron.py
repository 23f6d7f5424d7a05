"""Megatron-LM: the flags of pretrain_gpt.py."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from stepscope.plan.choice import Choice
from stepscope.plan.contract.launch import LaunchFile
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.files import Launch, refuse, shell_file, torchrun_line
from stepscope.plan.layout import Layout
from stepscope.plan.model import Model

ARGUMENTS = "megatron-args.sh"
SCRIPT = "pretrain_gpt.py"
STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
OPTIMIZERS = {"adam": "adam", "sgd": "sgd", "momentum": "sgd"}
NOTE = (
    f"{ARGUMENTS} trains on mock data with a tokenizer of no text: put your --data-path, "
    "--tokenizer-type and learning rate in their place"
)
CHEAP_MODULES = ("layernorm", "moe_act")
"""What selective recomputation is planned as; without it Megatron repeats attention alone."""
Flags = Iterator[tuple[str, object]]


def megatron(job: TrainingJob, choice: Choice) -> Launch:
    """Arguments in a file of their own, sourced by the launch script."""
    layout = choice.layout
    refuse("megatron", layout, _reasons(job, layout))
    line = torchrun_line(job.cluster, SCRIPT, ('"${ARGUMENTS[@]}"',))
    lines = [
        'here="$(cd "$(dirname "$0")" && pwd)"',
        f'source "$here/{ARGUMENTS}"',
        *_environment(layout),
        'cd "${MEGATRON:?set MEGATRON to the folder of Megatron-LM}"',
        line,
    ]
    return Launch(
        target="megatron",
        layout=str(layout),
        command=line,
        files=(
            LaunchFile(name=ARGUMENTS, text=_array(job, layout)),
            shell_file(job, layout, lines),
        ),
        notes=(NOTE,),
    )


def _environment(layout: Layout) -> list[str]:
    # One connection keeps collectives ahead of the products they overlap with; FSDP needs several.
    if layout.zero_stage >= 2 or (layout.tp == 1 and layout.cp == 1):
        return []
    return ["export CUDA_DEVICE_MAX_CONNECTIONS=1"]


def _reasons(job: TrainingJob, layout: Layout) -> list[str]:
    model, reasons = job.model, []
    if layout.schedule != "1f1b":
        reasons.append(f"{layout.schedule} is not among its schedules, 1f1b is")
    if layout.offload in ("all", "nvme"):
        reasons.append("it offloads the optimizer's states alone")
    if layout.pp > 1 and model.layers % (layout.pp * layout.vpp):
        reasons.append(
            f"{model.layers} layers do not divide into {layout.pp * layout.vpp} pieces, and how to "
            "share them out unevenly has flags of its own"
        )
    if layout.zero_stage >= 2 and layout.pp > 1:
        reasons.append(f"Megatron-FSDP (z{layout.zero_stage}) under a pipeline is not written here")
    if layout.vpp > 1 and model.layers // (layout.pp * layout.vpp) % layout.recompute_every:
        reasons.append(f"a checkpoint every {layout.recompute_every} layers leaves a rest")
    if layout.recompute_layers % layout.vpp:
        reasons.append(
            f"{layout.recompute_layers} recomputed layers do not divide by {layout.vpp} pieces of "
            "a stage"
        )
    if 0 < layout.shard < layout.dp * layout.cp:
        reasons.append(f"copies of {layout.shard} ranks (HSDP) are not written here")
    return reasons + lacking(job)


def lacking(job: TrainingJob) -> list[str]:
    """What no layout of the job changes."""
    model, reasons = job.model, []
    if job.precision not in ("bf16", "fp16", "fp8", "fp32"):
        reasons.append(f"{job.precision} products have no flag that is written here")
    if job.optimizer.name not in OPTIMIZERS:
        reasons.append(f"{job.optimizer.name} is not written here, {', '.join(OPTIMIZERS)} are")
    if job.is_adapter:
        reasons.append("adapters are not in pretrain_gpt.py")
    if not model.is_causal:
        reasons.append(f"{model.name} is an encoder and pretrain_gpt.py trains decoders")
    if not model.is_rotated and not model.max_positions:
        reasons.append(f"{model.name}'s positions are biases of the scores, which it has not")
    if model.num_sinks or model.window or model.is_parallel or model.embedding_hidden:
        reasons.append(f"{model.name}'s attention or embedding has no flags that are written here")
    return reasons


def flags(job: TrainingJob, layout: Layout) -> Flags:
    """Every flag with its value; True is a flag without one."""
    yield from _layout_flags(job, layout)
    yield from _model_flags(job.model, job.seq_len)
    yield from _precision_flags(job)


def _layout_flags(job: TrainingJob, layout: Layout) -> Flags:
    yield "tensor-model-parallel-size", layout.tp
    yield "pipeline-model-parallel-size", layout.pp
    if layout.vpp > 1:
        yield "num-virtual-stages-per-pipeline-rank", layout.vpp
    yield "context-parallel-size", layout.cp
    if layout.ep > 1:
        yield "expert-model-parallel-size", layout.ep
    if layout.is_sequence_parallel:
        yield "sequence-parallel", True
    yield "micro-batch-size", layout.micro_batch
    yield "global-batch-size", job.global_batch
    if layout.zero_stage in STRATEGIES:
        yield "use-megatron-fsdp", True
        yield "data-parallel-sharding-strategy", STRATEGIES[layout.zero_stage]
        yield "ckpt-format", "fsdp_dtensor"
        yield "no-gradient-accumulation-fusion", True
    elif layout.zero_stage == 1:
        yield "use-distributed-optimizer", True
    if layout.dp * layout.cp > 1:
        yield "overlap-grad-reduce", True
        if layout.zero_stage:
            yield "overlap-param-gather", True
    if job.framework.comm_grad_bytes == 2.0:
        yield "grad-reduce-in-bf16", True
    if layout.is_sequence_parallel and job.framework.overlaps_tensor:
        yield "tp-comm-overlap", True
    yield from _recompute_flags(job.model, layout)
    if layout.offload == "optimizer":
        yield "optimizer-cpu-offload", True
    yield "attention-backend", "flash" if layout.is_flash else "unfused"


def _recompute_flags(model: Model, layout: Layout) -> Flags:
    if layout.recompute != "none":
        yield "recompute-granularity", layout.recompute
    if layout.recompute == "full" and layout.recompute_layers:
        # Counted for each piece of a stage.
        yield "recompute-method", "block"
        yield "recompute-num-layers", layout.recompute_layers // layout.vpp
    elif layout.recompute == "full":
        yield "recompute-method", "uniform"
        yield "recompute-num-layers", layout.recompute_every
    elif layout.recompute == "selective" and model.experts is not None:
        yield "recompute-modules", CHEAP_MODULES


def _model_flags(model: Model, seq_len: int) -> Flags:
    yield "num-layers", model.layers
    yield "hidden-size", model.hidden
    yield "ffn-hidden-size", model.ffn_hidden
    yield "num-attention-heads", model.heads
    if model.latent is None:
        yield "kv-channels", model.head_dim
        if model.kv_heads != model.heads:
            yield "group-query-attention", True
            yield "num-query-groups", model.kv_heads
    yield "seq-length", seq_len
    yield "max-position-embeddings", max(model.max_positions, seq_len)
    yield "position-embedding-type", "learned_absolute" if model.max_positions else "rope"
    yield "normalization", "LayerNorm" if model.norm_size == 2 else "RMSNorm"
    if model.is_gated:
        yield "swiglu", True
    if not model.is_tied:
        yield "untie-embeddings-and-output-weights", True
    if not (model.has_out_bias or model.has_mlp_bias):
        yield "disable-bias-linear", True
        if model.has_qkv_bias:
            yield "add-qkv-bias", True
    if model.has_qk_norm or model.qk_norm_params:
        yield "qk-layernorm", True
    yield from _expert_flags(model)
    yield "vocab-size", model.vocab
    yield "tokenizer-type", "NullTokenizer"
    yield "mock-data", True
    yield "train-iters", 50
    yield "lr", 3e-4


def _expert_flags(model: Model) -> Flags:
    experts, latent = model.experts, model.latent
    if experts is not None:
        yield "num-experts", experts.num
        yield "moe-router-topk", experts.top_k
        yield "moe-ffn-hidden-size", experts.ffn_hidden
        yield "moe-grouped-gemm", True
        yield "moe-token-dispatcher-type", "alltoall"
        if experts.shared_ffn_hidden:
            yield "moe-shared-expert-intermediate-size", experts.shared_ffn_hidden
        if experts.num_dense_layers:
            dense, mixed = experts.num_dense_layers, model.layers - experts.num_dense_layers
            yield "moe-layer-freq", f"([0]*{dense}+[1]*{mixed})"
    if latent is not None:
        yield "multi-latent-attention", True
        if latent.q_rank is not None:
            yield "q-lora-rank", latent.q_rank
        yield "kv-lora-rank", latent.kv_rank
        yield "qk-head-dim", latent.nope_dim
        yield "qk-pos-emb-head-dim", latent.rope_dim
        yield "v-head-dim", latent.v_dim


def _precision_flags(job: TrainingJob) -> Flags:
    if job.precision in ("bf16", "fp8"):
        yield "bf16", True
    if job.precision == "fp16":
        yield "fp16", True
    if job.precision == "fp8":
        yield "fp8-format", "hybrid"
    yield "optimizer", OPTIMIZERS[job.optimizer.name]
    if job.optimizer.name == "sgd":
        # Its own is 0.9.
        yield "sgd-momentum", 0.0


def _array(job: TrainingJob, layout: Layout) -> str:
    lines = [
        f"  --{name}" if value is True else f"  --{name} {_quoted(value)}"
        for name, value in flags(job, layout)
    ]
    return "\n".join(["# Sourced by launch.sh.", "ARGUMENTS=(", *lines, ")", ""])


def _quoted(value: object) -> str:
    words = value if isinstance(value, tuple) else (value,)
    return " ".join(shlex.quote(str(word)) for word in words)
