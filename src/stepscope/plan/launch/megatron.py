"""Megatron-LM: the flags of pretrain_gpt.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from stepscope.plan.estimate import Choice
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.files import (
    FlagPairs,
    Launch,
    arguments_file,
    refuse,
    shell_file,
    torchrun_line,
)
from stepscope.plan.launch.flags import Flags
from stepscope.plan.launch.settings import MAX_COUNT, Counts, Settings
from stepscope.plan.layout import Layout
from stepscope.plan.model import Experts, Latent, Model, has_windows
from stepscope.plan.parameters import layers_by_piece
from stepscope.protocol.untrusted import whole_text

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
            arguments_file(ARGUMENTS, flags(job, layout)),
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
    reasons = []
    if layout.schedule != "1f1b":
        reasons.append(f"{layout.schedule} is not among its schedules, 1f1b is")
    if layout.offload in ("all", "nvme"):
        reasons.append("it offloads the optimizer's states alone")
    if layout.zero_stage >= 2 and layout.pp > 1:
        reasons.append(f"Megatron-FSDP (z{layout.zero_stage}) under a pipeline is not written here")
    if any(each % layout.recompute_every for each in layers_by_piece(job, layout)):
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
    is_windowed = has_windows(model, job.seq_len)
    if model.num_sinks or is_windowed or model.is_parallel or model.embedding_hidden:
        reasons.append(f"{model.name}'s attention or embedding has no flags that are written here")
    return reasons


def flags(job: TrainingJob, layout: Layout) -> FlagPairs:
    """Every flag with its value; True is a flag without one."""
    yield from _layout_flags(job, layout)
    yield from _model_flags(job.model, job.seq_len)
    yield from _precision_flags(job)


def _layout_flags(job: TrainingJob, layout: Layout) -> FlagPairs:
    yield "tensor-model-parallel-size", layout.tp
    yield "pipeline-model-parallel-size", layout.pp
    if job.model.layers % (layout.pp * layout.vpp):
        # It has the pieces of all stages, and so how many a stage has.
        yield SHARED_OUT[0], _pieces_text(layers_by_piece(job, layout))
    elif layout.vpp > 1:
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


def _pieces_text(pieces: Sequence[int]) -> str:
    """Megatron-Core's words for unequal pieces: the embedding, layers, the loss."""
    first, *middle, last = (f"t*{num}" if num else "" for num in pieces)
    return "|".join([f"E{first}", *middle, f"{last}L"])


def _recompute_flags(model: Model, layout: Layout) -> FlagPairs:
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


def _model_flags(model: Model, seq_len: int) -> FlagPairs:
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


def _expert_flags(model: Model) -> FlagPairs:
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


def _precision_flags(job: TrainingJob) -> FlagPairs:
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


_REPEATED = re.compile(r"[( ]([^() ]{0,200})[) ]\*(\d{1,4})")
"""A group of pieces and how often; its brackets have gone where a script's words were split."""
MAX_LAYERS = 10_000
COUNTS = Counts(
    names=(
        "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
        "expert-model-parallel-size", "num-virtual-stages-per-pipeline-rank",
        "num-layers-per-virtual-pipeline-stage", "micro-batch-size", "global-batch-size",
        "seq-length", "num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads",
        "num-query-groups", "kv-channels", "max-position-embeddings", "vocab-size", "num-experts",
        "moe-router-topk", "moe-ffn-hidden-size", "ddp-bucket-size", "recompute-num-layers",
    )
)  # fmt: skip
READ = frozenset(
    (
        *COUNTS.names, "recompute-granularity",
        "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree",
        "parallelism.context_parallel_degree", "training.local_batch_size",
        "training.global_batch_size", "training.seq_len",
    )
)  # fmt: skip
"""Flags whose value matters here: where it is a variable that is not set, that is said."""
SHARED_OUT = (
    "pipeline-model-parallel-layout", "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers", "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
)  # fmt: skip
"""Flags that share layers out unevenly."""
STAGES = {"no_shard": 0, "optim": 1} | {name: stage for stage, name in STRATEGIES.items()}


