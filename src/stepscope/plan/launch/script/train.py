"""Trains the planned model on random tokens, cut as planned, and says what a step takes.

Reads layout.json beside it. Needs torch alone, and accelerate where layout.json says so. Put your
own model and data in place of `Decoder` and `batches`; what the layout says stays in `prepared`.
"""

# Written by `stepscope plan --emit`: it is a job's own, so it prints, and imports nothing of ours.
# ruff: noqa: T201

from __future__ import annotations

import contextlib
import importlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SETTINGS = json.loads((Path(__file__).parent / "layout.json").read_text("utf-8"))
SHAPE = SETTINGS["model"]
STEPS = int(os.environ.get("STEPS", "12"))


def norm() -> nn.Module:
    hidden = SHAPE["hidden"]
    return nn.LayerNorm(hidden) if SHAPE["norm_size"] == 2 else nn.RMSNorm(hidden)


class Attention(nn.Module):
    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        hidden, size = SHAPE["hidden"], SHAPE["head_dim"]
        self.heads, self.kv_heads, self.size = SHAPE["heads"], SHAPE["kv_heads"], size
        width = (self.heads + 2 * self.kv_heads) * size
        self.qkv = nn.Linear(hidden, width, bias=SHAPE["has_qkv_bias"])
        self.out = nn.Linear(self.heads * size, hidden, bias=SHAPE["has_out_bias"])
        angles = torch.arange(0, size, 2).float() / size
        self.register_buffer("frequencies", 10000.0**-angles, persistent=False)

    def rotated(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)
        angle = torch.outer(positions, self.frequencies.float())
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x[..., 0::2], x[..., 1::2]
        return torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        sizes = [self.heads * self.size, *2 * [self.kv_heads * self.size]]
        parts = self.qkv(x).split(sizes, -1)
        q, k, v = (part.view(batch, length, -1, self.size).transpose(1, 2) for part in parts)
        if not SHAPE["max_positions"]:
            q, k = self.rotated(q), self.rotated(k)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=SHAPE["is_causal"], enable_gqa=self.heads != self.kv_heads
        )
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        hidden, inner, bias = SHAPE["hidden"], SHAPE["ffn_hidden"], SHAPE["has_mlp_bias"]
        self.is_gated = SHAPE["is_gated"]
        self.up = nn.Linear(hidden, inner * (2 if self.is_gated else 1), bias=bias)
        self.down = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        if self.is_gated:
            gate, up = inner.chunk(2, -1)
            inner = functional.silu(gate) * up
        else:
            inner = functional.gelu(inner)
        out: Tensor = self.down(inner)
        return out


