"""Runs on images: classifiers, a denoiser, a GAN."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab import models
from lab.loops.data import Photos, StoredImages, ahead, from_host, loaded, on_device, pinned, size
from lab.loops.steps import adamw, captured, read_loss, sgd, train
from lab.measure import BIG, DEV, Run


def photo_batch(batch: int, side: int) -> Callable[[], Any]:
    return lambda: (torch.randn(batch, 3, side, side), torch.randint(0, 1000, (batch,)))


def classify(model: nn.Module, channels_last: bool = False) -> Callable[[Any], Tensor]:
    def forward(batch: Any) -> Tensor:
        x, y = batch
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(model(x), y)

    return forward


VIT = {
    "image_size": 224,
    "patch_size": 16,
    "num_layers": 4,
    "num_heads": 12,
    "hidden_dim": 768,
    "mlp_dim": 3072,
}


def vit(layers: int) -> nn.Module:
    return models.vision("VisionTransformer", **VIT | {"num_layers": layers}).to(DEV)


def vit_photos(*, workers: int) -> Run:
    model, batch = vit(4), size(32, 2)
    batches = loaded(Photos(224), batch=batch, workers=workers)
    return Run(step=train(classify(model), batches, adamw(model)))


def vit_device(
    *, after: Iterable[Callable[[Tensor], object]] = (), batch: int = 256, layers: int = 4
) -> Run:
    model = vit(layers)
    return Run(
        step=train(
            classify(model), on_device(photo_batch(size(batch, 2), 224)), adamw(model), after=after
        )
    )


def vit_average(*, multi_tensor: bool) -> Run:
    """Keeps a moving average of the weights and the norms of its change: hundreds of small kernels
    after each step."""
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

    return Run(
        step=train(
            classify(model), on_device(photo_batch(size(256, 2), 224)), adamw(model), after=[update]
        )
    )


def conv_net(
    name: str, *, batch: int, channels_last: bool, amp: bool, side: int = 224, **kw: Any
) -> Run:
    model = models.vision(name, **kw).to(DEV)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = on_device(photo_batch(size(batch, 2), size(side, 64)))
    return Run(step=train(classify(model, channels_last), batches, sgd(model), amp=amp))


def resnet_copy(*, pin: bool, side_stream: bool = False) -> Run:
    model = models.vision("resnet18").to(DEV).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    make = photo_batch(size(256, 2), size(224, 64))
    batches = (
        ahead(itertools.cycle([pinned(make()) for _ in range(4)]))
        if side_stream
        else from_host(make, pin=pin)
    )
    return Run(step=train(classify(model, True), batches, sgd(model)))


def upscale(*, channels_last: bool) -> Run:
    model = models.upscaler(size(16, 8), 6).to(DEV)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    side, batch = size(256, 16), size(32, 2)

    def forward(x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
        return (model(F.avg_pool2d(x, 2)) - x).square().mean()

    return Run(
        step=train(
            forward,
            on_device(lambda: torch.randn(batch, 3, 2 * side, 2 * side)),
            adamw(model),
            amp=False,
        )
    )


def mish(*, compiled: bool) -> Run:
    model: Any = models.MishNet(size(64, 8), size(4, 2)).to(DEV)
    net = torch.compile(model) if compiled else model
    make = photo_batch(size(128, 2), size(96, 16))
    batches = on_device(
        lambda: [part % 10 if part.dtype == torch.int64 else part for part in make()]
    )
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
    inner = train(
        denoise(model), on_device(lambda: torch.randn(batch, 3, side, side)), adamw(model)
    )

    def step() -> None:
        with torch.autograd.set_detect_anomaly(anomaly):
            inner()

    return Run(step=step)


def gan(*, looped: bool = False, read: bool = False, graph: bool = False) -> Run:
    """Two networks, two optimizers, two backward passes a step."""
    gen, dis = (m.to(DEV) for m in models.gan_pair(size(10, 2), size(32, 8)))
    kw: dict[str, Any] = (
        {"foreach": False, "fused": False} if looped else {"fused": True, "capturable": BIG}
    )
    opt_g, opt_d = (torch.optim.Adam(m.parameters(), lr=2e-4, **kw) for m in (gen, dis))
    batch, side = size(16, 2), size(16, 8)
    real, noise = (
        torch.randn(batch, 3, side, side, device=DEV),
        torch.randn(batch, 8, side, side, device=DEV),
    )

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