def read_megatron(flags: Flags, where: str, notes: tuple[str, ...]) -> Settings:
    tp = _count(flags, "tensor-model-parallel-size") or 1
    precision = "bf16" if "bf16" in flags else "fp16" if "fp16" in flags else "fp32"
    if "fp8-format" in flags:
        precision = "fp8"
    return Settings(
        kind="megatron",
        where=where,
        framework="megatron-core",
        model=model_of(flags),
        seq_len=_count(flags, "seq-length"),
        global_batch=_count(flags, "global-batch-size"),
        micro_batch=_count(flags, "micro-batch-size"),
        layout=Layout(
            tp=tp,
            pp=_count(flags, "pipeline-model-parallel-size") or 1,
            vpp=_pieces(flags),
            cp=_count(flags, "context-parallel-size") or 1,
            ep=_count(flags, "expert-model-parallel-size") or 1,
            zero_stage=_stage(flags),
            is_sequence_parallel="sequence-parallel" in flags and tp > 1,
            recompute=_recompute(flags),
            recompute_layers=_recompute_layers(flags),
            recompute_every=_recompute_every(flags),
            offload="optimizer" if "optimizer-cpu-offload" in flags else "none",
            is_flash=flags.get("attention-backend") not in ("unfused", "local"),
        ),
        precision=precision,
        optimizer=_optimizer(flags),
        overlaps_tensor="tp-comm-overlap" in flags,
        overlaps_data="overlap-grad-reduce" in flags,
        grads="bf16" if "grad-reduce-in-bf16" in flags else None,
        bucket_elements=_count(flags, "ddp-bucket-size"),
        refused=(*COUNTS.refused(flags, "--"), *_unshared(flags)),
        notes=notes,
    )


def _optimizer(flags: Flags) -> str:
    if flags.get("optimizer") != "sgd":
        return "adam"
    momentum = str(flags.get("sgd-momentum", "0.9"))
    return "sgd" if momentum.strip("0") in ("", ".") else "momentum"


def _count(flags: Flags, name: str) -> int | None:
    value = flags.get(name)
    return whole_text(value, 1, MAX_COUNT) if isinstance(value, str) else None


def _stage(flags: Flags) -> int:
    if "use-megatron-fsdp" in flags or "use-custom-fsdp" in flags:
        strategy = flags.get("data-parallel-sharding-strategy", "optim_grads_params")
        return STAGES.get(str(strategy), 3)
    if "use-torch-fsdp2" in flags:
        return 3
    return 1 if "use-distributed-optimizer" in flags else 0


