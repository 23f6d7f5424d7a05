"""Kernels of known character for Nsight Compute, and what our rules say of them.

On a machine with a GPU, Nsight Compute and torch >= 2.9 (once; about half a minute, each kernel is
launched once):

    ncu --set full --clock-control none --target-processes all \\
        --kernel-name "regex:known_|nvjet|gemm|cutlass" \\
        --csv --page raw python -m benchmarks.ncu_kernels > ncu_known.csv

Then, anywhere:

    PYTHONPATH=src python -m benchmarks.ncu_kernels score ncu_known.csv

`--kernel-name` keeps torch's own kernels (fills, random numbers) out. Kernels are CUDA C++ for
NVRTC, through torch.cuda._compile_kernel; where torch does not have that, two of them are launched
through Triton. `score` prints for each kernel which rules must, may and do speak, and ends with 1
if one is missing or too much.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    triton: Any = importlib.import_module("triton")
    tl: Any = importlib.import_module("triton.language")
except ImportError:
    triton = tl = None

if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def known_coalesced_copy(x, y, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at))

    @triton.jit  # type: ignore[untyped-decorator]
    def known_strided_copy(x, y, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at * 32))


SOURCE = r"""
extern "C" __global__ void known_coalesced_copy(const float4* in, float4* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}

extern "C" __global__ void known_strided_copy(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[(size_t)i * 32];
}

