"""`tune kernel` on Triton kernels and a small module: what it finds, what it refuses, and how near
the floor the winners are.

    PYTHONPATH=src python -m benchmarks.kernel_tuned [--seconds 95] [--only WORD] [--json FILE]
        [--cache FILE]

Six sweeps: a softmax that is wrong when a block holds less than a row, a matrix product in fp32
where TF32 must be refused, a right softmax, a layer norm under @triton.autotune, a matrix product
in fp16, and torch.compile modes of an MLP. Each has its share of the seconds. Without a GPU the
shapes are tiny and Triton's interpreter runs the kernels: then it shows that the sweep works, not
what is fast.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

torch: Any = importlib.import_module("torch")
nn, F = torch.nn, torch.nn.functional
try:
    triton: Any = importlib.import_module("triton")
    tl: Any = importlib.import_module("triton.language")
except ImportError:
    triton = tl = None

HERE = "benchmarks.kernel_tuned"
START_S = 5.0
"""About what a bench's process takes to start."""

if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _softmax_rows(x, y, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        row = tl.program_id(0).to(tl.int64) * columns
        at = tl.arange(0, BLOCK)
        top = tl.full([BLOCK], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, columns, BLOCK):
            part = tl.load(x + row + start + at, mask=start + at < columns, other=float("-inf")).to(
                tl.float32
            )
            higher = tl.maximum(top, part)
            # A lane that has seen nothing yet stands at minus infinity, and its difference to
            # itself is no number.
            total = tl.where(
                higher == float("-inf"), 0.0, total * tl.exp(top - higher) + tl.exp(part - higher)
            )
            top = higher
        most = tl.max(top, 0)
        whole = tl.sum(total * tl.exp(top - most), 0)
        for start in range(0, columns, BLOCK):
            inside = start + at < columns
            part = tl.load(x + row + start + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(y + row + start + at, tl.exp(part - most) / whole, mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _softmax_block(x, y, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        row = tl.program_id(0).to(tl.int64) * columns
        at = tl.arange(0, BLOCK)
        part = tl.load(x + row + at, mask=at < columns, other=float("-inf")).to(tl.float32)
        part = tl.exp(part - tl.max(part, 0))
        tl.store(y + row + at, part / tl.sum(part, 0), mask=at < columns)

    _NORM_CONFIGS = [
        triton.Config({"BLOCK": block}, num_warps=warps)
        for block in (1024, 4096)
        for warps in (4, 8, 16)
    ]

    @triton.autotune(configs=_NORM_CONFIGS, key=["columns"])  # type: ignore[untyped-decorator]
    @triton.jit  # type: ignore[untyped-decorator]
    def _norm_rows(x, weight, bias, y, columns, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        row = tl.program_id(0).to(tl.int64) * columns
        at = tl.arange(0, BLOCK)
        sums = tl.zeros([BLOCK], tl.float32)
        for start in range(0, columns, BLOCK):
            sums += tl.load(x + row + start + at, mask=start + at < columns, other=0.0).to(
                tl.float32
            )
        mean = tl.sum(sums, 0) / columns
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, columns, BLOCK):
            part = tl.load(x + row + start + at, mask=start + at < columns, other=0.0).to(
                tl.float32
            )
            off = tl.where(start + at < columns, part - mean, 0.0)
            squares += off * off
        scale = 1 / tl.sqrt(tl.sum(squares, 0) / columns + eps)
        for start in range(0, columns, BLOCK):
            inside = start + at < columns
            part = tl.load(x + row + start + at, mask=inside, other=0.0).to(tl.float32)
            w = tl.load(weight + start + at, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(bias + start + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(y + row + start + at, (part - mean) * scale * w + b, mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _matmul_tiles(  # type: ignore[no-untyped-def]
        a, b, c,
        M, N, K,  # noqa: N803
        BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        tiles_m = tl.cdiv(M, BM)
        tile = tl.program_id(0)
        # Eight rows of tiles at a time, so that tiles that run together share what they read.
        wide = 8 * tl.cdiv(N, BN)
        first = tile // wide * 8
        high = tl.minimum(tiles_m - first, 8)
        rows = (first + tile % wide % high) * BM + tl.arange(0, BM)
        columns = (tile % wide // high) * BN + tl.arange(0, BN)
        inner = tl.arange(0, BK)
        total = tl.zeros([BM, BN], tl.float32)
        for start in range(0, K, BK):
            k = start + inner
            one = tl.load(
                a + rows[:, None] * K + k[None, :],
                mask=(rows[:, None] < M) & (k[None, :] < K),
                other=0.0,
            )
            other = tl.load(
                b + k[:, None] * N + columns[None, :],
                mask=(k[:, None] < K) & (columns[None, :] < N),
                other=0.0,
            )
            total = tl.dot(one, other, total, input_precision=PRECISION)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        tl.store(
            c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=inside
        )


def softmax(x: Any, BLOCK: int = 1024, num_warps: int = 4) -> Any:  # noqa: N803
    y = torch.empty_like(x)
    _softmax_rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=BLOCK, num_warps=num_warps)
    return y


def plain_softmax(x: Any) -> Any:
    return torch.softmax(x, dim=-1)


def softmax_in_one_block(x: Any, BLOCK: int = 4096, num_warps: int = 4) -> Any:  # noqa: N803
    """Right only where a row fits a block: what stands behind is never written."""
    y = torch.empty_like(x)
    _softmax_block[(x.shape[0],)](x, y, x.shape[1], BLOCK=BLOCK, num_warps=num_warps)
    return y


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    y = torch.empty_like(x)
    _norm_rows[(x.shape[0],)](x, weight, bias, y, x.shape[1], 1e-5)
    return y


def plain_layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def matmul(
    a: Any, b: Any,
    BM: int = 64, BN: int = 64, BK: int = 32,  # noqa: N803
    num_warps: int = 4, num_stages: int = 2,
) -> Any:  # fmt: skip
    return _product(a, b, BM, BN, BK, "ieee", num_warps, num_stages)


def matmul_fp32(a: Any, b: Any, PRECISION: str = "ieee") -> Any:  # noqa: N803
    return _product(a, b, 64, 64, 32, PRECISION, 4, 2)


def _product(
    a: Any, b: Any,
    BM: int, BN: int, BK: int,  # noqa: N803
    precision: str, num_warps: int, num_stages: int,
) -> Any:  # fmt: skip
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=a.dtype)
    grid = (-(-m // BM) * -(-n // BN),)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    _matmul_tiles[grid](a, b, c, m, n, k, BM=BM, BN=BN, BK=BK, PRECISION=precision, **options)
    return c


def plain_matmul(a: Any, b: Any) -> Any:
    return a @ b


def _tiles(*tiles: tuple[int, int, int, int, int]) -> list[dict[str, int]]:
    return [
        dict(zip(("BM", "BN", "BK", "num_warps", "num_stages"), one, strict=True)) for one in tiles
    ]


# The second needs more shared memory than any GPU has: it must be recorded, and the sweep go on.
matmul.stepscope_configs = _tiles(  # type: ignore[attr-defined]
    (128, 128, 64, 4, 3),
    (256, 256, 128, 8, 4),
    (128, 256, 64, 8, 3),
    (128, 128, 32, 4, 4),
    (64, 128, 64, 4, 4),
)


class Mlp(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down = (
            nn.LayerNorm(1024),
            nn.Linear(1024, 4096),
            nn.Linear(4096, 1024),
        )

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    word: str
    weight: float
    """Of the seconds."""
    options: tuple[str, ...]
    shapes: str
    small: str
    """Shapes without a GPU."""


def _sweep(word: str, weight: float, shapes: str, small: str, options: str) -> Sweep:
    return Sweep(
        word=word, weight=weight, options=tuple(options.split()), shapes=shapes, small=small
    )


SWEEPS = (
    _sweep("wrong", 2.5, "4096x1000", "8x1000", f"{HERE}:softmax_in_one_block --reference "
f"{HERE}:plain_softmax"
           " --config BLOCK=128,512,1024,2048 --dtypes float32 --edges 1x1,13x999"),
    _sweep("fp32", 2.5, "1024x1024;1024x1024", "24x16;16x40", f"{HERE}:matmul_fp32 --reference "
f"{HERE}:plain_matmul"
           " --config PRECISION=tf32,tf32x3 --dtypes float32 --edges 61x45;45x29"),
    _sweep("softmax", 3, "8192x4096,4096x1000", "8x40", f"{HERE}:softmax --reference "
f"{HERE}:plain_softmax --dtypes bfloat16"
           " --config BLOCK=1024,4096 --config num_warps=4,8,16"),
    _sweep("layer_norm", 3, "8192x4096;4096;4096", "8x40;40;40", f"{HERE}:layer_norm --reference "
f"{HERE}:plain_layer_norm"
           " --dtypes bfloat16 --edges 13x7;7;7,3x999;999;999"),
    _sweep("matmul", 5, "4096x4096;4096x4096", "24x16;16x40", f"{HERE}:matmul --reference "
f"{HERE}:plain_matmul"
           " --dtypes float16 --edges 61x45;45x29"),
    _sweep("modes", 5, "256x1024", "4x1024", f"{HERE}:Mlp --config mode=default,reduce-overhead "
"--dtypes bfloat16 --edges none"
           " --no-gradients --config-timeout 40"),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=95.0)
    parser.add_argument("--only", help="sweeps whose word has this in it")
    parser.add_argument("--json", type=Path, default=Path("kernel_tuned.json"))
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--full", action="store_true", help="every sweep's whole report as well")
    asked = parser.parse_args()
    on_gpu = bool(torch.cuda.is_available())
    if triton is None:
        print(
            "triton cannot be imported: only the sweep of torch.compile modes runs", file=sys.stderr
        )
    sweeps = [
        one
        for one in SWEEPS
        if (asked.only or "") in one.word and (triton is not None or one.word == "modes")
    ]
    start, found, failures = time.monotonic(), [], []
    for at, sweep in enumerate(sweeps):
        left = asked.seconds - (time.monotonic() - start)
        share = left * sweep.weight / sum(one.weight for one in sweeps[at:])
        try:
            found.append((sweep, _tuned(sweep, max(share - START_S, 5.0), on_gpu, asked)))
        except Exception:  # noqa: BLE001 - one sweep's failure must not cost the others
            failures.append(sweep.word)
            print(f"{sweep.word} failed:\n{traceback.format_exc()}", file=sys.stderr)
        _save(found, asked.json, time.monotonic() - start)
    _show(found)
    print(
        f"\n{time.monotonic() - start:.0f} s in all; failed: {', '.join(failures) or 'none'}; "
        f"written to {asked.json}"
    )
    return 1 if failures else 0


def _tuned(sweep: Sweep, budget_s: float, on_gpu: bool, asked: argparse.Namespace) -> Any:
    from stepscope.report.document.terminal import to_text
    from stepscope.tune.cli.kernel import keep, read_options, tune
    from stepscope.tune.kernel_report.view import kernel_tuning_document

    shapes = sweep.shapes if on_gpu else sweep.small
    words = [*sweep.options, "--shapes", shapes, "--budget", f"{budget_s:.1f}"]
    print(f"{sweep.word}: {budget_s:.0f} s ...", file=sys.stderr, flush=True)
    found = tune(read_options(words))
    if asked.cache:
        keep(found, str(asked.cache))
    if asked.full:
        print(to_text(kernel_tuning_document(found), width=120))
    return found


def _save(found: list[tuple[Sweep, Any]], path: Path, seconds: float) -> None:
    from stepscope.core.codec import plain
    from stepscope.protocol.json_text import json_text

    told = {
        "seconds": seconds,
        "sweeps": {sweep.word: plain(tuning) for sweep, tuning in found},
    }
    path.write_text(json_text(told, indent=1), encoding="utf-8")


def _show(found: list[tuple[Sweep, Any]]) -> None:
    """One table: a line for each timed case, then what was refused."""
    from stepscope.tune.kernel_report.view import fault_words, settings_words

    print(
        f"{'sweep':<11} {'case':<34} {'winner':<46} {'us':>8} {'baseline':>9} {'reference':>9} "
        f"{'speedup':>17} {'of floor':>8}"
    )
    for sweep, one in found:
        for case in one.cases:
            winner = "none" if case.winner is None else settings_words(one.tryings[case.winner])
            gain = (
                ""
                if case.gain is None
                else f"{case.gain.value:.2f} ({case.gain.low:.2f}-{case.gain.high:.2f})"
            )
            times = [
                None if at is None else case.times[at] for at in (case.winner, case.baseline)
            ] + [case.reference]
            us = [f"{told.ns / 1e3:.1f}" if told else "-" for told in times]
            share = "-" if case.share_of_floor is None else f"{case.share_of_floor:.0%}"
            print(
                f"{sweep.word:<11} {case.case.words:<34} {winner:<46} {us[0]:>8} {us[1]:>9} "
                f"{us[2]:>9} {gain:>17} {share:>8}"
            )
    for sweep, one in found:
        counts = {
            outcome: sum(t.outcome == outcome for t in one.tryings)
            for outcome in ("right", "wrong", "failed", "not tried")
        }
        print(f"\n{sweep.word}: {counts}, checked in {len(one.checked)} cases, {one.wall_s:.0f} s")
        for trying in one.tryings:
            if trying.outcome in ("wrong", "failed"):
                print(f"  {trying.outcome}: {settings_words(trying)}: {fault_words(trying)}"[:220])


if __name__ == "__main__":
    sys.exit(main())
