"""Lines of MIOpen's text databases: a problem's key, and the solvers behind it.

As MIOpen's sources write them (ROCm/MIOpen: conv/problem_description.cpp, db_record.hpp,
perf_field.hpp):

    KEY=ID:VALUES;ID:VALUES
    C-H-W-KHxKW-K-OH-OW-N-PHxPW-SHxSW-DHxDW-BIAS-LAYOUT-TYPE-DIRECTION[_gGROUPS][_ciTYPE][_cwTYPE][_coTYPE]

with depth before height in three dimensions, and three layouts (of input, weight, output) unless
all are NCHW or NCDHW. For the gradients (B: of the input, W: of the weight) the first tensor is the
output's gradient and the last the input. In a find-db an entry is
`solver:time,workspace,algorithm`, in milliseconds and bytes; up to 2023 it was
`algorithm:solver,time,workspace,..`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise

from stepscope.core.recordings.find_db import FORWARD, ConvProblem, Solver

MAX_SIZE = 1 << 40
MAX_TIME_MS = 1e7
"""Three hours: MIOpen gives a solver five seconds."""
MAX_WORKSPACE_BYTES = 1 << 50
MAX_SOLVERS = 64
"""Of a problem. MIOpen has some eighty for all of them, and lists half a dozen for one."""
SIZE = r"(\d{1,13})"
ENDING = (
    r"((?:-[A-Za-z]{3,6}){1,3})-([A-Z][A-Z0-9]{2,23})-([FBW])((?:_[a-z]{1,2}[A-Z0-9]{1,12}){0,4})"
)


def _key(rank: int) -> re.Pattern[str]:
    """Channels and sizes, window, channels and sizes, batch, padding, stride, dilation, bias, and
    the ending."""
    tensor, window = "-".join([SIZE] * (rank + 1)), "x".join([SIZE] * rank)
    return re.compile(
        f"{tensor}-{window}-{tensor}-{SIZE}-{window}-{window}-{window}-{SIZE}{ENDING}"
    )


KEYS = {rank: _key(rank) for rank in (2, 3)}
GROUPS = re.compile(r"_g(\d{1,9})(?![A-Z0-9])")
NAME = r"[A-Za-z][\w<>+ -]{1,119}"
TIME = r"(-?\d{1,30}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,3})?|-?(?:nan|inf|NAN|INF))"
BYTES = r"(\d{1,16})"
ALGORITHM = (
    r"miopen(?:Convolution|Transpose)(?:Fwd|BwdData|BwdWeights)"
    r"Algo(GEMM|Direct|FFT|Winograd|ImplicitGEMM)"
)
SOLVER = re.compile(f"({NAME}):{TIME},{BYTES},{ALGORITHM}")
OLD_SOLVER = re.compile(f"{ALGORITHM}:({NAME}),{TIME},{BYTES}(?:,.{{0,400}})?")
KEY = (
    rb"\d{1,13}(?:-\d{1,13}){2,3}-\d{1,13}(?:x\d{1,13}){1,2}(?:-[\dx]{1,40}){7,9}"
    rb"(?:-[A-Za-z]{3,6}){1,3}-[A-Z][A-Z0-9]{2,23}-[FBW](?:_[a-z]{1,2}[A-Z0-9]{1,12}){0,4}="
)
LINE = re.compile(KEY + rb"[^\n:;]{1,160}:")
FIND_DB_LINE = re.compile(
    KEY + rb"[^\n]{0,4000}?miopen(?:Convolution|Transpose)(?:Fwd|BwdData|BwdWeights)Algo"
)
FIRST_LINES = 8
"""Among which a database has its first record, whatever was written over its beginning."""


def first_lines(head: bytes) -> Sequence[bytes]:
    return [line[:8192] for line in head[: 64 << 10].split(b"\n", FIRST_LINES)[:FIRST_LINES]]


def problem_of(key: str) -> ConvProblem | None:
    """The problem of a key; None where it is none of a convolution's."""
    for rank, pattern in KEYS.items():
        match = pattern.fullmatch(key)
        if match is not None:
            return _problem(match.groups(), rank)
    return None


def _problem(parts: Sequence[str], rank: int) -> ConvProblem | None:
    numbers = tuple(map(int, parts[:-4]))
    layouts, dtype, direction, options = parts[-4][1:].split("-"), *parts[-3:]
    lengths = (rank + 1, rank, rank + 1, 1, rank, rank, rank, 1)
    cuts = list(accumulate(lengths, initial=0))
    first, window, last, batch, padding, stride, dilation, bias = (
        numbers[a:b] for a, b in pairwise(cuts)
    )
    groups = GROUPS.search(options)
    sizes = (*first, *window, *last, *batch, *stride, *dilation, int(groups[1]) if groups else 1)
    if min(sizes) < 1 or max(numbers) > MAX_SIZE or len(layouts) == 2:
        return None
    x, y = (first, last) if direction == FORWARD else (last, first)
    return ConvProblem(
        direction=direction,
        batch=batch[0],
        in_channels=x[0],
        out_channels=y[0],
        in_size=x[1:],
        out_size=y[1:],
        window=window,
        padding=padding,
        stride=stride,
        dilation=dilation,
        groups=sizes[-1],
        has_bias=bool(bias[0]),
        layout=layouts[0] if len(set(layouts)) == 1 else "-".join(layouts),
        dtype=dtype,
        casts=tuple(
            option for option in options.split("_") if option and not option.startswith("g")
        ),
    )


def solvers_of(text: str) -> tuple[tuple[Solver, ...], int, int]:
    """The fastest first; how many entries were no solvers, and how many had no time that can be
    one."""
    solvers: dict[str, Solver] = {}
    odd = untimed = 0
    for number, entry in enumerate(text.split(";")):
        solver = _solver(entry) if number < MAX_SOLVERS else None
        if solver is None:
            odd += 1
        elif not 0 < solver.time_ms <= MAX_TIME_MS:
            untimed += 1
        else:
            solvers.setdefault(solver.name, solver)
    return (
        tuple(sorted(solvers.values(), key=lambda solver: (solver.time_ms, solver.name))),
        odd,
        untimed,
    )


def _solver(entry: str) -> Solver | None:
    if match := SOLVER.fullmatch(entry):
        name, time, workspace, algorithm = match.groups()
    elif match := OLD_SOLVER.fullmatch(entry):
        algorithm, name, time, workspace = match.groups()
    else:
        return None
    if int(workspace) > MAX_WORKSPACE_BYTES:
        return None
    return Solver(
        name=name, algorithm=algorithm, time_ms=float(time), workspace_bytes=int(workspace)
    )
