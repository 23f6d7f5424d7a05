"""The models of the rank cases. Few parameters: links are sockets, and a step must not be
all-reduce alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab.measure import BIG, DEV


def vit(width: int, depth: int, image: int) -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        image, 16, depth, max(1, width // 64), width, 4 * width, num_classes=100
    ).to(DEV)


def resnet(blocks: tuple[int, int, int, int], bottleneck: bool = False) -> nn.Module:
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

    return ResNet(Bottleneck if bottleneck else BasicBlock, list(blocks), num_classes=100).to(DEV)


def convnext(width: int) -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    levels = [
        CNBlockConfig(width, 2 * width, 1),
        CNBlockConfig(2 * width, 4 * width, 2),
        CNBlockConfig(4 * width, None, 1),
    ]
    return ConvNeXt(levels, num_classes=100).to(DEV)


def llama(width: int, depth: int, vocab: int = 4096) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 64 * 64 or 64,
        num_hidden_layers=depth,
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 64),
        vocab_size=vocab,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(DEV)


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class ResidualStack(nn.Module):
    """Many small linear layers, each added to its input."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return x


class Block(nn.Module):
    """Attention and a feed-forward net; `wide` of the latter. A mask kept as a buffer where
    `masked` gives its length.

    The projections are apart so that tensor parallelism can split each of them.
    """

    def __init__(self, width: int, wide: int, heads: int, masked: int = 0) -> None:
        super().__init__()
        self.n1, self.n2, self.head_dim = nn.LayerNorm(width), nn.LayerNorm(width), width // heads
        linear = partial(nn.Linear, bias=False)
        self.q, self.k, self.v, self.o = (linear(width, width) for _ in range(4))
        self.up, self.down = linear(width, wide), linear(wide, width)
        self.mask: Tensor | None
        self.register_buffer("mask", torch.ones(masked, masked).tril().log() if masked else None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.n1(x)
        q, k, v = (
            m(y).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for m in (self.q, self.k, self.v)
        )
        mask = None if self.mask is None else self.mask[: x.shape[1], : x.shape[1]].to(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A stack of blocks over an embedding, with a head."""

    def __init__(
        self, width: int, depth: int, *, wide: int, vocab: int = 1024, masked: int = 0
    ) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.blocks = nn.ModuleList(
            Block(width, wide, max(2, width // 64), masked) for _ in range(depth)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


class RoutedBlock(nn.Module):
    """Top-1 mixture of experts, looped: the token counts come to the host, so the host cannot run
    ahead of the device."""

    def __init__(self, width: int, wide: int, experts: int) -> None:
        super().__init__()
        self.norm, self.route = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, wide, bias=False), nn.GELU(), nn.Linear(wide, width, bias=False)
            )
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        weight, choice = self.route(y).softmax(-1).max(-1)
        order = choice.argsort()
        sizes = torch.bincount(choice, minlength=len(self.experts)).tolist()
        parts = [
            expert(part) for expert, part in zip(self.experts, y[order].split(sizes), strict=True)
        ]
        return x + torch.empty_like(x).index_copy(0, order, torch.cat(parts)) * weight[:, None]


def pick(big: int, small: int) -> int:
    """`big` on a GPU; `small` in a rehearsal on a CPU."""
    return big if BIG else small
