"""Runs on tokens of the second set: T5, LoRA on GPT-NeoX, Transformer-XL, GRU translation, a
compiled encoder."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab import models_second as models
from lab.loops.data import on_device, size, to_device, tokens
from lab.loops.language import language
from lab.loops.steps import adamw, captured, train
from lab.measure import BIG, DEV, Run


def t5(*, vocab: int) -> Run:
    """Long inputs, answers of two tokens: few rows ever meet the vocabulary."""
    from transformers import T5Config, T5ForConditionalGeneration

    dim = size(512, 32)
    config = T5Config(
        vocab_size=vocab,
        d_model=dim,
        d_kv=size(64, 8),
        d_ff=4 * dim,
        num_layers=2,
        num_decoder_layers=1,
        num_heads=size(8, 2),
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    model: Any = T5ForConditionalGeneration(config).to(DEV).train()  # type: ignore[arg-type]
    batch, seq = size(96, 2), size(512, 16)
    batches = on_device(
        lambda: (torch.randint(2, 32000, (batch, seq)), torch.randint(2, 32000, (batch, 2)))
    )

    def forward(part: Any) -> Tensor:
        question, answer = part
        loss: Tensor = model(input_ids=question, labels=answer).loss
        return loss

    return Run(step=train(forward, batches, adamw(model)))


def lora(*, base_bf16: bool) -> Run:
    """A frozen base under autocast, its fp32 weights cast at each use; or kept in bf16."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    dim = size(2048, 64)
    config = GPTNeoXConfig(
        hidden_size=dim,
        intermediate_size=4 * dim,
        num_hidden_layers=size(3, 2),
        num_attention_heads=size(16, 2),
        vocab_size=8192,
        max_position_embeddings=1024,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attn_implementation="sdpa",
        use_cache=False,
    )
    model: Any = GPTNeoXForCausalLM(config)
    model.requires_grad_(False)
    if base_bf16:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.to(torch.bfloat16)
    for layer in model.gpt_neox.layers:
        layer.attention.query_key_value = models.Adapted(layer.attention.query_key_value, 16)
        layer.attention.dense = models.Adapted(layer.attention.dense, 16)
    model.to(DEV).train()
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    return Run(
        step=train(language(model), on_device(tokens(size(16, 2), size(1024, 16), 8192)), opt)
    )


def transformer_xl(*, graph: bool) -> Run:
    batch, seq, vocab = size(48, 2), size(256, 8), 8192
    model = models.TransformerXl(vocab, size(1024, 64), size(3, 1), seq, batch).to(DEV)
    ids = to_device(tokens(batch, seq, vocab)())

    def forward(ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    step = train(forward, itertools.repeat(ids), adamw(model, fused=True, capturable=BIG))
    return Run(step=captured(step) if graph and BIG else step)


def ngram_score(guesses: list[list[int]], truths: list[list[int]]) -> float:
    """BLEU-like: how many runs of one to four words the guess shares with the truth."""
    shared = total = 0
    for guess, truth in zip(guesses, truths, strict=True):
        for n in range(1, 5):
            mine = Counter(zip(*[guess[i:] for i in range(n)], strict=False))
            theirs = Counter(zip(*[truth[i:] for i in range(n)], strict=False))
            shared += (mine & theirs).total()
            total += mine.total()
    return shared / max(1, total)


def delayed_scores(truths: Tensor) -> Callable[[Tensor], object]:
    """Scores the guesses of the step before: their copy has long arrived, so the host never waits
    for the device."""
    words = truths.tolist()
    buffers = [truths.clone().pin_memory() if BIG else truths.clone() for _ in range(2)]
    arrived = [torch.cuda.Event() if BIG else None for _ in range(2)]
    turn = itertools.cycle((0, 1))
    scores: list[float] = []

    def score(guess: Tensor) -> None:
        now = next(turn)
        buffers[now].copy_(guess, non_blocking=True)
        if (event := arrived[now]) is not None:
            event.record()
        if (event := arrived[1 - now]) is not None:
            event.synchronize()
        scores[-1:] = [ngram_score(buffers[1 - now].tolist(), words)]

    return score


def translator(*, scored: bool) -> Run:
    batch, seq, vocab = size(128, 2), size(48, 8), size(4096, 64)
    model = models.Translator(vocab, size(512, 16)).to(DEV)
    target = torch.randint(0, vocab, (batch, seq))
    there, score = to_device(target), delayed_scores(target)
    last: dict[str, Tensor] = {}

    def forward(source: Tensor) -> Tensor:
        out = model(source, there)
        last["guess"] = out.detach().argmax(-1)
        return F.cross_entropy(out.flatten(0, 1), there.flatten())

    after = [lambda _: score(last["guess"])] if scored else []
    return Run(
        step=train(
            forward, on_device(tokens(batch, seq, vocab)), adamw(model), amp=False, after=after
        ),
        matmul="high",
    )


def watched_encoder(*, watched: bool) -> Run:
    """A compiled encoder; `watched` calls back into Python after each layer, which breaks the graph
    there."""
    model: Any = models.Watched(8192, size(1024, 64), 3).to(DEV)
    model.watched = watched
    net = torch.compile(model)

    def forward(ids: Tensor) -> Tensor:
        return F.cross_entropy(net(ids).flatten(0, 1), ids.flatten())

    return Run(
        step=train(forward, on_device(tokens(size(64, 2), size(384, 8), 8192)), adamw(model))
    )
