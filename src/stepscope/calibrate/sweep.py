"""What is measured: which shapes and sizes, and how long each may take."""

from __future__ import annotations

from msgspec import Struct

from stepscope.calibrate.timer import MIN_REPEATS, MIN_SAMPLE_S

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

Shape = tuple[int, int, int]
Heads = tuple[int, int, int, int]
"""batch, heads, length, head size."""


class Sweep(Struct, frozen=True, kw_only=True):
    """Shapes are tried from the smallest.

    One that would take longer than `longest_call_s` a call is left out, and said.
    """

    gemms: tuple[Shape, ...]
    attention: tuple[Heads, ...]
    copies: tuple[int, ...]
    host_copies: tuple[int, ...]
    collectives: tuple[int, ...]
    point_s: float
    """Seconds for the repeats of one point, about."""
    longest_call_s: float
    collective_s: float
    """Seconds for all sizes of one collective in one group, about."""
    warm_s: float
    """How long a product runs before its sustained rate is measured:
    until clocks and power have settled."""
    sustained_s: float
    """Seconds for which it is then repeated."""

    @property
    def sustained_points(self) -> int:
        """Number of points of a burst that take as long as a sustained one."""
        point_s = max(self.point_s, MIN_REPEATS * MIN_SAMPLE_S)
        return round((self.warm_s + self.sustained_s) / point_s)


def _powers(low: int, high: int, factor: int) -> tuple[int, ...]:
    sizes = []
    while low <= high:
        sizes.append(low)
        low *= factor
    return tuple(sizes)


def _by_work(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    return tuple(sorted(set(shapes), key=lambda shape: (shape[0] * shape[1] * shape[2], shape)))


SQUARES = tuple(
    (size, size, size) for size in (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
)
THIN: tuple[Shape, ...] = (
    # Tokens x hidden x ffn, up and down, of models of 1, 7 and 70 billion parameters.
    *(
        (tokens, out, inner)
        for tokens in (512, 2048, 8192)
        for out, inner in ((2048, 2048), (8192, 2048), (2048, 8192))
    ),
    *(
        (tokens, out, inner)
        for tokens in (1024, 4096, 16384)
        for out, inner in ((4096, 4096), (11008, 4096), (4096, 11008))
    ),
    *(
        (tokens, out, inner)
        for tokens in (2048, 8192)
        for out, inner in ((8192, 8192), (28672, 8192), (8192, 28672))
    ),
    # The same split over eight ranks: small n, small k.
    *(
        (8192, out, inner)
        for out, inner in (
            *((1024, 8192), (3584, 8192), (8192, 1024)),
            *((8192, 3584), (1376, 4096), (4096, 512)),
        )
    ),
    # Small k.
    *((size, size, inner) for size in (2048, 4096, 8192) for inner in (32, 64, 128, 256)),
    # Few rows, and few columns: a small batch, a head of few outputs.
    *((rows, 4096, 4096) for rows in (16, 64, 128, 256)),
    *((8192, columns, 4096) for columns in (16, 64, 128, 256)),
    # Logits.
    (2048, 32000, 4096),
    (4096, 128256, 4096),
)
QUICK_GEMMS = _by_work(
    (
        *((size, size, size) for size in (256, 512, 1024, 2048, 4096, 8192)),
        *((4096, 4096, 64), (4096, 4096, 256), (8192, 1024, 8192)),
        *((8192, 8192, 1024), (2048, 11008, 4096), (2048, 4096, 11008)),
        *((64, 4096, 4096), (256, 4096, 4096), (8192, 64, 4096)),
        *((8192, 256, 4096), (2048, 8192, 2048), (512, 2048, 2048)),
    )
)
CPU_GEMMS = _by_work(
    (
        *((size, size, size) for size in (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096)),
        *((1024, 1024, inner) for inner in (16, 32, 64, 128)),
        *((16, 1024, 1024), (64, 1024, 1024), (2048, 16, 1024)),
        *((2048, 64, 1024), (512, 2048, 512), (512, 512, 2048)),
        *((512, 3072, 768), (512, 768, 3072), (2048, 768, 768), (1024, 4096, 1024)),
    )
)

CUDA_FULL = Sweep(
    gemms=_by_work((*SQUARES, (16384, 16384, 16384), *THIN)),
    attention=tuple(
        (max(16384 // length, 1), 4096 // size, length, size)
        for size in (64, 128)
        for length in (512, 1024, 2048, 4096, 8192, 16384)
    ),
    copies=_powers(64 * KIB, 4 * GIB, 4),
    host_copies=_powers(4 * KIB, 256 * MIB, 4),
    collectives=_powers(KIB, GIB, 2),
    point_s=0.15,
    longest_call_s=2.0,
    collective_s=20.0,
    warm_s=0.5,
    sustained_s=1.5,
)
CUDA_QUICK = Sweep(
    gemms=QUICK_GEMMS,
    attention=tuple(
        (max(8192 // length, 1), 4096 // size, length, size)
        for size in (64, 128)
        for length in (1024, 4096)
    ),
    copies=_powers(MIB, GIB, 8),
    host_copies=_powers(16 * KIB, 64 * MIB, 16),
    collectives=_powers(KIB, 256 * MIB, 4),
    point_s=0.03,
    longest_call_s=0.3,
    collective_s=3.0,
    warm_s=0.2,
    sustained_s=0.5,
)
CPU_FULL = Sweep(
    gemms=CPU_GEMMS,
    attention=tuple(
        (1, 512 // size, length, size)
        for size in (64, 128)
        for length in (128, 256, 512, 1024, 2048)
    ),
    copies=_powers(64 * KIB, 512 * MIB, 4),
    host_copies=(),
    collectives=_powers(KIB, GIB, 2),
    point_s=0.2,
    longest_call_s=3.0,
    collective_s=20.0,
    warm_s=0.2,
    sustained_s=0.6,
)
CPU_QUICK = Sweep(
    gemms=tuple(shape for shape in CPU_GEMMS if max(shape) <= 2048),
    attention=((1, 8, 128, 64), (1, 8, 512, 64), (1, 4, 512, 128)),
    copies=_powers(64 * KIB, 256 * MIB, 16),
    host_copies=(),
    collectives=_powers(KIB, 64 * MIB, 4),
    point_s=0.05,
    longest_call_s=0.2,
    collective_s=2.0,
    warm_s=0.1,
    sustained_s=0.2,
)


def sweep_of(kind: str, quick: bool) -> Sweep:
    if kind == "cuda":
        return CUDA_QUICK if quick else CUDA_FULL
    return CPU_QUICK if quick else CPU_FULL
