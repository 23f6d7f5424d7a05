"""Runs on images and video beyond plain classifiers: segmentation, clips, a VAE, a denoiser,
contrastive views."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lab import models_second as models
from lab.loops.data import on_device, size
from lab.loops.images import classify, denoise
from lab.loops.steps import adamw, sgd, train
from lab.measure import DEV, Run

NUM_CLASSES = 21


def deeplab(*, read: bool) -> Run:
    """Each class's intersection and union counted after the step; `read` fetches every count at
    once."""
    from torchvision.models.segmentation import deeplabv3_resnet50

    model = deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=NUM_CLASSES, aux_loss=False
    )
    model = model.to(DEV).to(memory_format=torch.channels_last)
    batch, side = size(16, 2), size(256, 32)
    batches = on_device(
        lambda: (
            torch.randn(batch, 3, side, side),
            torch.randint(0, NUM_CLASSES, (batch, side, side)),
        )
    )
    last: dict[str, Tensor] = {}

    def forward(part: Any) -> Tensor:
        x, y = part
        out = model(x.contiguous(memory_format=torch.channels_last))["out"]
        last["guess"], last["truth"] = out.detach().argmax(1), y
        return F.cross_entropy(out, y)

    def overlap(_: Tensor) -> object:
        counts = []
        for c in range(NUM_CLASSES):
            guess, truth = last["guess"] == c, last["truth"] == c
            pair = (guess & truth).sum(), (guess | truth).sum()
            counts.append([n.item() for n in pair] if read else pair)
        return counts

    return Run(step=train(forward, batches, sgd(model), after=[overlap]))


def clips(*, channels_last: bool) -> Run:
    from torchvision.models.video import r3d_18

    model = r3d_18(weights=None, num_classes=400).to(DEV)
    if channels_last:
        model = model.to(memory_format=torch.channels_last_3d)
    batch, frames, side = size(16, 2), size(16, 4), size(112, 16)
    batches = on_device(
        lambda: (torch.randn(batch, 3, frames, side, side), torch.randint(0, 400, (batch,)))
    )

    def forward(part: Any) -> Tensor:
        x, y = part
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last_3d)
        return F.cross_entropy(model(x), y)

    return Run(step=train(forward, batches, sgd(model)))


def convnext(*, channels_last: bool) -> Run:
    from torchvision.models import convnext_tiny

    model = convnext_tiny(weights=None).to(DEV)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    batch, side = size(96, 2), size(224, 32)
    batches = on_device(
        lambda: (torch.randn(batch, 3, side, side), torch.randint(0, 1000, (batch,)))
    )
    return Run(step=train(classify(model, channels_last), batches, adamw(model)))


def vae(*, tf32: bool = False, amp: bool = False) -> Run:
    model = models.ConvVae(size(64, 8), 16).to(DEV)
    batch, side = size(256, 2), size(64, 16)
    return Run(
        step=train(
            model, on_device(lambda: torch.randn(batch, 3, side, side)), adamw(model), amp=amp
        ),
        cudnn_tf32=tf32,
    )


def ddpm(*, batch: int, accum: int) -> Run:
    model = models.Ddpm(size(128, 8)).to(DEV)
    micro, side = size(batch, 2), size(64, 16)
    return Run(
        step=train(
            denoise(model),
            on_device(lambda: torch.randn(micro, 3, side, side)),
            adamw(model),
            accum=accum,
        )
    )


def simclr(*, recompute: bool) -> Run:
    """Two views of each image through one encoder; the projection head alone may be
    checkpointed."""
    from torchvision.models import regnet_x_800mf

    dim = 512
    encoder = regnet_x_800mf(weights=None, num_classes=dim).to(memory_format=torch.channels_last)
    head = nn.Sequential(nn.Linear(dim, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, 128))
    model = nn.ModuleDict({"encoder": encoder, "head": head}).to(DEV)
    pairs, side = size(192, 2), size(160, 32)
    batches = on_device(
        lambda: torch.randn(2 * pairs, 3, side, side).contiguous(memory_format=torch.channels_last)
    )
    partner = torch.arange(2 * pairs, device=DEV).roll(pairs)
    itself = torch.eye(2 * pairs, dtype=torch.bool, device=DEV)

    def forward(views: Tensor) -> Tensor:
        y = model["encoder"](views)
        z = checkpoint(model["head"], y, use_reentrant=False) if recompute else model["head"](y)
        z = F.normalize(z.float(), dim=1)
        return F.cross_entropy((z @ z.T / 0.1).masked_fill(itself, float("-inf")), partner)

    return Run(step=train(forward, batches, sgd(model)))
