"""Gradients made smaller on their way over data ranks: what crosses, what it takes to make it, and
what is kept for it. As DDP's communication hooks do it (torch.distributed.algorithms), or could."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.errors import UsageError
from stepscope.plan.model import Model
from stepscope.plan.network import Group, Network
from stepscope.plan.rates import Floats

KINDS = ("bf16", "fp16", "powersgd", "int8", "topk")
HALVES = ("bf16", "fp16")
KNOWN = (
    "compression is bf16, fp16, powersgd:RANK, int8 or topk:SHARE, such as powersgd:4 or topk:0.01"
)
_WORD = re.compile(r"(bf16|fp16|int8)|powersgd:(\d{1,4})|topk:(0?\.\d{1,6})")
PASSED_BYTES = {"bf16": 12.0, "fp16": 12.0, "powersgd": 36.0, "int8": 14.0, "topk": 28.0}
"""Read and written on the device for each gradient in fp32, beside the exchange. 16 bits: a cast
each way. PowerSGD (Vogels et al. 2019, algorithm 1): the error added, two products with a thin
matrix that read all, one that writes all, and the new error. 8 bits: a cast each way and the parts
added up. Top-k: the error added, a selection by its digits, and the new error."""
KEPT_BYTES = {"bf16": 0.0, "fp16": 0.0, "powersgd": 4.0, "int8": 0.0, "topk": 4.0}
"""Bytes for each gradient of the error that is added to the next."""
WORDS = {
    "bf16": "bf16_compress_hook",
    "fp16": "fp16_compress_hook",
    "powersgd": "powerSGD_hook; it changes the training, and begins after 1,000 steps there",
    "int8": "each rank's part in 8 bits to the rank that adds it up, and back; it changes the "
    "training",
    "topk": "each rank's largest gathered by all, 8 bytes each; it changes the training",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """One way to make gradients smaller."""

    kind: str
    rank: int = 0
    """Rank of PowerSGD's two factors."""
    share: float = 0.0
    """Share of gradients that top-k sends."""


def parse_compression(word: str) -> Compression:
    match = _WORD.fullmatch(word.strip().casefold())
    if match is None or (match[2] and int(match[2]) < 1) or (match[3] and float(match[3]) <= 0):
        raise UsageError(f"{KNOWN}, not {word[:80]!a}")
    if match[2]:
        return Compression(kind="powersgd", rank=int(match[2]))
    if match[3]:
        return Compression(kind="topk", share=float(match[3]))
    return Compression(kind=match[1])


def factored_share(model: Model, rank: int) -> float:
    """Share of a model's gradients that are the numbers in PowerSGD's two factors: a matrix of m x
    n becomes rank x (m + n)."""
    h, q = model.hidden, model.heads * model.head_dim
    kv, up = 2 * model.kv_heads * model.head_dim, 2 if model.is_gated else 1
    of_layer = [(h, q + kv), (q, h), (h, up * model.ffn_hidden), (model.ffn_hidden, h)]
    matrices = [(m, n, model.layers) for m, n in of_layer]
    matrices.append((model.vocab, h, 1 if model.is_tied else 2))
    whole = sum(m * n * num for m, n, num in matrices)
    factors = sum(min(rank * (m + n), m * n) * num for m, n, num in matrices)
    return factors / whole


def wire_bytes(how: Compression, model: Model, params: Any, size: Any) -> Any:
    """Bytes that each rank sends once, where a ring of fp32 has 4 for each."""
    if how.kind == "powersgd":
        return 4.0 * factored_share(model, how.rank) * params
    if how.kind == "topk":
        return 8.0 * how.share * params * size / 2
    return (2.0 if how.kind in HALVES else 1.0) * params


def exchange_s(
    how: Compression, model: Model, network: Network, group: Group, params: Any, bucket_bytes: float
) -> Floats:
    """One exchange of so many gradients."""
    size = np.asarray(group.size)
    sent = wire_bytes(how, model, params, size)
    parts = np.ceil(4.0 * params / bucket_bytes)
    if how.kind == "powersgd":
        # One factor, then the other made with its sum.
        return 2 * network.reduce_s(group, sent / 2, parts)
    if how.kind in HALVES:
        return network.reduce_s(group, sent, np.ceil(sent / bucket_bytes))
    if how.kind == "int8":
        return 2 * network.gather_s(group, sent, parts)
    return network.gather_s(group, 2 * sent, parts)


def passed_bytes(how: Compression, size: Any) -> Any:
    """Bytes of each gradient, on the device."""
    gathered = 8.0 * how.share * np.asarray(size)
    return PASSED_BYTES[how.kind] + gathered
