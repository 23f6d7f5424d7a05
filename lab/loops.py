"""The training loops of the lab: each function builds one variant of one run.

Sizes are chosen on an H200 so that the planted fault, or its absence, shows; without a GPU they shrink to a rehearsal.
"""

from __future__ import annotations

import gc
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from lab import models
from lab.measure import BIG, DEV, Run

Batches = Iterator[Any]


def size(big: int, tiny: int) -> int:
    return big if BIG else tiny


# ---------------------------------------------------------------- data


class Photos(Dataset[tuple[Tensor, int]]):
    """Decoded photos, augmented on the CPU: crop, resize, flip, jitter, normalise."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.raw = torch.randint(0, 255, (32, 3, 256, 256), dtype=torch.uint8)
        self.mean, self.std = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.23, 0.22, 0.22])[:, None, None]

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        top, left = i * 7 % 30, i * 13 % 30
        x = self.raw[i % 32, :, top : top + 220, left : left + 220].float()[None]
        x = F.interpolate(x, size=(self.side, self.side), mode="bicubic", antialias=True, align_corners=False)[0]
        x = x.flip(-1) if i % 2 else x
        x = (x * (0.8 + 0.4 * (i % 5) / 4)).clamp(0, 255) / 255
        return (x - self.mean) / self.std, i % 1000


class StoredImages(Dataset[Tensor]):
    """Small images behind slow storage: the read waits, the processor does not work."""

    def __init__(self, side: int, read_ms: float) -> None:
        self.raw, self.read_ms = torch.randn(64, 3, side, side), read_ms

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, i: int) -> Tensor:
        time.sleep(self.read_ms / 1e3)
        return self.raw[i % 64]


def on_device(make: Callable[[], Any]) -> Batches:
    """Four batches that are already where they are needed, over and over."""
    return itertools.cycle([to_device(make()) for _ in range(4)])


def to_device(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(DEV, non_blocking=True)
    return [to_device(part) for part in batch]


def pinned(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.pin_memory() if BIG else batch
    return [pinned(part) for part in batch]


def from_host(make: Callable[[], Any], *, pin: bool) -> Batches:
    """Four host batches, copied to the device as each is asked for."""
    ready = [pinned(make()) if pin else make() for _ in range(4)]
    return map(to_device, itertools.cycle(ready))


def ahead(host: Iterable[Any]) -> Batches:
    """Copies the next batch on a side stream while the current one trains."""
    if not BIG:
        yield from map(to_device, host)
        return
    side = torch.cuda.Stream()
    coming = None
    for batch in host:
        with torch.cuda.stream(side):
            moved = to_device(batch)
        if coming is not None:
            yield coming
        torch.cuda.current_stream().wait_stream(side)
        for part in moved:
            part.record_stream(torch.cuda.current_stream())
        coming = moved


def loaded(data: Dataset[Any], *, batch: int, workers: int, prefetch: int = 2, pin: bool = True) -> Batches:
    loader = DataLoader(
        data,
        batch_size=batch,
        num_workers=workers,
        pin_memory=pin and BIG,
        persistent_workers=workers > 0,
        prefetch_factor=prefetch if workers else None,
    )
    return map(to_device, itertools.chain.from_iterable(itertools.repeat(loader)))


# ---------------------------------------------------------------- steps


def train(
    forward: Callable[[Any], Tensor],
    batches: Batches,
    opt: torch.optim.Optimizer,
    *,
    amp: bool = True,
    keep_casts: bool = True,
    accum: int = 1,
    after: Iterable[Callable[[Tensor], object]] = (),
) -> Callable[[], None]:
    """One optimizer step over `accum` micro-batches, then whatever the run does `after` each step."""
    hooks = tuple(after)

    def step() -> None:
        for _ in range(accum):
            batch = next(batches)
            with torch.autocast(DEV, torch.bfloat16, enabled=amp, cache_enabled=keep_casts):
                loss = forward(batch)
            (loss / accum if accum > 1 else loss).backward()  # type: ignore[no-untyped-call]
        opt.step()
        opt.zero_grad(set_to_none=True)
        for hook in hooks:
            hook(loss.detach())

    return step


def adamw(model: nn.Module, **kw: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **(kw or {"fused": True}))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def read_loss(loss: Tensor) -> object:
    return loss.item()


def give_back_cache(_: Tensor) -> object:
    return torch.cuda.empty_cache() if BIG else None


def saver(state: Callable[[], Any]) -> Callable[[Tensor], object]:
    path = os.path.join(tempfile.mkdtemp(), "weights.pt")
    return lambda _: torch.save(state(), path)


def collector(num_objects: int) -> Callable[[Tensor], object]:
    """gc.collect() each step in a process that holds a large index of small Python objects."""
    index = [{"path": f"{i}.jpg", "label": [i]} for i in range(num_objects)]
    return lambda _: (gc.collect(), len(index))


# ---------------------------------------------------------------- images


def photo_batch(batch: int, side: int) -> Callable[[], Any]:
    return lambda: (torch.randn(batch, 3, side, side), torch.randint(0, 1000, (batch,)))


def classify(model: nn.Module, channels_last: bool = False) -> Callable[[Any], Tensor]:
    def forward(batch: Any) -> Tensor:
        x, y = batch
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(model(x), y)

    return forward


VIT = {"image_size": 224, "patch_size": 16, "num_layers": 4, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}


def vit(layers: int) -> nn.Module:
    return models.vision("VisionTransformer", **VIT | {"num_layers": layers}).to(DEV)


def vit_photos(*, workers: int) -> Run:
    model, batch = vit(4), size(32, 2)
    batches = loaded(Photos(224), batch=batch, workers=workers)
    return Run(step=train(classify(model), batches, adamw(model)))


def vit_device(*, after: Iterable[Callable[[Tensor], object]] = (), batch: int = 256, layers: int = 4) -> Run:
    model = vit(layers)
    return Run(step=train(classify(model), on_device(photo_batch(size(batch, 2), 224)), adamw(model), after=after))


def vit_average(*, multi_tensor: bool) -> Run:
    """Keeps a moving average of the weights and the norms of its change: hundreds of small kernels after each step."""
    model = vit(6)
    params = [p.detach() for p in model.parameters()]
    mean = [p.clone() for p in params]

    def update(_: Tensor) -> object:
        if multi_tensor:
            torch._foreach_lerp_(mean, params, 0.001)
            return torch._foreach_norm(mean)  # noqa: SLF001
        for m, p in zip(mean, params, strict=True):
            m.lerp_(p, 0.001)
        return [m.norm() for m in mean]

    return Run(step=train(classify(model), on_device(photo_batch(size(256, 2), 224)), adamw(model), after=[update]))


def conv_net(name: str, *, batch: int, channels_last: bool, amp: bool, side: int = 224, **kw: Any) -> Run:
    model = models.vision(name, **kw).to(DEV)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = on_device(photo_batch(size(batch, 2), size(side, 64)))
    return Run(step=train(classify(model, channels_last), batches, sgd(model), amp=amp))


def resnet_copy(*, pin: bool, side_stream: bool = False) -> Run:
    model = models.vision("resnet18").to(DEV).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    make = photo_batch(size(256, 2), size(224, 64))
    batches = ahead(itertools.cycle([pinned(make()) for _ in range(4)])) if side_stream else from_host(make, pin=pin)
    return Run(step=train(classify(model, True), batches, sgd(model)))


def upscale(*, channels_last: bool) -> Run:
    model = models.upscaler(size(16, 8), 6).to(DEV)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    side, batch = size(256, 16), size(32, 2)

    def forward(x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
        return (model(F.avg_pool2d(x, 2)) - x).square().mean()

    return Run(step=train(forward, on_device(lambda: torch.randn(batch, 3, 2 * side, 2 * side)), adamw(model), amp=False))


def mish(*, compiled: bool) -> Run:
    model: Any = models.MishNet(size(64, 8), size(4, 2)).to(DEV)
    net = torch.compile(model) if compiled else model
    make = photo_batch(size(128, 2), size(96, 16))
    batches = on_device(lambda: [part % 10 if part.dtype == torch.int64 else part for part in make()])
    return Run(step=train(classify(net), batches, adamw(model)))


def denoise(model: nn.Module) -> Callable[[Any], Tensor]:
    def forward(x: Tensor) -> Tensor:
        t, noise = torch.rand(x.shape[0], device=x.device), torch.randn_like(x)
        keep = t[:, None, None, None]
        return F.mse_loss(model(x * (1 - keep) + noise * keep, t).float(), noise)

    return forward


def unet(*, workers: int, read_ms: float, recompute: bool = False, prefetch: int = 2) -> Run:
    model = models.UNet(size(64, 8), recompute).to(DEV)
    side, batch = size(64, 16), size(32, 2)
    batches = loaded(StoredImages(side, read_ms), batch=batch, workers=workers, prefetch=prefetch)
    return Run(step=train(denoise(model), batches, adamw(model)))


def unet_anomaly(*, anomaly: bool) -> Run:
    model = models.UNet(size(64, 8)).to(DEV)
    side, batch = size(64, 16), size(32, 2)
    inner = train(denoise(model), on_device(lambda: torch.randn(batch, 3, side, side)), adamw(model))

    def step() -> None:
        with torch.autograd.set_detect_anomaly(anomaly):
            inner()

    return Run(step=step)


def gan(*, looped: bool = False, read: bool = False, graph: bool = False) -> Run:
    """Two networks, two optimizers, two backward passes a step."""
    gen, dis = (m.to(DEV) for m in models.gan_pair(size(10, 2), size(32, 8)))
    kw: dict[str, Any] = {"foreach": False, "fused": False} if looped else {"fused": True, "capturable": BIG}
    opt_g, opt_d = (torch.optim.Adam(m.parameters(), lr=2e-4, **kw) for m in (gen, dis))
    batch, side = size(16, 2), size(16, 8)
    real, noise = torch.randn(batch, 3, side, side, device=DEV), torch.randn(batch, 8, side, side, device=DEV)

    def step() -> None:
        fake = gen(noise)
        loss_d = F.softplus(-dis(real)).mean() + F.softplus(dis(fake.detach())).mean()
        loss_d.backward()
        opt_d.step()
        opt_d.zero_grad(set_to_none=True)
        loss_g = F.softplus(-dis(fake)).mean()
        loss_g.backward()
        opt_g.step()
        opt_g.zero_grad(set_to_none=True)
        opt_d.zero_grad(set_to_none=True)
        if read:
            read_loss(loss_d)
            read_loss(loss_g)

    return Run(step=captured(step) if graph and BIG else step)


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The whole step as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


# ---------------------------------------------------------------- language


def tokens(batch: int, seq: int, vocab: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, vocab, (batch, seq))


def llama(*, layers: int, dim: int, vocab: int = 8192, recompute: bool = False) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=dim,
        intermediate_size=3 * dim,
        num_hidden_layers=layers,
        num_attention_heads=max(1, dim // 64),
        num_key_value_heads=max(1, dim // 64),
        vocab_size=vocab,
        attn_implementation="sdpa",
        use_cache=False,
    )
    model: Any = LlamaForCausalLM(config).to(DEV)
    if recompute:
        model.gradient_checkpointing_enable()
    return model.train()


def bert(*, layers: int, dim: int, attn: str = "sdpa", recompute: bool = False) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=dim,
        intermediate_size=4 * dim,
        num_hidden_layers=layers,
        num_attention_heads=max(1, dim // 64),
        vocab_size=8192,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=attn,
    )
    model: Any = BertForMaskedLM(config).to(DEV)
    if recompute:
        model.gradient_checkpointing_enable()
    return model.train()


def gpt2(*, layers: int, vocab: int = 8192, attn: str = "sdpa", dim: int = 768, seq: int = 1024) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=dim,
        n_layer=layers,
        n_head=max(1, dim // 64),
        n_positions=seq,
        vocab_size=vocab,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation=attn,
        use_cache=False,
    )
    return GPT2LMHeadModel(config).to(DEV).train()  # type: ignore[arg-type]


def language(model: Any) -> Callable[[Tensor], Tensor]:
    def forward(ids: Tensor) -> Tensor:
        loss: Tensor = model(input_ids=ids, labels=ids).loss
        return loss

    return forward


def llama_run(
    *,
    layers: int = 4,
    dim: int = 512,
    batch: int = 8,
    seq: int = 512,
    recompute: bool = False,
    accum: int = 1,
    empty_cache: bool = False,
    save_norm: bool = False,
) -> Run:
    model = llama(layers=size(layers, 2), dim=size(dim, 64), recompute=recompute)
    batches = on_device(tokens(size(batch, 2), size(seq, 16), 8192))
    hooks: list[Callable[[Tensor], object]] = [give_back_cache] if empty_cache else []
    if save_norm:
        hooks.append(saver(lambda: {"norm": model.model.norm.state_dict()}))
    return Run(step=train(language(model), batches, adamw(model), accum=accum, after=hooks))


def llama_offload(*, offload: bool) -> Run:
    """Master weights and AdamW on the host: gradients go down, weights come up, every step."""
    model = llama(layers=2, dim=size(512, 64))
    batches = on_device(tokens(size(8, 2), size(512, 16), 8192))
    if not offload:
        return Run(step=train(language(model), batches, adamw(model)))
    params = list(model.parameters())
    master = [p.detach().cpu().clone().requires_grad_() for p in params]
    opt = torch.optim.AdamW(master, lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(DEV, torch.bfloat16):
            loss = language(model)(next(batches))
        loss.backward()  # type: ignore[no-untyped-call]
        for m, p in zip(master, params, strict=True):
            m.grad, p.grad = p.grad.cpu(), None
        opt.step()
        with torch.no_grad():
            for m, p in zip(master, params, strict=True):
                p.copy_(m)

    return Run(step=step)


def llama_vocabulary(*, fused_loss: bool) -> Run:
    """A small model under a 128k vocabulary: the fp32 logits are larger than all the rest."""
    vocab = size(128256, 512)
    model = llama(layers=1, dim=size(1024, 64), vocab=vocab)
    batches = on_device(tokens(size(4, 2), size(2048, 16), vocab))
    if not fused_loss:
        return Run(step=train(language(model), batches, adamw(model)))

    @torch.compile
    def loss_of(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, weight).float(), labels)

    def forward(ids: Tensor) -> Tensor:
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        return loss_of(hidden.reshape(-1, hidden.shape[-1]), model.lm_head.weight, ids[:, 1:].reshape(-1))

    return Run(step=train(forward, batches, adamw(model)))


def bert_run(
    *,
    layers: int = 4,
    dim: int = 768,
    batch: int = 32,
    seq: int = 256,
    attn: str = "sdpa",
    recompute: bool = False,
    amp: bool = True,
    matmul: str = "highest",
    save: bool = False,
) -> Run:
    model = bert(layers=size(layers, 2), dim=size(dim, 64), attn=attn, recompute=recompute)
    batches = on_device(tokens(size(batch, 2), size(seq, 16), 8192))
    hooks = [saver(model.state_dict)] if save else []
    return Run(step=train(language(model), batches, adamw(model), amp=amp, after=hooks), matmul=matmul)


def gpt2_run(
    *, layers: int = 4, batch: int = 8, seq: int = 1024, vocab: int = 8192, attn: str = "sdpa", pin: bool | None = None
) -> Run:
    """`pin` None: the batches are on the device already."""
    model = gpt2(layers=size(layers, 2), vocab=vocab, attn=attn, dim=size(768, 64), seq=size(seq, 16))
    make = tokens(size(batch, 2), size(seq, 16), 8192)
    batches = on_device(make) if pin is None else from_host(make, pin=pin)
    return Run(step=train(language(model), batches, adamw(model)))


def lstm(*, cells: bool, layers: int, dim: int, seq: int, compiled: bool = False) -> Run:
    model: Any = models.CellLoop(2048, size(dim, 16), layers, cells).to(DEV)
    net = torch.compile(model) if compiled else model

    def forward(ids: Tensor) -> Tensor:
        return F.cross_entropy(net(ids).flatten(0, 1), ids.flatten())

    return Run(step=train(forward, on_device(tokens(size(64, 2), size(seq, 8), 2048)), adamw(model), amp=False))


def mixture(*, synced: bool) -> Run:
    experts, num_tokens = size(8, 2), size(24576, 32)
    capacity = None if synced else num_tokens // experts
    model = models.MixtureModel(size(2048, 16), size(4096, 32), experts, 2, 2048, capacity).to(DEV)

    def forward(ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids), ids)

    batches = on_device(lambda: torch.randint(0, 2048, (num_tokens,)))
    return Run(step=train(forward, batches, adamw(model), after=[read_loss] if synced else []))


def shared_layers(*, keep_casts: bool) -> Run:
    model = models.SharedLayers(size(4096, 32), size(16384, 64), 8).to(DEV)
    batches = on_device(lambda: torch.randn(size(1024, 8), size(4096, 32)))
    opt = torch.optim.SGD(model.parameters(), lr=1e-4, fused=BIG)
    return Run(step=train(lambda x: model(x).float().square().mean(), batches, opt, keep_casts=keep_casts))


def wide_mlp(**opt_kw: Any) -> Run:
    """Ten big matrices: few enough that a loop over them costs nothing."""
    dim = size(4096, 32)
    model = nn.Sequential(*[m for _ in range(10) for m in (nn.Linear(dim, dim, bias=False), nn.ReLU())]).to(DEV)
    batches = on_device(lambda: torch.randn(size(98304, 8), dim, dtype=torch.bfloat16, device=DEV))
    return Run(step=train(lambda x: model(x).float().square().mean(), batches, adamw(model, **opt_kw)))


# ---------------------------------------------------------------- recommenders


def recommender(*, matmul: str = "highest") -> Run:
    """Device memory is all: the gradients of the tables are dense."""
    tables, rows, batch = size(8, 2), size(2_000_000, 100), size(4096, 4)
    model = models.Recommender(tables, rows, size(64, 8)).to(DEV)

    def clicks() -> Any:
        return torch.randn(batch, 13), torch.randint(0, rows, (tables, batch, 8)), torch.rand(batch).round()

    batches = on_device(clicks)

    def forward(part: Any) -> Tensor:
        dense, sparse, label = part
        return F.binary_cross_entropy_with_logits(model(dense, sparse), label)

    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    return Run(step=train(forward, batches, opt, amp=False), matmul=matmul)


def histories(*, pad_on_host: bool) -> Run:
    """Users' item lists of unequal length: moved one by one and padded there, or padded here and moved once."""
    users, items = size(192, 4), size(200_000, 50)
    model = models.HistoryModel(items, 64).to(DEV)
    ready = [[torch.randint(1, items, (20 + (i * 7) % 30,)) for i in range(users)] for _ in range(4)]

    def deliver(lists: list[Tensor]) -> Tensor:
        if pad_on_host:
            moved: Tensor = to_device(pinned(pad_sequence(lists, batch_first=True)))
            return moved
        return pad_sequence([to_device(one) for one in lists], batch_first=True)

    batches = map(deliver, itertools.cycle(ready))
    return Run(step=train(lambda x: F.softplus(-model(x)).mean(), batches, sgd(model), amp=False))
