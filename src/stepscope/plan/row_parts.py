"""What a published row says of its model, cluster and framework."""

from __future__ import annotations

import re
from dataclasses import asdict, fields, replace
from typing import Any

from msgspec import ValidationError, convert

from stepscope.errors import StepscopeError
from stepscope.plan.catalog import find_model, known_model
from stepscope.plan.cluster import Cluster
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.framework import (
    AUTOMODEL,
    COMPILED_LOSS,
    COMPOSER,
    FSDP,
    INTERNEVO,
    MEGATRON,
    MEGATRON_CORE,
    MEGATRON_DEEPSPEED,
    NANOTRON,
    TORCHTITAN,
    Framework,
)
from stepscope.plan.model import Experts, Model
from stepscope.plan.space import divisors
from stepscope.protocol.json_text import json_text

USUAL_VOCAB = 51200
FUSED_EXPERTS = "26.06"
"""The container of Megatron-Bridge from which experts' products are fused and steps are graphs on
Blackwell (notes of 0.5.1)."""
OVERLAPPED_EXPERTS = "25.11"
"""The container of Megatron-Bridge from which an all-to-all over nodes runs behind other work."""
COMPILES_LOSS = 2025
"""The year from which torchtitan's compiler takes the loss in."""
DEVICES_SINCE_2025 = ("h200", "b200", "b300", "gb200", "gb300", "mi325x", "mi350x", "mi355x")
"""How their keys begin. Clouds lend them since the end of 2024 (EC2's p5en with H200s: December),
so that what was measured on one and names no year is not older than `COMPILES_LOSS`."""
LAST_WITHOUT_FLASH = 2022
"""The last year of Megatron-LM without attention in a single kernel."""
NAMED = (
    ("automodel", AUTOMODEL), ("nanotron", NANOTRON), ("composer", COMPOSER), ("foundry", COMPOSER),
    ("fsdp", FSDP), ("internevo", INTERNEVO),
)  # fmt: skip
"""Frameworks by a word of their names, the first that is there."""
_YEAR = re.compile(r"(?<!\d)(?<!line )(20[12]\d)(?!\d{3})")
"""A year, with a month behind it or without."""
_ARXIV = re.compile(r"\barxiv[\s:]{0,2}(\d\d)(?:0[1-9]|1[0-2])\.\d{4,5}\b", re.IGNORECASE)
"""The year of a number of arXiv's."""
_HASH = re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b")
"""A commit, whose digits are none."""
FRAMEWORK_FIELDS = {field.name for field in fields(Framework)} - {"name"}


class UnsupportedError(StepscopeError):
    """A row that we cannot judge, and why."""


def framework_of(row: dict[str, Any]) -> tuple[Framework, bool]:
    """The framework's conventions, and whether it has attention in a single kernel."""
    framework, has_flash = _named_framework(row)
    # As it was called before.
    conventions = row.get("conventions") or row.get("habits") or {}
    if unknown := conventions.keys() - FRAMEWORK_FIELDS:
        raise UnsupportedError(f"conventions: a framework has no {', '.join(sorted(unknown))}")
    try:
        return convert(asdict(framework) | conventions, Framework), has_flash
    except ValidationError as problem:
        raise UnsupportedError(f"conventions: {problem}") from None


def _named_framework(row: dict[str, Any]) -> tuple[Framework, bool]:
    name = str(row.get("framework") or "").casefold()
    year = row.get("framework_year")
    if year is None and name and not _YEAR.search(name):
        year = _published_in(str(row.get("where") or ""))
    if year is not None:
        name = f"{name} {int(year)}"
    options = json_text(row.get("options") or "").casefold()
    layout = row.get("layout") or {}
    if not name:
        gpu = str((row.get("cluster") or {}).get("gpu", "")).casefold()
        is_new = any(word in gpu for word in ("h100", "h200", "b200", "b300"))
        return (MEGATRON_CORE, True) if is_new else (MEGATRON, False)
    if "torchtitan" in name:
        return _torchtitan(row, name, options), True
    named = next((framework for word, framework in NAMED if word in name), None)
    if named is not None:
        return named, True
    if "deepspeed" in name:
        # Its bf16 optimizer adds gradients up in fp32; the one for fp16 keeps them as they are.
        is_wide = "bf16" in str(layout.get("precision", ""))
        return (
            replace(MEGATRON_DEEPSPEED, grad_bytes=4.0) if is_wide else MEGATRON_DEEPSPEED
        ), False
    return _megatron(row, name, options)


def _published_in(where: str) -> int | None:
    """The year in which a result was published, by what cites it: none has a younger framework."""
    plain = _HASH.sub("", where)
    years = [int(year) for year in _YEAR.findall(plain)]
    years += [2000 + int(year) for year in _ARXIV.findall(plain)]
    return max(years, default=None)


def _torchtitan(row: dict[str, Any], name: str, options: str) -> Framework:
    """Framework with or without a compiler, which takes the loss in from 2025 on: logits stay in
    half precision, and so does their gradient. Where no year is said, a device that is younger
    tells."""
    if "compile" not in options:
        return TORCHTITAN
    framework = replace(TORCHTITAN, fuses=True)
    year = re.search(r"20[2-9]\d", f"{name} {options}")
    if year is not None:
        is_new = int(year[0]) >= COMPILES_LOSS
    else:
        is_new = cluster_of(row).device.key.startswith(DEVICES_SINCE_2025)
    if not is_new:
        return framework
    return replace(framework, **COMPILED_LOSS)  # type: ignore[arg-type]


