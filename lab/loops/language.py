"""Runs on tokens: transformers, an LSTM, a mixture of experts, wide layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab import models
from lab.loops.data import from_host, on_device, size, tokens
from lab.loops.steps import adamw, give_back_cache, read_loss, saver, train
from lab.measure import BIG, DEV, Run


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


def gpt2(
    *, layers: int, vocab: int = 8192, attn: str = "sdpa", dim: int = 768, seq: int = 1024
) -> Any:
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
        return loss_of(
            hidden.reshape(-1, hidden.shape[-1]), model.lm_head.weight, ids[:, 1:].reshape(-1)
        )

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
    return Run(
        step=train(language(model), batches, adamw(model), amp=amp, after=hooks), matmul=matmul
    )


def gpt2_run(
    *,
    layers: int = 4,
    batch: int = 8,
    seq: int = 1024,
    vocab: int = 8192,
    attn: str = "sdpa",
    pin: bool | None = None,
) -> Run:
    """`pin` None: the batches are on the device already."""
    model = gpt2(
        layers=size(layers, 2), vocab=vocab, attn=attn, dim=size(768, 64), seq=size(seq, 16)
    )
    make = tokens(size(batch, 2), size(seq, 16), 8192)
    batches = on_device(make) if pin is None else from_host(make, pin=pin)
    return Run(step=train(language(model), batches, adamw(model)))


def lstm(*, cells: bool, layers: int, dim: int, seq: int, compiled: bool = False) -> Run:
    model: Any = models.CellLoop(2048, size(dim, 16), layers, cells).to(DEV)
    net = torch.compile(model) if compiled else model

    def forward(ids: Tensor) -> Tensor:
        return F.cross_entropy(net(ids).flatten(0, 1), ids.flatten())

    return Run(
        step=train(
            forward, on_device(tokens(size(64, 2), size(seq, 8), 2048)), adamw(model), amp=False
        )
    )


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
    return Run(
        step=train(lambda x: model(x).float().square().mean(), batches, opt, keep_casts=keep_casts)
    )


def wide_mlp(**opt_kw: Any) -> Run:
    """Ten big matrices: few enough that a loop over them costs nothing."""
    dim = size(4096, 32)
    model = nn.Sequential(
        *[m for _ in range(10) for m in (nn.Linear(dim, dim, bias=False), nn.ReLU())]
    ).to(DEV)
    batches = on_device(lambda: torch.randn(size(98304, 8), dim, dtype=torch.bfloat16, device=DEV))
    return Run(
        step=train(lambda x: model(x).float().square().mean(), batches, adamw(model, **opt_kw))
    )
