"""The models of the second set that no library has in the form needed; sizes are the caller's."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab.models import ResBlock


class PointNet(nn.Module):
    """A physics-informed network for Burgers' equation: u(x, t) and, by differentiating twice, what
    the equation leaves over."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [2, *[width] * depth]
        hidden = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
        self.net = nn.Sequential(*hidden, nn.Linear(width, 1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        u = self.net(torch.cat([x, t], 1))
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), (x,), create_graph=True)
        residual: Tensor = u_t + u * u_x - 0.003 * u_xx
        return residual


class NeuralODE(nn.Module):
    """dy/dt = f(y), integrated by Runge-Kutta of order four in a Python loop."""

    def __init__(self, dim: int, hidden: int, steps: int) -> None:
        super().__init__()
        self.f = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, dim),
        )
        self.steps = steps

    def forward(self, y: Tensor) -> Tensor:
        h = 1.0 / self.steps
        for _ in range(self.steps):
            k1 = self.f(y)
            k2 = self.f(y + h / 2 * k1)
            k3 = self.f(y + h / 2 * k2)
            k4 = self.f(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y


class ActorCritic(nn.Module):
    """A Gaussian policy and a value, two small trunks."""

    def __init__(self, obs: int, act: int, width: int) -> None:
        super().__init__()

        def trunk(out: int) -> nn.Module:
            return nn.Sequential(
                nn.Linear(obs, width),
                nn.Tanh(),
                nn.Linear(width, width),
                nn.Tanh(),
                nn.Linear(width, out),
            )

        self.actor, self.critic, self.log_std = trunk(act), trunk(1), nn.Parameter(torch.zeros(act))

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        policy = torch.distributions.Normal(
            self.actor(obs), self.log_std.exp(), validate_args=False
        )  # type: ignore[no-untyped-call]
        log_prob, entropy = policy.log_prob(action).sum(-1), policy.entropy().sum(-1)  # type: ignore[no-untyped-call]
        return log_prob, entropy, self.critic(obs).squeeze(-1)


def encoder_layer(dim: int, heads: int) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


class TabularTransformer(nn.Module):
    """FT-Transformer-like: each number of a row becomes a token."""

    def __init__(self, features: int, dim: int, layers: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(features, dim)),
            nn.Parameter(torch.zeros(features, dim)),
        )
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.layers = nn.Sequential(*[encoder_layer(dim, 4) for _ in range(layers)])
        self.head = nn.Linear(dim, 1)

    def forward(self, row: Tensor) -> Tensor:
        tokens = row[:, :, None] * self.weight + self.bias
        x = torch.cat([self.cls.expand(row.shape[0], -1, -1), tokens], 1)
        return self.head(self.layers(x)[:, 0]).squeeze(-1)  # type: ignore[no-any-return]


def tabular_mlp(features: int, width: int, depth: int) -> nn.Module:
    block = [
        m for _ in range(depth) for m in (nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
    ]
    return nn.Sequential(nn.Linear(features, width), *block, nn.Linear(width, 1), nn.Flatten(0))


class ConvVae(nn.Module):
    """A variational autoencoder of plain convolutions, four times smaller in the middle."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        w = width

        def conv(a: int, b: int, stride: int = 1) -> list[nn.Module]:
            return [nn.Conv2d(a, b, 3, stride, 1), nn.ReLU()]

        def grow(a: int, b: int) -> list[nn.Module]:
            return [nn.ConvTranspose2d(a, b, 4, 2, 1), nn.ReLU()]

        self.enc = nn.Sequential(
            *conv(3, w),
            *conv(w, 2 * w, 2),
            *conv(2 * w, 2 * w),
            *conv(2 * w, 4 * w, 2),
            *conv(4 * w, 4 * w),
            *conv(4 * w, 4 * w),
        )
        self.moments = nn.Conv2d(4 * w, 2 * latent, 1)
        self.dec = nn.Sequential(
            *conv(latent, 4 * w),
            *conv(4 * w, 4 * w),
            *grow(4 * w, 2 * w),
            *conv(2 * w, 2 * w),
            *grow(2 * w, w),
            *conv(w, w),
        )
        self.out = nn.Conv2d(w, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The negative lower bound."""
        mean, log_var = self.moments(self.enc(x)).float().chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).mean()
        return F.mse_loss(self.out(self.dec(z)).float(), x) + 1e-3 * kl


