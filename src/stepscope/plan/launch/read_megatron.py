"""Megatron-LM's flags, as they stand in a shell script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from stepscope.errors import InputError
from stepscope.plan.launch.settings import MAX_COUNT, Counts, Settings
from stepscope.plan.model import Experts, Latent, Model
from stepscope.protocol.untrusted import whole_text

MAX_WORDS = 100_000
_ASSIGNED = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w{0,60})=([^\s;()]{0,200})\s*$")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w{0,60}|\d)(?::?-([^}]{0,60}))?\}?")
Flags = dict[str, str | bool]
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
STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def flags_of(text: str, where: str) -> tuple[Flags, tuple[str, ...]]:
    """`--name value` pairs of a script. Variables are taken from assignments in the same file;
    nothing is run."""
    variables: dict[str, str] = {}
    for line in text.splitlines():
        match = _ASSIGNED.match(line)
        if match is not None:
            name, value = match[1], match[2].strip("\"'")
            own = _VARIABLE.fullmatch(value)
            if own is not None and own[1] == name and own[2] is not None:
                # NAME=${NAME:-2}: what is taken where nobody sets it before.
                value = variables.get(name) or own[2]
            variables[name] = value
    words = _words(text, where)
    flags: Flags = {}
    unknown: list[str] = []
    for index, word in enumerate(words):
        if not word.startswith("--") or len(word) < 4:
            continue
        name, has_value, value = word[2:].partition("=")
        if not has_value:
            following = words[index + 1] if index + 1 < len(words) else "--"
            value = "" if following.startswith("--") or following == "\\" else following
        filled = _filled(value, variables)
        if filled is None or "$" in filled or "`" in filled:
            if name in READ:
                unknown.append(f"--{name} {value[:60]} is not set in this file")
            continue
        flags[name] = filled or True
    return flags, tuple(unknown[:20])


def _words(text: str, where: str) -> list[str]:
    try:
        # Neither a line's end in the middle of a command nor an array's brackets are words.
        plain = text.replace("\\\n", " ").replace("(", " ").replace(")", " ")
        words = [word.strip() for word in shlex.split(plain, comments=True)]
    except ValueError as problem:
        raise InputError(f"{where}: not a shell script: {problem}") from None
    if len(words) > MAX_WORDS:
        raise InputError(f"{where}: more than {MAX_WORDS} words are no launch script")
    # An assignment of several flags in quotes is one word to the shell.
    parts: list[str] = []
    for word in words:
        if " --" in f" {word}" and " " in word.strip():
            parts += word.partition("=")[2].split() if "=" in word.split()[0] else word.split()
        else:
            parts.append(word)
    return parts


def _filled(value: str, variables: Mapping[str, str], depth: int = 4) -> str | None:
    """With the file's own variables put in; None where one is not set there."""
    for _ in range(depth):
        match = _VARIABLE.search(value)
        if match is None:
            return value
        known: str | None = variables.get(match[1]) or match[2]
        if known is None:
            return None
        value = value[: match.start()] + known + value[match.end() :]
        if len(value) > 1000:
            return None
    return None


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
        precision=precision,
        is_flash=flags.get("attention-backend") not in ("unfused", "local"),
        optimizer=_optimizer(flags),
        overlaps_tensor="tp-comm-overlap" in flags,
        overlaps_data="overlap-grad-reduce" in flags,
        grads="bf16" if "grad-reduce-in-bf16" in flags else None,
        bucket_elements=_count(flags, "ddp-bucket-size"),
        refused=tuple(COUNTS.refused(flags, "--")),
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
    per_piece = _count(flags, "num-layers-per-virtual-pipeline-stage")
    layers, pp = _count(flags, "num-layers"), _count(flags, "pipeline-model-parallel-size") or 1
    if per_piece is None or layers is None:
        return 1
    return max(1, layers // (pp * per_piece))


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
    """Of each stage; Megatron counts them for each piece of it."""
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
