"""A step of a real model on this device, beside what the planner says of it.

    PYTHONPATH=src python -m benchmarks.planned [--hardware FILE] [--device WORD] [--json FILE]

Plain PyTorch on one GPU: a llama with fp32 weights under bf16 autocast, attention in one kernel,
fused AdamW; with --compiled through torch.compile too. Nothing of it was looked at when the
planner's constants were set. Told: seconds of a step (the median of ten after warm-up) and the
allocator's peak.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.cli.plan.job import measured
from stepscope.planner.cluster_parse import parse_cluster
from stepscope.planner.estimate import estimate_one
from stepscope.planner.framework import DDP
from stepscope.planner.job import TrainingJob
from stepscope.planner.layout import Layout
from stepscope.planner.model import Model

ONE_B = {
    "layers": 16,
    "hidden": 2048,
    "heads": 16,
    "kv_heads": 16,
    "ffn_hidden": 5632,
    "vocab": 32000,
}
SHAPES: dict[str, tuple[dict[str, Any], int, int]] = {
    "1b, 2k": (ONE_B, 2048, 8),
    "1b, 2k, narrow batch": (ONE_B, 2048, 1),
    "2b, 4k": (
        {
            "layers": 8,
            "hidden": 4096,
            "heads": 32,
            "kv_heads": 8,
            "ffn_hidden": 14336,
            "vocab": 128256,
        },
        4096,
        4,
    ),
    "0.4b, 8k": (
        {
            "layers": 24,
            "hidden": 1024,
            "heads": 16,
            "kv_heads": 4,
            "ffn_hidden": 4096,
            "vocab": 50304,
        },
        8192,
        4,
    ),
}

GIB = 2**30

torch: Any = importlib.import_module("torch")
nn, F = torch.nn, torch.nn.functional


class Block(nn.Module):  # type: ignore[misc,name-defined]
    """One layer of a llama."""

    def __init__(self, shape: dict[str, int]) -> None:
        super().__init__()
        h, a, k = shape["hidden"], shape["heads"], shape["kv_heads"]
        self.heads, self.kv, self.dim = a, k, h // a
        self.first, self.second = nn.RMSNorm(h), nn.RMSNorm(h)
        self.qkv = nn.Linear(h, (a + 2 * k) * self.dim, bias=False)
        self.out = nn.Linear(a * self.dim, h, bias=False)
        self.gate, self.up = (
            nn.Linear(h, shape["ffn_hidden"], bias=False),
            nn.Linear(h, shape["ffn_hidden"], bias=False),
        )
        self.down = nn.Linear(shape["ffn_hidden"], h, bias=False)

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


class Llama(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, shape: dict[str, int], length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape["vocab"], shape["hidden"])
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape["layers"]))
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
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def train(shape: dict[str, int], length: int, batch: int, *, compiled: bool) -> tuple[float, float]:
    """Seconds of a step, and bytes at the peak."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Llama(shape, length)
        tokens = torch.randint(0, shape["vocab"], (batch, length + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss_of(x: Any, y: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(x)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    made = torch.compile(loss_of) if compiled else loss_of

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        made(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    spent = []
    for _ in range(10):
        begun = time.perf_counter()
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        spent.append((time.perf_counter() - begun) / 3)
    return statistics.median(spent), float(torch.cuda.max_memory_allocated())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="H200", help="its name for the planner (default: %(default)s)"
    )
    parser.add_argument("--hardware", type=Path, help="a file of stepscope calibrate")
    parser.add_argument(
        "--compiled", action="store_true", help="through torch.compile too, which takes minutes"
    )
    parser.add_argument("--only", default="", help="the shapes with this in their name")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    told = parser.parse_args()
    cluster = parse_cluster(told.device)
    if told.hardware:
        cluster, _ = measured(cluster, told.hardware)
    made: list[dict[str, Any]] = []
    for name, (shape, length, batch) in SHAPES.items():
        if told.only not in name:
            continue
        for compiled in (False, True) if told.compiled else (False,):
            passes = 24.0 if compiled else DDP.logit_passes
            framework = replace(
                DDP,
                fuses=compiled,
                is_compiled=compiled,
                has_fused_update=True,
                logit_passes=passes,
            )
            model = Model(name=name, head_dim=shape["hidden"] // shape["heads"], **shape)
            job = TrainingJob(
                model=model,
                cluster=cluster,
                seq_len=length,
                global_batch=batch,
                framework=framework,
            )
            planned = estimate_one(job, Layout(micro_batch=batch))
            seconds, peak = train(shape, length, batch, compiled=compiled)
            gc.collect()
            torch.cuda.empty_cache()
            wanted_s, wanted = float(planned.step_s[0]), float(planned.memory.allocated[0])
            row: dict[str, Any] = {
                "shape": name,
                "compiled": compiled,
                "step_s": seconds,
                "planned_step_s": wanted_s,
            }
            row |= {"peak_bytes": peak, "planned_bytes": wanted}
            row["times"] = {part: float(value[0]) for part, value in planned.times.parts.items()}
            row["memory"] = {part: float(value[0]) for part, value in planned.memory.parts.items()}
            made.append(row)
            step = (
                f"step {seconds * 1e3:7.1f} ms, planned {wanted_s * 1e3:7.1f} "
                f"({wanted_s / seconds:.2f})"
            )
            held = f"peak {peak / GIB:5.1f} GiB, planned {wanted / GIB:5.1f} ({wanted / peak:.2f})"
            print(
                f"{name:22} {'compiled' if compiled else 'as it is':9} {step}; {held}", flush=True
            )
    if told.json:
        told.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