def _pieces(flags: Flags) -> int:
    pieces = _count(flags, "num-virtual-stages-per-pipeline-rank")
    if pieces is not None:
        return pieces
    layers, pp = _count(flags, "num-layers"), _count(flags, "pipeline-model-parallel-size") or 1
    shared_out = flags.get(SHARED_OUT[0])
    if isinstance(shared_out, str):
        return max(1, _num_pieces(shared_out) // pp)
    per_piece = _count(flags, "num-layers-per-virtual-pipeline-stage")
    if per_piece is None or layers is None:
        return 1
    return max(1, layers // (pp * per_piece))


def _unshared(flags: Flags) -> Iterator[str]:
    """Layers that do not divide by stages, and nothing that says how to share them out."""
    layers, pp = _count(flags, "num-layers"), _count(flags, "pipeline-model-parallel-size") or 1
    pieces = pp * _pieces(flags)
    if layers is not None and layers % pieces and not any(name in flags for name in SHARED_OUT):
        yield f"{layers} layers do not divide into {pieces} pieces: --{SHARED_OUT[0]} shares them"


def _num_pieces(text: str) -> int:
    """Pieces of all stages in Megatron-Core's words: bars end them, and a group in brackets may be
    repeated with the bars in it."""
    num, plain = 0, text.replace("\\", "")
    for group, times in _REPEATED.findall(plain):
        num += group.count("|") * (whole_text(times, 1, MAX_LAYERS) or 1)
    plain = _REPEATED.sub("", plain).strip()
    return num + plain.count("|") + (not plain.endswith("|"))


def _recompute(flags: Flags) -> str:
    word = flags.get("recompute-granularity")
    if word in ("full", "selective"):
        return str(word)
    return "selective" if "recompute-activations" in flags else "none"


def _recompute_every(flags: Flags) -> int:
    if flags.get("recompute-method") != "uniform" or _recompute(flags) != "full":
        return 1
    return _count(flags, "recompute-num-layers") or 1


def _recompute_layers(flags: Flags) -> int:
    """Layers of each stage; Megatron counts them for each piece of it."""
    if flags.get("recompute-method") != "block" or _recompute(flags) != "full":
        return 0
    return (_count(flags, "recompute-num-layers") or 0) * _pieces(flags)


def model_of(flags: Flags) -> Model | None:
    """The model that the flags describe; None where its size is not said."""
    layers, hidden = _count(flags, "num-layers"), _count(flags, "hidden-size")
    heads = _count(flags, "num-attention-heads")
    if layers is None or hidden is None or heads is None:
        return None
    is_gated = "swiglu" in flags
    has_bias = "disable-bias-linear" not in flags
    is_learned = flags.get("position-embedding-type", "learned_absolute") == "learned_absolute"
    kv_heads = heads
    if "group-query-attention" in flags:
        kv_heads = _count(flags, "num-query-groups") or 1
    vocab = _count(flags, "padded-vocab-size") or _count(flags, "vocab-size")
    return Model(
        name="megatron-flags",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_count(flags, "kv-channels") or max(1, hidden // heads),
        ffn_hidden=_count(flags, "ffn-hidden-size") or 4 * hidden,
        vocab=vocab or 50_304,
        is_gated=is_gated,
        is_tied="untie-embeddings-and-output-weights" not in flags,
        max_positions=(_count(flags, "max-position-embeddings") or 0) if is_learned else 0,
        has_qkv_bias=has_bias or "add-qkv-bias" in flags,
        has_out_bias=has_bias,
        has_mlp_bias=has_bias,
        norm_size=1 if flags.get("normalization") == "RMSNorm" else 2,
        has_qk_norm="qk-layernorm" in flags,
        experts=_experts(flags, layers),
        latent=_latent(flags),
        source="the flags",
        notes=() if vocab else ("no --vocab-size is there: 50 304 is taken",),
    )


def _experts(flags: Flags, layers: int) -> Experts | None:
    num, hidden = _count(flags, "num-experts"), _count(flags, "hidden-size") or 1
    if num is None:
        return None
    frequency = flags.get("moe-layer-freq")
    dense = (
        re.match(r"\(?\[0\]\s*\*\s*(\d{1,4})", frequency) if isinstance(frequency, str) else None
    )
    return Experts(
        num=num,
        top_k=min(num, _count(flags, "moe-router-topk") or 2),
        ffn_hidden=_count(flags, "moe-ffn-hidden-size")
        or _count(flags, "ffn-hidden-size")
        or 4 * hidden,
        shared_ffn_hidden=_count(flags, "moe-shared-expert-intermediate-size") or 0,
        num_dense_layers=0 if dense is None else min(layers, int(dense[1])),
    )


def _latent(flags: Flags) -> Latent | None:
    if "multi-latent-attention" not in flags:
        return None
    return Latent(
        kv_rank=_count(flags, "kv-lora-rank") or 512,
        q_rank=_count(flags, "q-lora-rank"),
        nope_dim=_count(flags, "qk-head-dim") or 128,
        rope_dim=_count(flags, "qk-pos-emb-head-dim") or 64,
        v_dim=_count(flags, "v-head-dim") or 128,
    )
