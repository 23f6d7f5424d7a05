"""A step of a real model on this device, beside what the planner says of it.

    PYTHONPATH=src python -m benchmarks.planned [--only WORD] [--hardware FILE] [--json FILE]

PyTorch on one GPU: a llama, attention in one kernel, fused AdamW. A case is trained in one of
these ways:

- plain: fp32 weights under bf16 autocast.
- compiled: the same through torch.compile.
- checkpointed: plain, each layer recomputed in backward.
- fsdp: FSDP2 on one rank, weights cast to bf16 as they are gathered.
- fp8: layers' products in fp8 with one scale for each matrix, layers compiled; the head and the
  loss as in plain.

All predictions are made and printed before the first step runs. Told: seconds of a step (the median
of five after warm-up), the allocator's peak, and what it reserved.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.plan.cli.job import measured
from stepscope.plan.cluster import Cluster
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.estimate import Estimates, estimate_one
from stepscope.plan.framework import DDP, FSDP, Framework
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout
from stepscope.plan.model import Model

GIB = 2**30
ROUNDS, STEPS = 5, 2

torch: Any = importlib.import_module("torch")
checkpoint: Any = importlib.import_module("torch.utils.checkpoint").checkpoint
nn, F = torch.nn, torch.nn.functional


def shape(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn_hidden: int, vocab: int
) -> dict[str, int]:
    return {
        "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
        "ffn_hidden": ffn_hidden, "vocab": vocab,
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is trained, and how."""

    name: str
    shape: dict[str, int]
    length: int
    batch: int
    way: str = "plain"


ONE_B = shape(16, 2048, 16, 16, 5632, 32000)
CASES = (
    Case(name="1b, 2k", shape=ONE_B, length=2048, batch=8),
    Case(name="1b, 2k, narrow batch", shape=ONE_B, length=2048, batch=1),
    Case(name="2b, 4k", shape=shape(8, 4096, 32, 8, 14336, 128256), length=4096, batch=4),
    Case(name="0.4b, 8k", shape=shape(24, 1024, 16, 4, 4096, 50304), length=8192, batch=4),
    # Widths of Qwen2.5-1.5B, Llama-3.2-3B, Phi-3-mini and Qwen2.5-7B, which nothing was set on.
    Case(
        name="qwen 1.8b", shape=shape(28, 1536, 12, 2, 8960, 151936), length=4096, batch=4,
    ),
    Case(
        name="llama 3.6b", shape=shape(28, 3072, 24, 8, 8192, 128256), length=2048, batch=4,
        way="fsdp",
    ),
    Case(
        name="phi 3.8b", shape=shape(32, 3072, 32, 32, 8192, 32064), length=8192, batch=2,
        way="checkpointed",
    ),
    Case(
        name="qwen 7b, 12 layers", shape=shape(12, 3584, 28, 4, 18944, 152064), length=4096,
        batch=2, way="fp8",
    ),
    # And of TinyLlama, Mistral-7B, Qwen2.5-3B and Llama-3-8B, first run when FSDP2's copies and
    # what 8 bits cost were in the plan.
    Case(name="tinyllama 1.1b", shape=shape(22, 2048, 32, 4, 5632, 32000), length=4096, batch=4),
    Case(
        name="mistral 3.8b", shape=shape(16, 4096, 32, 8, 14336, 32000), length=4096,
        batch=2, way="fsdp",
    ),
    Case(
        name="qwen 3.4b", shape=shape(36, 2048, 16, 2, 11008, 151936), length=4096, batch=4,
        way="checkpointed",
    ),
    Case(
        name="llama 3.7b", shape=shape(12, 4096, 32, 8, 14336, 128256), length=8192,
        batch=1, way="fp8",
    ),
)  # fmt: skip