extern "C" __global__ void known_conflicted_transpose(const float* in, float* out, int n) {
    __shared__ float tile[32][32];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        tile[threadIdx.y + j][threadIdx.x] = in[(size_t)(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        out[(size_t)(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void known_padded_transpose(const float* in, float* out, int n) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        tile[threadIdx.y + j][threadIdx.x] = in[(size_t)(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        out[(size_t)(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}

// 96 sums a thread, and 32 registers: 1024 threads, two blocks on a multiprocessor.
extern "C" __global__ void __launch_bounds__(1024, 2)
known_spilling(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum[96];
    #pragma unroll
    for (int k = 0; k < 96; k++) sum[k] = in[(i + k * 1024) % n];
    for (int turn = 0; turn < 16; turn++) {
        float x = in[(i + turn) % n];
        #pragma unroll
        for (int k = 0; k < 96; k++) sum[k] = sum[k] * x + sum[(k + 17) % 96];
    }
    float all = 0.f;
    #pragma unroll
    for (int k = 0; k < 96; k++) all += sum[k];
    out[i] = all;
}

// One block of four warps on a multiprocessor: it asks for all of its shared memory.
// One load in flight a thread.
extern "C" __global__ void known_low_occupancy(const float* in, float* out, int n) {
    extern __shared__ float room[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned at = i;
    float sum = 0.f;
    for (int turn = 0; turn < 128; turn++) {
        float x = in[at % (unsigned)n];
        sum += x;
        at += gridDim.x * blockDim.x + (x > 100.f ? 1u : 0u);
    }
    room[threadIdx.x] = sum;
    out[i] = room[threadIdx.x];
}

// One thread adds up what the block left in shared memory, while 31 warps wait for it.
extern "C" __global__ void known_barrier_reduction(const float* in, float* out, int n) {
    __shared__ float part[1024];
    float all = 0.f;
    for (int turn = 0; turn < 8; turn++) {
        part[threadIdx.x] = in[(blockIdx.x * 8 + turn) * 1024 % n + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) for (int k = 0; k < 1024; k++) all += part[k];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = all;
}

// Arithmetic alone, alike in all blocks, one block on a multiprocessor: the grid is one wave and a
// little more.
extern "C" __global__ void __launch_bounds__(1024, 1)
known_tail_wave(const float* in, float* out, int n) {
    extern __shared__ float room[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float a = in[i % n], b = a + 1.f, c = a + 2.f, d = a + 3.f;
    for (int turn = 0; turn < 8192; turn++) {
        a = a * 1.0001f + 0.5f; b = b * 1.0002f + 0.5f;
        c = c * 1.0003f + 0.5f; d = d * 1.0004f + 0.5f;
    }
    room[threadIdx.x] = a + b + c + d;
    out[i % n] = room[threadIdx.x];
}

// Rows of 512 bytes in random order, each read several times, out of a buffer that is larger than
// the L2.
extern "C" __global__ void known_l2_misses(const float4* in, float* out, int rows) {
    unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    float sum = 0.f;
    #pragma unroll
    for (int turn = 0; turn < 8; turn++) {
        unsigned h = (warp * 8 + turn) * 2654435761u;
        h ^= h >> 16; h *= 2246822519u; h ^= h >> 13; h *= 3266489917u; h ^= h >> 16;
        float4 x = in[(size_t)(h % (unsigned)rows) * 32 + lane];
        sum += x.x + x.y + x.z + x.w;
    }
    if (sum == 12345.678f) out[0] = sum;
}

// Each block adds up a strip of a and a strip of b that is twice as long, past the L1. Row by row:
// the blocks that run together share a's strip, and b, four times the L2, comes from DRAM again for
// every row.
extern "C" __global__ void known_l2_bad_order(
    const float4* a, const float4* b, float* out, int rows, int cols, int strip
) {
    int row = blockIdx.x / cols, col = blockIdx.x % cols;
    float sum = 0.f;
    for (int i = threadIdx.x; i < strip; i += blockDim.x) {
        float4 x = __ldcg(a + (size_t)row * strip + i);
        float4 y = __ldcg(b + (size_t)col * 2 * strip + i);
        float4 z = __ldcg(b + (size_t)col * 2 * strip + strip + i);
        sum += x.x + x.y + x.z + x.w + y.x + y.y + y.z + y.w + z.x + z.y + z.z + z.w;
    }
    if (sum == 12345.678f) out[0] = sum;
}

// The same reads, column by column: blocks that run together share b's strip, and all of a fits
// the L2.
extern "C" __global__ void known_l2_good_order(
    const float4* a, const float4* b, float* out, int rows, int cols, int strip
) {
    int row = blockIdx.x % rows, col = blockIdx.x / rows;
    float sum = 0.f;
    for (int i = threadIdx.x; i < strip; i += blockDim.x) {
        float4 x = __ldcg(a + (size_t)row * strip + i);
        float4 y = __ldcg(b + (size_t)col * 2 * strip + i);
        float4 z = __ldcg(b + (size_t)col * 2 * strip + strip + i);
        sum += x.x + x.y + x.z + x.w + y.x + y.y + y.z + y.w + z.x + z.y + z.z + z.w;
    }
    if (sum == 12345.678f) out[0] = sum;
}
"""


@dataclass(frozen=True)
class KnownKernel:
    name: str
    character: str
    must: frozenset[str]
    may: frozenset[str] = frozenset()


GEMM = ("nvjet", "gemm", "cutlass")
KNOWN = (
    KnownKernel(
        "known_coalesced_copy",
        "a copy in order, 16 bytes a thread: at the DRAM's roof",
        frozenset(),
    ),
    KnownKernel(
        "known_strided_copy",
        "a copy with a stride of 32 floats",
        frozenset({"uncoalesced-access"}),
        frozenset({"memory-stalls"}),
    ),
    KnownKernel(
        "known_conflicted_transpose",
        "a transposition with 32-way bank conflicts",
        frozenset({"memory-stalls"}),
    ),
    KnownKernel("known_padded_transpose", "the same, with its tile padded", frozenset()),
    KnownKernel(
        "known_spilling",
        "96 sums a thread under a limit of 32 registers",
        frozenset({"register-pressure"}),
        frozenset({"memory-stalls"}),
    ),
    KnownKernel(
        "known_low_occupancy",
        "200 KB of shared memory for four warps, one load in flight",
        frozenset({"low-occupancy"}),
        frozenset({"memory-stalls"}),
    ),
    KnownKernel(
        "known_barrier_reduction",
        "31 warps wait at a barrier for one thread",
        frozenset({"barrier-stalls"}),
    ),
    KnownKernel("known_tail_wave", "1.12 waves of arithmetic", frozenset({"tail-wave"})),
    KnownKernel(
        "known_l2_misses",
        "random rows of a buffer 2.5 times the L2, read 8 times each",
        frozenset({"low-l2-hits"}),
        frozenset({"memory-stalls"}),
    ),
    KnownKernel(
        "known_l2_bad_order",
        "8 rows of blocks over an operand 4 times the L2, row by row",
        frozenset({"low-l2-hits"}),
        frozenset({"memory-stalls"}),
    ),
    KnownKernel(
        "known_l2_good_order",
        "the same reads, column by column",
        frozenset(),
        frozenset({"memory-stalls"}),
    ),
    KnownKernel("gemm", "torch.matmul, bf16, 4096 x 4096 x 4096", frozenset()),
)


def main() -> int:
    if sys.argv[1:2] == ["score"]:
        return score(Path(sys.argv[2]))
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        print("no GPU: nothing to launch", file=sys.stderr)
        return 2
    for known in KNOWN:
        print(
            f"{known.name}: {known.character}; must: {', '.join(sorted(known.must)) or 'nothing'}"
        )
    (launch if hasattr(torch.cuda, "_compile_kernel") else launch_triton)(torch)
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.matmul(a, b)
    torch.cuda.synchronize()
    return 0


def launch(torch: Any) -> None:
    """Each once. A tensor is passed as its address, a Python int as a C int."""
    properties = torch.cuda.get_device_properties(0)
    sms, l2 = properties.multi_processor_count, getattr(properties, "L2_cache_size", 60 << 20)
    big = torch.randn(1 << 28, device="cuda")
    out = torch.empty(1 << 26, device="cuda")
    side = 8192

    def kernel(name: str, shared: int = 0) -> Callable[..., None]:
        made = torch.cuda._compile_kernel(SOURCE, name)  # noqa: SLF001
        if shared:
            made.set_shared_memory_config(shared)
        return lambda grid, block, *args: made(
            grid=grid, block=block, args=list(args), shared_mem=shared
        )

    kernel("known_coalesced_copy")((1 << 16, 1, 1), (256, 1, 1), big, out, 1 << 24)
    kernel("known_strided_copy")((1 << 15, 1, 1), (256, 1, 1), big, out, 1 << 23)
    for name in ("known_conflicted_transpose", "known_padded_transpose"):
        kernel(name)((side // 32, side // 32, 1), (32, 8, 1), big, out, side)
    kernel("known_spilling")((sms * 8, 1, 1), (1024, 1, 1), big, out, 1 << 26)
    kernel("known_low_occupancy", 200 << 10)((sms * 8, 1, 1), (128, 1, 1), big, out, 1 << 28)
    kernel("known_barrier_reduction")((sms * 8, 1, 1), (1024, 1, 1), big, out, 1 << 26)
    kernel("known_tail_wave", 120 << 10)((sms + sms // 8, 1, 1), (1024, 1, 1), big, out, 1 << 26)
    rows = min(int(2.5 * l2) // 512, (1 << 30) // 512)
    kernel("known_l2_misses")((rows // 8, 1, 1), (256, 1, 1), big, out, rows)
    strip, rows = 4096, 8
    cols = min(4 * l2, 3 << 28) // (2 * strip * 16)
    for name in ("known_l2_bad_order", "known_l2_good_order"):
        kernel(name)((rows * cols, 1, 1), (256, 1, 1), big, big[1 << 24 :], out, rows, cols, strip)
    torch.cuda.synchronize()


def launch_triton(torch: Any) -> None:
    """The two copies: what of these Triton's language can say without a choice of its own."""
    if triton is None:
        print(
            "torch has no _compile_kernel, and Triton is not there: only the matrix product runs",
            file=sys.stderr,
        )
        return
    big, out = torch.randn(1 << 28, device="cuda"), torch.empty(1 << 26, device="cuda")
    known_coalesced_copy[(1 << 16,)](big, out, BLOCK=1024)
    known_strided_copy[(1 << 13,)](big, out, BLOCK=1024)
    torch.cuda.synchronize()


def score(path: Path) -> int:
    from stepscope.core.recordings.auxiliary import Auxiliary
    from stepscope.core.recordings.kernels import KernelRecording, KernelReport
    from stepscope.readers.format import Source
    from stepscope.recordings.ncu import (
        barrier_stalls,
        low_l2_hits,
        low_occupancy,
        memory_stalls,
        register_pressure,
        tail_wave,
        uncoalesced_access,
    )
    from stepscope.recordings.ncu import csv as ncu_csv

    rules = (
        barrier_stalls,
        low_l2_hits,
        low_occupancy,
        memory_stalls,
        register_pressure,
        tail_wave,
        uncoalesced_access,
    )
    report = ncu_csv.read([Source(path=path, label=str(path))])
    seen, wrong = set(), 0
    for kernel in report.kernels:
        known = next((one for one in KNOWN if _is(one, kernel.name)), None)
        if known is None:
            print(f"?     {kernel.name[:60]}: not one of ours")
            continue
        seen.add(known.name)
        recording = KernelRecording(format="ncu-csv", paths=(str(path),), kernels=(kernel,))
        alone = Auxiliary(kernels=KernelReport(recordings=(recording,)))
        said = {advice.code: advice for rule in rules for advice in rule.advise(alone)}
        missing, extra = known.must - set(said), set(said) - known.must - known.may
        wrong += bool(missing or extra)
        print(f"{'WRONG' if missing or extra else 'ok   '} {known.name}: {known.character}")
        print(f"      must {sorted(known.must)} may {sorted(known.may)} said {sorted(said)}")
        roof = kernel.roof
        stalls = ", ".join(
            f"{reason} {share:.0%}" for reason, share in list(kernel.stalls.items())[:4]
        )
        print(f"      {_us(kernel.duration_ns)}, nearest roof {roof}, waits: {stalls}")
        for advice in said.values():
            print(f"      {advice.code}: {advice.evidence[0]}")
    for name in (known.name for known in KNOWN if known.name not in seen):
        print(f"WRONG {name}: not in the file")
        wrong += 1
    print(f"{len(seen)} of {len(KNOWN)} kernels, {wrong} wrong")
    return 1 if wrong else 0


def _is(known: KnownKernel, name: str) -> bool:
    return any(word in name for word in GEMM) if known.name == "gemm" else known.name in name


def _us(ns: float | None) -> str:
    return "time not recorded" if ns is None else f"{ns / 1e3:.1f} us"


if __name__ == "__main__":
    sys.exit(main())
