"""What MIOpen measured of convolutions: problems, each with the solvers it tried and how long they
took.

`x` is the image that goes in and `y` what comes out, for the gradients too: MIOpen's own keys have
the two swapped there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

Sizes = tuple[int, ...]
FORWARD, DATA, WEIGHTS = "F", "B", "W"
DIRECTIONS = {FORWARD: "forward", DATA: "gradient of the input", WEIGHTS: "gradient of the weight"}
DEFAULT_LAYOUTS = {2: "NCHW", 3: "NCDHW"}
"""By the number of spatial dimensions; channels_last is NHWC and NDHWC."""
NAIVE = "ConvDirectNaiveConv"
"""How the names of solvers begin that compute each output by itself, as a reference."""
GENERIC = ("GemmFwdRest", "GemmBwdRest", "GemmWrwUniversal", "ConvOclDirectFwdGen")
"""Solvers for any size: the image is laid out as a matrix first (im2col), or the kernel knows no
size."""


class ConvProblem(Struct, frozen=True, kw_only=True):
    """One convolution in one direction; two that are equal are the same to MIOpen."""

    direction: str
    """Of DIRECTIONS."""
    batch: int
    in_channels: int
    out_channels: int
    in_size: Sizes
    """Height and width; with depth first where there are three."""
    out_size: Sizes
    window: Sizes
    padding: Sizes
    stride: Sizes
    dilation: Sizes
    groups: int = 1
    has_bias: bool = False
    layout: str = "NCHW"
    """Of x, weight and y; `NHWC-NCHW-NCHW` where they differ."""
    dtype: str = "FP32"
    """As MIOpen writes it: FP32, FP16, BF16; `INT8INT8FP32` where the three differ."""
    casts: tuple[str, ...] = ()
    """Types that tensors are cast to on the way: `ciFP8`."""

    @property
    def sizes(self) -> tuple[object, ...]:
        """All of it but the layout."""
        tensors = (
            self.batch,
            self.in_channels,
            self.out_channels,
            self.in_size,
            self.out_size,
            self.groups,
        )
        return (self.direction, self.dtype, self.casts, self.has_bias, *tensors, *self._window)

    @property
    def _window(self) -> tuple[Sizes, ...]:
        return (self.window, self.padding, self.stride, self.dilation)

    @property
    def label(self) -> str:
        """`64x256x28x28 256x3x3 BF16 NHWC F`: the input, the output's channels with the window, and
        the direction."""
        image = _x((self.batch, self.in_channels, *self.in_size))
        weight = _x((self.out_channels, *self.window))
        groups = f" g{self.groups}" if self.groups != 1 else ""
        stride = f" s{_x(self.stride)}" if set(self.stride) != {1} else ""
        return f"{image} {weight}{groups}{stride} {self.dtype} {self.layout} {self.direction}"

    @property
    def words(self) -> str:
        """`3x3, 256 -> 256 channels, 28x28, batch 64, BF16, NHWC, forward`."""
        parts = [f"{_x(self.window)}, {self.in_channels} -> {self.out_channels} channels"]
        parts += [f"{self.groups} groups"] if self.groups != 1 else []
        parts += [_x(self.in_size)]
        parts += [f"stride {_x(self.stride)}"] if set(self.stride) != {1} else []
        parts += [f"dilation {_x(self.dilation)}"] if set(self.dilation) != {1} else []
        parts += [
            f"batch {self.batch}",
            self.dtype,
            *self.casts,
            self.layout,
            DIRECTIONS[self.direction],
        ]
        return ", ".join(part for part in parts if part)


class Solver(Struct, frozen=True, kw_only=True):
    """One way to compute a problem, as it was timed."""

    name: str
    algorithm: str
    """Direct, GEMM, Winograd, ImplicitGEMM, FFT."""
    time_ms: float
    workspace_bytes: int

    @property
    def is_naive(self) -> bool:
        return self.name.startswith(NAIVE)

    @property
    def is_generic(self) -> bool:
        """Made for any size, and for none in particular."""
        return self.is_naive or self.name in GENERIC


class Searched(Struct, frozen=True, kw_only=True):
    """A problem with its solvers, the fastest first; there is one at least."""

    problem: ConvProblem
    solvers: tuple[Solver, ...]

    @property
    def best(self) -> Solver:
        return self.solvers[0]

    @property
    def best_without_workspace(self) -> Solver | None:
        """What is left to a job that can give no memory."""
        return next((solver for solver in self.solvers if not solver.workspace_bytes), None)

    @property
    def is_generic(self) -> bool:
        """None of its solvers is made for it, or the fastest is the naive one."""
        return self.best.is_naive or all(solver.is_generic for solver in self.solvers)


class FindDb(Struct, frozen=True, kw_only=True):
    """One file."""

    path: str
    searched: tuple[Searched, ...]
    is_system: bool = False
    """It came with MIOpen: AMD's times, and of far more than one job."""
    device: str | None = None
    """As its name tells: gfx942."""
    num_units: int | None = None
    """Compute units, as its name tells."""


class SearchedConvolutions(Struct, frozen=True, kw_only=True):
    """All files together, to look problems up in. What a user's file holds goes before what came
    with MIOpen, as with MIOpen."""

    paths: tuple[str, ...]
    by_sizes: Mapping[tuple[object, ...], tuple[Searched, ...]] = field(default_factory=dict)
    """By a problem's `sizes`: one for each layout that is known."""


def together_of(files: Sequence[FindDb]) -> SearchedConvolutions | None:
    """None where there is nothing to look up."""
    whole: dict[ConvProblem, Searched] = {}
    for file in sorted(files, key=lambda file: file.is_system):
        for each in file.searched:
            whole.setdefault(each.problem, each)
    by_sizes: dict[tuple[object, ...], tuple[Searched, ...]] = {}
    for each in whole.values():
        key = each.problem.sizes
        by_sizes[key] = (*by_sizes.get(key, ()), each)
    return (
        SearchedConvolutions(paths=tuple(file.path for file in files), by_sizes=by_sizes)
        if by_sizes
        else None
    )


def _x(sizes: Sizes) -> str:
    return "x".join(map(str, sizes))