def _megatron(row: dict[str, Any], name: str, options: str) -> tuple[Framework, bool]:
    """Megatron-LM, its core, or what is built on them.

    Conventions are those of the version or the year in its name.
    """
    if "core r0." in name:
        # Before 2025 attention was FlashAttention 2.
        return replace(MEGATRON_CORE, attention=2), True
    version = re.search(r"bridge (\d+\.\d+)", name)
    if version is not None:
        return _bridge(row, version[1]), True
    if "megatron" not in name or any(word in name for word in ("bridge", "core", "nemo")):
        return MEGATRON_CORE, True
    year = re.search(r"20\d\d", name)
    if year is not None and int(year[0]) <= LAST_WITHOUT_FLASH:
        return MEGATRON, False
    if "overlap" in options:
        return MEGATRON_CORE, True
    plain = replace(
        MEGATRON_CORE,
        overlaps_tensor=False,
        overlaps_data=False,
        overlaps_interleaved=False,
        fuses_experts=False,
    )
    return replace(plain, attention=2), True


def _bridge(row: dict[str, Any], version: str) -> Framework:
    """Megatron-Bridge's published recipes (its perf_recipes): gradients are kept and reduced in
    bf16; in a rack, and where a router chooses among groups of experts, tokens go by HybridEP or
    DeepEP, else by an all-to-all. That runs behind other work where it leaves a node and stages are
    interleaved, and any exchange does where whole steps are graphs."""
    cluster, layout = row.get("cluster") or {}, row.get("layout") or {}
    device = str(cluster.get("gpu", "")).casefold()
    tp, vpp, ep = (int(layout.get(name) or 1) for name in ("tp", "vpp", "ep"))
    try:
        experts = model_of(row).experts
    except UnsupportedError:
        experts = None
    is_sent_once = device.startswith("gb") or (experts is not None and experts.num_groups > 1)
    is_fused = version >= FUSED_EXPERTS
    is_graph = is_fused and any(word in device for word in ("b200", "b300"))
    is_far = vpp > 1 and tp * ep > int(cluster.get("gpus_per_node") or 8)
    return replace(
        MEGATRON_CORE,
        grad_bytes=2.0,
        comm_grad_bytes=2.0,
        fuses_experts=is_fused,
        sends_copies=not is_sent_once,
        overlaps_experts=is_graph
        or (is_far and not is_sent_once and version >= OVERLAPPED_EXPERTS),
    )


def _in_catalog(name: str) -> Model | None:
    try:
        return known_model(name)
    except StepscopeError:
        return None


def model_of(row: dict[str, Any]) -> Model:
    stated = row.get("model") or {}
    name = str(stated.get("name", "?"))
    if "layers" not in stated or "hidden" not in stated:
        try:
            return find_model(name)
        except StepscopeError as problem:
            raise UnsupportedError(f"no shape in the row, and {problem}") from None
    layers, hidden = int(stated["layers"]), int(stated["hidden"])
    model = _in_catalog(name)
    if model is not None and (model.layers, model.hidden) == (layers, hidden):
        # What a row leaves out (norms on queries, sinks, biases) is in the catalog.
        return model
    if model is not None and model.hidden == hidden and model.layers > layers:
        return _cut_short(model, layers, stated)
    heads = int(stated.get("heads") or _usual_heads(hidden))
    is_gated = bool(stated.get("gated_mlp", False))
    ffn = stated.get("ffn_hidden") or (-(-8 * hidden // 3 // 256) * 256 if is_gated else 4 * hidden)
    experts = None
    if stated.get("experts"):
        experts = Experts(
            num=int(stated["experts"]),
            top_k=int(stated.get("topk", 2)),
            ffn_hidden=int(stated.get("moe_ffn") or ffn),
            shared_ffn_hidden=int(stated.get("shared_ffn", 0)),
        )
    return Model(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(stated.get("kv_heads") or heads),
        head_dim=int(stated.get("head_dim") or max(1, hidden // heads)),
        ffn_hidden=int(ffn),
        vocab=int(stated.get("vocab") or USUAL_VOCAB),
        is_gated=is_gated,
        # Llamas rotate; GPTs of two matrices learn positions or bias the scores.
        is_rotated=is_gated,
        is_tied=bool(stated.get("tied_embeddings", not is_gated)),
        experts=experts,
    )


def _usual_heads(hidden: int) -> int:
    """Heads that share the hidden size, of about 128 channels."""
    return min(divisors(hidden), key=lambda heads: abs(heads - hidden / 128))


def _cut_short(model: Model, layers: int, stated: dict[str, Any]) -> Model:
    """A known model with fewer layers, as people run it on one node to measure it.

    Of layers without a mixture it keeps as many as the row says, else its share and at least one.
    """
    experts = model.experts
    if experts is not None and experts.num_dense_layers:
        share = experts.num_dense_layers * layers / model.layers
        num_dense = int(stated.get("dense_layers") or max(1, round(share)))
        experts = replace(experts, num_dense_layers=min(num_dense, layers))
    return replace(model, layers=layers, experts=experts, extra_layer_params=0)


def cluster_of(row: dict[str, Any]) -> Cluster:
    stated = row.get("cluster") or {}
    num = int(stated.get("num_gpus") or 1)
    per_node = int(stated.get("gpus_per_node") or 8)
    nodes = max(1, -(-num // per_node))
    network = f"@{stated['network']}" if stated.get("network") and nodes > 1 else ""
    try:
        return parse_cluster(f"{nodes}x{min(num, per_node)}x{stated.get('gpu', '?')}{network}")
    except StepscopeError as problem:
        raise UnsupportedError(str(problem)) from None