class Block(nn.Module):  # type: ignore[misc,name-defined]
    """One layer of a llama."""

    def __init__(self, shape: dict[str, int], make: Any) -> None:
        super().__init__()
        h, a, k = shape["hidden"], shape["heads"], shape["kv_heads"]
        self.heads, self.kv, self.dim = a, k, h // a
        self.first, self.second = nn.RMSNorm(h), nn.RMSNorm(h)
        self.qkv = make(h, (a + 2 * k) * self.dim, bias=False)
        self.out = make(a * self.dim, h, bias=False)
        self.gate, self.up = (make(h, shape["ffn_hidden"], bias=False) for _ in range(2))
        self.down = make(shape["ffn_hidden"], h, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.first(x)).split(
            [self.heads * self.dim, self.kv * self.dim, self.kv * self.dim], dim=-1
        )
        q, k, v = (part.view(batch, length, -1, self.dim).transpose(1, 2) for part in (q, k, v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.kv != self.heads
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def turned(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class NarrowLinear(nn.Linear):  # type: ignore[misc,name-defined]
    """With its three products in fp8."""

    def forward(self, x: Any) -> Any:
        product = importlib.import_module("lab.gains.models").Fp8Product
        rows = x.flatten(0, 1).bfloat16()
        return product.apply(rows, self.weight.bfloat16()).unflatten(0, x.shape[:2])


class Llama(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, shape: dict[str, int], length: int, way: str) -> None:
        super().__init__()
        self.is_checkpointed = way == "checkpointed"
        make = NarrowLinear if way == "fp8" else nn.Linear
        self.embedding = nn.Embedding(shape["vocab"], shape["hidden"])
        self.blocks = nn.ModuleList(Block(shape, make) for _ in range(shape["layers"]))
        self.norm, self.head = (
            nn.RMSNorm(shape["hidden"]),
            nn.Linear(shape["hidden"], shape["vocab"], bias=False),
        )
        dim = shape["hidden"] // shape["heads"]
        angles = torch.outer(
            torch.arange(length), 10000 ** (-torch.arange(0, dim, 2) / dim)
        ).repeat(1, 2)
        self.register_buffer("cos", angles.cos().bfloat16(), persistent=False)
        self.register_buffer("sin", angles.sin().bfloat16(), persistent=False)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.is_checkpointed:
                x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def made(case: Case) -> Any:
    """The model on the device."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Llama(case.shape, case.length, case.way)
    if case.way == "fp8":
        for block in model.blocks:
            block.compile()
    if case.way == "fsdp":
        fsdp = importlib.import_module("torch.distributed.fsdp")
        torch.distributed.init_process_group(
            "nccl", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for module in (*model.blocks, model):
            fsdp.fully_shard(module, mp_policy=policy)
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    step_s: float
    peak_bytes: float
    reserved_bytes: float


def train(case: Case) -> Measured:
    model = made(case)
    tokens = torch.randint(0, case.shape["vocab"], (case.batch, case.length + 1), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss_of(x: Any, y: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=case.way != "fsdp"):
            logits = model(x)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    run = torch.compile(loss_of) if case.way == "compiled" else loss_of

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        run(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    spent = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        spent.append((time.perf_counter() - begun) / STEPS)
    return Measured(
        step_s=statistics.median(spent),
        peak_bytes=float(torch.cuda.max_memory_allocated()),
        reserved_bytes=float(torch.cuda.max_memory_reserved()),
    )


def conventions(way: str) -> Framework:
    """What the planner is told of a way: PyTorch's own, with a fused update."""
    base = replace(DDP, has_fused_update=True)
    if way == "fsdp":
        return replace(FSDP, has_fused_update=True, attention=DDP.attention)
    if way == "fp8":
        return replace(base, fuses=True, is_compiled=True)
    if way == "compiled":
        return replace(base, fuses=True, is_compiled=True, logit_passes=24.0)
    return base


def predicted(case: Case, cluster: Cluster) -> Estimates:
    head_dim = case.shape["hidden"] // case.shape["heads"]
    job = TrainingJob(
        model=Model(name=case.name, head_dim=head_dim, **case.shape),  # type: ignore[arg-type]
        cluster=cluster,
        seq_len=case.length,
        global_batch=case.batch,
        precision="fp8" if case.way == "fp8" else "bf16",
        framework=conventions(case.way),
    )
    layout = Layout(
        micro_batch=case.batch,
        zero_stage=3 if case.way == "fsdp" else 0,
        recompute="full" if case.way == "checkpointed" else "none",
    )
    return estimate_one(job, layout)


def row_of(case: Case, planned: Estimates, found: Measured) -> dict[str, Any]:
    """The figures of a case, each beside its prediction."""
    memory = planned.memory
    pairs = {
        "step_s": (found.step_s, planned.step_s),
        "peak_bytes": (found.peak_bytes, memory.allocated),
        "reserved_bytes": (found.reserved_bytes, memory.reserved),
    }
    row: dict[str, Any] = {"case": case.name, "way": case.way}
    for name, (value, wanted) in pairs.items():
        row |= {name: value, f"planned_{name}": float(wanted[0])}
    row["times"] = {part: float(value[0]) for part, value in planned.times.parts.items()}
    row["memory"] = {part: float(value[0]) for part, value in memory.parts.items()}
    return row


def words(row: dict[str, Any]) -> str:
    told = [f"step {row['step_s'] * 1e3:7.1f} ms ({_off(row, 'step_s')})"]
    for name in ("peak", "reserved"):
        field = f"{name}_bytes"
        told.append(f"{name} {row[field] / GIB:6.1f} GiB ({_off(row, field)})")
    return f"{row['case']:22} {row['way']:13} {'; '.join(told)}"


def _off(row: dict[str, Any], name: str) -> str:
    return f"planned {row[f'planned_{name}'] / row[name] - 1:+.1%}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="H200", help="its name for the planner (default: %(default)s)"
    )
    parser.add_argument("--hardware", type=Path, help="a file of stepscope calibrate")
    parser.add_argument(
        "--compiled", action="store_true", help="plain cases through torch.compile, which is slow"
    )
    parser.add_argument("--only", default="", help="cases with one of these words, in commas")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    told = parser.parse_args()
    cluster = parse_cluster(told.device)
    if told.hardware:
        cluster, _ = measured(cluster, told.hardware)
    wanted = told.only.split(",")
    cases = [case for case in CASES if any(word in case.name for word in wanted)]
    if told.compiled:
        cases = [replace(case, way="compiled") for case in cases if case.way == "plain"]
    plans = [predicted(case, cluster) for case in cases]
    for case, planned in zip(cases, plans, strict=True):
        memory = planned.memory
        print(
            f"{case.name:22} {case.way:13} planned: step {float(planned.step_s[0]) * 1e3:7.1f} ms; "
            f"peak {float(memory.allocated[0]) / GIB:6.1f} GiB; "
            f"reserved {float(memory.reserved[0]) / GIB:6.1f} GiB",
            flush=True,
        )
    rows = []
    for case, planned in zip(cases, plans, strict=True):
        rows.append(row_of(case, planned, train(case)))
        print(words(rows[-1]), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        if told.json:
            told.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