class Block(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        num_again = SETTINGS["recompute_layers"] or SHAPE["layers"]
        is_alone = SETTINGS["recompute_every"] == 1
        self.is_again = SETTINGS["recompute"] == "full" and index < num_again and is_alone
        self.first, self.second = norm(), norm()
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        if self.is_again and self.training:
            out: Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return out
        return self.inner(x)

    def inner(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        out: Tensor = x + self.mlp(self.second(x))
        return out


def through(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


class Decoder(nn.Module):
    """The planned shape, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        hidden, vocab = SHAPE["hidden"], SHAPE["vocab"]
        self.tokens = nn.Embedding(vocab, hidden)
        length = SHAPE["max_positions"]
        self.positions = nn.Embedding(length, hidden) if length else None
        self.blocks = nn.ModuleList(Block(index) for index in range(SHAPE["layers"]))
        self.norm = norm()
        self.head = nn.Linear(hidden, vocab, bias=False)
        if SHAPE["is_tied"]:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        every = SETTINGS["recompute_every"]
        for index in range(0, len(self.blocks), every):
            group = self.blocks[index : index + every]
            # Of several layers one checkpoint: backward runs all of them forward again.
            x = checkpoint(through, group, x, use_reentrant=False) if every > 1 else group[0](x)
        logits = self.head(self.norm(x))[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def batches(device: torch.device) -> Iterator[Tensor]:
    shape = (SETTINGS["micro_batch"], SETTINGS["seq_len"])
    while True:
        yield torch.randint(SHAPE["vocab"], shape, device=device)


def sharded(model: Decoder) -> nn.Module:
    """FSDP2: each block is gathered on its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    world, shard = dist.get_world_size(), SETTINGS["shard"]
    mesh = init_device_mesh(kind, (world,))
    if 0 < shard < world:
        mesh = init_device_mesh(kind, (world // shard, shard), mesh_dim_names=("copy", "shard"))
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": SETTINGS["zero_stage"] == 3}
    if SETTINGS["precision"] == "bf16":
        dtype = torch.bfloat16
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    if SETTINGS["offload"] == "all":
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    if SETTINGS["optimizer"] in ("sgd", "momentum"):
        momentum = 0.9 if SETTINGS["optimizer"] == "momentum" else 0.0
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=momentum)
    is_fused = torch.cuda.is_available() and SETTINGS["offload"] == "none"
    return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=is_fused)


def prepared(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """Model and optimizer as the layout says, and how to run a backward pass."""
    if SETTINGS["launcher"] == "accelerate":
        accelerator = importlib.import_module("accelerate").Accelerator()
        model = Decoder().to(device)
        model, optimizer = accelerator.prepare(model, optimizer_of(model))
        return model, optimizer, accelerator.backward
    model = Decoder() if SETTINGS["offload"] == "all" else Decoder().to(device)
    if SETTINGS["weights"] == "bf16":
        model = model.to(torch.bfloat16)
    if SETTINGS["launcher"] == "fsdp2":
        wrapped: nn.Module = sharded(model)
    elif dist.get_world_size() > 1:
        wrapped = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=25, gradient_as_bucket_view=True
        )
    else:
        wrapped = model
    return wrapped, optimizer_of(wrapped), Tensor.backward


def step(model: nn.Module, data: Iterator[Tensor], backward: Any, device: torch.device) -> float:
    """One optimizer step's micro-batches; the mean loss."""
    num, total = SETTINGS["num_micro"], 0.0
    is_autocast = SETTINGS["precision"] == "bf16" and SETTINGS["launcher"] == "ddp"
    for index in range(num):
        # Plain data ranks reduce gradients once a step, with the last micro-batch.
        is_held = index < num - 1 and isinstance(model, nn.parallel.DistributedDataParallel)
        with model.no_sync() if is_held else contextlib.nullcontext():  # type: ignore[operator]
            with torch.autocast(device.type, torch.bfloat16, enabled=is_autocast):
                loss = model(next(data)) / num
            backward(loss)
        total += float(loss.detach())
    return total


def main() -> None:
    has_cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if has_cuda else torch.device("cpu")
    if has_cuda:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = SETTINGS["precision"] != "fp32"
    if SETTINGS["launcher"] != "accelerate":
        dist.init_process_group("nccl" if has_cuda else "gloo")
    torch.manual_seed(0)
    model, optimizer, backward = prepared(device)
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(rank)
    data, times = batches(device), []
    for index in range(STEPS):
        start = time.perf_counter()
        loss = step(model, data, backward, device)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if has_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        if rank == 0:
            print(f"step {index} loss {loss:.4f} {times[-1]:.4f} s", flush=True)
    if rank == 0:
        report(times)
    if dist.is_initialized():
        # The model first: a DistributedDataParallel that has the group last holds the interpreter
        # while gloo's thread, which it waits for, wants it (torch 2.13).
        del model, optimizer, backward
        dist.destroy_process_group()


def report(times: list[float]) -> None:
    """What a step took beside what was planned; the first steps warm up."""
    steady = sorted(times[min(3, len(times) - 1) :])
    result: dict[str, Any] = {"step_s": steady[len(steady) // 2]}
    if torch.cuda.is_available():
        result["peak_bytes"] = torch.cuda.max_memory_allocated()
        result["reserved_bytes"] = torch.cuda.max_memory_reserved()
    print(json.dumps({"measured": result, "planned": SETTINGS["planned"]}), flush=True)


if __name__ == "__main__":
    main()
