"""What the allocator reserves for steps of benchmarks/planned.py, by its rules, without a GPU.

    PYTHONPATH=src python -m benchmarks.reserved [--only WORD]

Two steps of a case run on tensors without storage; each storage that comes and goes is asked of
`analyses/memory/allocator.py`, a pool for each stream. Attention and norms stand in as one kernel
each, as on a GPU. Under FSDP2 on one rank weights are cast as a layer needs them, and gradients are
reduced and widened on a stream of their own. fp8 is left out: it is compiled.
"""

from __future__ import annotations

import argparse
import math
import sys
import weakref
from collections import defaultdict
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import planned
from stepscope.analyses.memory.allocator import Allocator
from stepscope.plan.cluster_parse import parse_cluster

torch = planned.torch
GIB = 2**30
COMPUTE, REDUCE = "compute", "reduce"


class Device:
    """Its pools, and the most that tensors held at once."""

    def __init__(self) -> None:
        self.pools: dict[str, Allocator] = defaultdict(lambda: Allocator(math.inf))
        self.held = self.most_held = 0

    def malloc(self, size: int, stream: str = COMPUTE) -> Any:
        block = self.pools[stream].malloc(size)
        self.held += block.size
        self.most_held = max(self.most_held, self.held)
        return stream, block

    def free(self, had: Any) -> None:
        stream, block = had
        self.held -= block.size
        self.pools[stream].free(block)

    @property
    def reserved(self) -> int:
        return sum(pool.most_reserved for pool in self.pools.values())


def key_of(storage: Any) -> int:
    return int(storage._cdata)  # noqa: SLF001


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Asks the device for each storage that an operator makes, until it goes."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.live: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return out

    def _note(self, storage: Any) -> None:
        key = key_of(storage)
        if key in self.live or not storage.nbytes():
            return
        block = self.device.malloc(storage.nbytes())

        def gone(_: Any) -> None:
            del self.live[key]
            self.device.free(block)

        self.live[key] = weakref.ref(storage, gone)


class Norm(torch.autograd.Function):  # type: ignore[misc,name-defined]
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        scale = torch.empty(x.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(x, weight, scale)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class Attention(torch.autograd.Function):  # type: ignore[misc,name-defined]
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        out = torch.empty_like(q.transpose(1, 2).contiguous()).transpose(1, 2)
        ctx.save_for_backward(q, k, v, out, torch.empty(q.shape[:3], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        q, k, v, *_ = ctx.saved_tensors
        grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        num_wide = 0 if q.shape == k.shape else 2
        work = [torch.empty(q.shape, dtype=torch.float32)]
        work += [torch.empty(q.shape, dtype=q.dtype) for _ in range(num_wide)]
        return grads


def attention(q: Any, k: Any, v: Any, **_: Any) -> Any:
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (part.to(torch.bfloat16) for part in (q, k, v))
    return Attention.apply(q, k, v)


class Shards:
    """FSDP2 on one rank: blocks of what it gathers, reduces and keeps."""

    def __init__(self, model: Any, device: Device) -> None:
        self.device = device
        self.groups = [list(block.parameters()) for block in model.blocks]
        of_blocks = {id(weight) for group in self.groups for weight in group}
        self.groups.append([w for w in model.parameters() if id(w) not in of_blocks])
        for weight in model.parameters():
            device.malloc(4 * weight.numel())
        self.whole: dict[int, list[Any]] = {}
        self.left: dict[int, int] = {}
        self.grads: list[Any] = []
        self.input: Any = None
        for index, group in enumerate(self.groups):
            for weight in group:
                weight.register_post_accumulate_grad_hook(lambda _, at=index: self._came(at))
        for index, block in enumerate(model.blocks):
            block.register_forward_pre_hook(lambda *_, at=index: self._gather(at))
            block.register_forward_hook(lambda *_, at=index: self._let_go(at))
            block.register_full_backward_pre_hook(lambda *_, at=index: self._gather(at))

    def begin(self) -> None:
        for grad in self.grads:
            self.device.free(grad)
        self.grads = []
        self.left = {index: len(group) for index, group in enumerate(self.groups)}
        self._gather(len(self.groups) - 1)

    def end(self) -> None:
        self.device.free(self.input)
        self.input = None

    def _gather(self, index: int) -> None:
        blocks = []
        for weight in self.groups[index] if index not in self.whole else ():
            cast = self.device.malloc(2 * weight.numel())
            blocks.append(self.device.malloc(2 * weight.numel()))
            self.device.free(cast)
        self.whole.setdefault(index, blocks)

    def _let_go(self, index: int) -> None:
        for block in self.whole.pop(index):
            self.device.free(block)

    def _came(self, index: int) -> None:
        self.left[index] -= 1
        if self.left[index]:
            return
        self._let_go(index)
        if self.input is not None:
            self.device.free(self.input)
        size = 2 * sum(weight.numel() for weight in self.groups[index])
        self.input = self.device.malloc(size)
        for weight in self.groups[index]:
            weight.grad = None
        reduced = self.device.malloc(size, REDUCE)
        self.grads.append(self.device.malloc(2 * size, REDUCE))
        self.device.free(reduced)


def played(case: planned.Case) -> Device:
    """The device after two steps, the second of which is the peak."""
    device = Device()
    storages = Storages(device)
    is_sharded = case.way == "fsdp"
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(torch.bfloat16 if is_sharded else torch.float32)
        if is_sharded:
            model = planned.Llama(case.shape, case.length, case.way)
            storages.live = {key_of(w.untyped_storage()): None for w in model.parameters()}
        torch.set_default_dtype(torch.float32)
        with storages:
            if not is_sharded:
                model = planned.Llama(case.shape, case.length, case.way)
            shards = Shards(model, device) if is_sharded else None
            tokens = torch.empty((case.batch, case.length + 1), dtype=torch.int64)
            states: list[Any] = []
            for _ in range(2):
                device.most_held = device.held
                model.zero_grad(set_to_none=True)
                if shards:
                    shards.begin()
                _loss(model, tokens, is_sharded=is_sharded).backward()
                if shards:
                    shards.end()
                for weight in model.parameters() if not states else ():
                    states += [device.malloc(4 * weight.numel()) for _ in range(2)]
    return device


def _loss(model: Any, tokens: Any, *, is_sharded: bool) -> Any:
    with torch.autocast("cpu", torch.bfloat16, enabled=not is_sharded):
        logits = model(tokens[:, :-1])
    return planned.F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases with one of these words, in commas")
    words = parser.parse_args().only.split(",")
    for name in ("kaiming_uniform_", "normal_", "ones_"):
        setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    torch.nn.RMSNorm.forward = lambda self, x: Norm.apply(x, self.weight)
    planned.F.scaled_dot_product_attention = attention
    cluster = parse_cluster("H200")
    for case in planned.CASES:
        if case.way == "fp8" or not any(word in case.name for word in words):
            continue
        device, memory = played(case), planned.predicted(case, cluster).memory
        peak, reserved = (float(value[0]) / GIB for value in (memory.allocated, memory.reserved))
        print(
            f"{case.name:22} {case.way:13} "
            f"peak {device.most_held / GIB:6.1f} GiB (planned {peak:6.1f}); "
            f"reserved {device.reserved / GIB:6.1f} GiB (planned {reserved:6.1f})",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