class PixelAttention(nn.Module):
    """Self-attention over the pixels of a feature map."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(8, channels),
            nn.Conv2d(channels, 3 * channels, 1),
            nn.Conv2d(channels, channels, 1),
        )
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = (
            self.qkv(self.norm(x))
            .view(b, 3, self.heads, c // self.heads, h * w)
            .transpose(-1, -2)
            .unbind(1)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w)
        return x + self.out(y)  # type: ignore[no-any-return]


class Ddpm(nn.Module):
    """A denoiser with attention where the image is smallest."""

    def __init__(self, width: int) -> None:
        super().__init__()
        w, emb = width, 4 * width
        self.time = nn.Sequential(nn.Linear(1, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.stem, self.head = nn.Conv2d(3, w, 3, 1, 1), nn.Conv2d(w, 3, 3, 1, 1)
        self.down1, self.shrink1 = ResBlock(w, w, emb), nn.Conv2d(w, 2 * w, 3, 2, 1)
        self.down2, self.shrink2 = ResBlock(2 * w, 2 * w, emb), nn.Conv2d(2 * w, 2 * w, 3, 2, 1)
        self.mid1, self.attention, self.mid2 = (
            ResBlock(2 * w, 2 * w, emb),
            PixelAttention(2 * w, 4),
            ResBlock(2 * w, 2 * w, emb),
        )
        self.up2, self.up1 = ResBlock(4 * w, 2 * w, emb), ResBlock(3 * w, w, emb)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        emb = self.time(t[:, None])
        a = self.down1(self.stem(x), emb)
        b = self.down2(self.shrink1(a), emb)
        y = self.mid2(self.attention(self.mid1(self.shrink2(b), emb)), emb)
        y = self.up2(torch.cat([F.interpolate(y, scale_factor=2.0), b], 1), emb)
        y = self.up1(torch.cat([F.interpolate(y, scale_factor=2.0), a], 1), emb)
        return self.head(y)  # type: ignore[no-any-return]


class GlobalNorm(nn.Module):
    """Conv-TasNet's norm over channels and time, written out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain, self.shift = (
            nn.Parameter(torch.ones(channels, 1)),
            nn.Parameter(torch.zeros(channels, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        mean = x.mean((1, 2), keepdim=True)
        var = (x - mean).pow(2).mean((1, 2), keepdim=True)
        return self.gain * (x - mean) / (var + 1e-8).sqrt() + self.shift


class TasNet(nn.Module):
    """Separates a mixture of two voices: learned filters, a stack of dilated convolutions,
    masks."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        c = channels
        self.enc, self.dec = (
            nn.Conv1d(1, c, 16, 8, bias=False),
            nn.ConvTranspose1d(c, 1, 16, 8, bias=False),
        )
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv1d(c, c, 3, padding=2**i, dilation=2**i),
                    nn.PReLU(),
                    GlobalNorm(c),
                    nn.Conv1d(c, c, 1),
                )
                for i in range(blocks)
            ]
        )
        self.masks = nn.Conv1d(c, 2 * c, 1)

    def forward(self, wave: Tensor) -> Tensor:
        mix = self.enc(wave[:, None])
        y = mix
        for block in self.blocks:
            y = y + block(y)
        masks = torch.sigmoid(self.masks(y)).unflatten(1, (2, -1))
        return self.dec((mix[:, None] * masks).flatten(0, 1)).view(wave.shape[0], 2, -1)  # type: ignore[no-any-return]


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention, a gated depthwise convolution, half a feed-forward."""

    def __init__(self, dim: int, heads: int, kernel: int) -> None:
        super().__init__()

        def feed() -> nn.Module:
            return nn.Sequential(
                nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim)
            )

        self.first, self.second, self.heads = feed(), feed(), heads
        self.norm_a, self.qkv, self.out = (
            nn.LayerNorm(dim),
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
        )
        self.norm_c, self.gate = nn.LayerNorm(dim), nn.Conv1d(dim, 2 * dim, 1)
        self.conv = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.tail = nn.Sequential(nn.BatchNorm1d(dim), nn.SiLU(), nn.Conv1d(dim, dim, 1))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(x)
        q, k, v = self.qkv(self.norm_a(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = F.glu(self.gate(self.norm_c(x).transpose(1, 2)), 1)
        x = x + self.tail(self.conv(y)).transpose(1, 2)
        return self.norm(x + 0.5 * self.second(x))  # type: ignore[no-any-return]


class Speller(nn.Module):
    """Conformer blocks over a spectrogram, a letter for each frame."""

    def __init__(self, mels: int, dim: int, layers: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(mels, dim),
            *[ConformerBlock(dim, 4, 15) for _ in range(layers)],
            nn.Linear(dim, 32),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


class XlLayer(nn.Module):
    """Transformer-XL: attention over this segment and the one before, with a bias for the
    distance."""

    def __init__(self, dim: int, heads: int, seq: int) -> None:
        super().__init__()
        self.norm, self.norm2, self.heads, self.seq = (
            nn.LayerNorm(dim),
            nn.LayerNorm(dim),
            heads,
            seq,
        )
        self.q, self.kv, self.out = (
            nn.Linear(dim, dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(dim, dim),
        )
        self.feed = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.distance = nn.Parameter(torch.zeros(heads, 2 * seq))
        far = torch.arange(seq)[:, None] + seq - torch.arange(2 * seq)[None]
        # Wrapped, so that masked places spread over the biases: piled on one, its gradient is
        # summed by a single warp.
        self.register_buffer("far", far.remainder(2 * seq), persistent=False)
        self.register_buffer("later", far < 0, persistent=False)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        y = self.norm(torch.cat([memory, x], 1))
        q, (k, v) = self.split(self.q(y[:, self.seq :])), map(self.split, self.kv(y).chunk(2, -1))
        score = (
            q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + self.distance[:, self.get_buffer("far")]
        )
        weight = score.masked_fill(self.get_buffer("later"), float("-inf")).softmax(-1)
        x = x + self.out((weight.to(v.dtype) @ v).transpose(1, 2).flatten(2))
        return x + self.feed(self.norm2(x))  # type: ignore[no-any-return]


class TransformerXl(nn.Module):
    """Layers that remember the segment before; the memory stays in place, so a step can be
    captured."""

    def __init__(self, vocab: int, dim: int, layers: int, seq: int, batch: int) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(vocab, dim), nn.Linear(dim, vocab)
        self.layers = nn.ModuleList([XlLayer(dim, max(1, dim // 64), seq) for _ in range(layers)])
        self.register_buffer("memory", torch.zeros(layers, batch, seq, dim), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x, memory = self.emb(ids), self.get_buffer("memory")
        met = []
        for i, layer in enumerate(self.layers):
            met.append(x.detach())
            x = layer(x, memory[i].clone())
        for i, seen in enumerate(met):
            memory[i].copy_(seen)
        return self.head(x)  # type: ignore[no-any-return]


class Translator(nn.Module):
    """A GRU reads, a GRU writes, taught by the true words."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(vocab, dim), nn.Linear(dim, vocab)
        self.reader, self.writer = (
            nn.GRU(dim, dim, batch_first=True),
            nn.GRU(dim, dim, batch_first=True),
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, state = self.reader(self.emb(source))
        return self.head(self.writer(self.emb(target), state)[0])  # type: ignore[no-any-return]


class Adapted(nn.Module):
    """LoRA: a frozen linear layer and a low-rank addition that is trained."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


class Watched(nn.Module):
    """An encoder; `watch` sees each layer's output."""

    def __init__(self, vocab: int, dim: int, layers: int) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(vocab, dim), nn.Linear(dim, vocab)
        self.layers = nn.ModuleList([encoder_layer(dim, max(1, dim // 64)) for _ in range(layers)])
        self.watched = False
        self.shapes: list[torch.Size] = []

    @torch.compiler.disable
    def watch(self, x: Tensor) -> None:
        self.shapes[:] = [x.shape]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
            if self.watched:
                self.watch(x)
        return self.head(x)  # type: ignore[no-any-return]
