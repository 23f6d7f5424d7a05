"""The cases of a kernel: shapes as a user writes them, and the edge shapes that break kernels.

`1024x1024,1000x7` are two cases of one shape; `512x256;256x1024` is one case of two tensors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.errors import UsageError
from stepscope.tune.shapes.kernel_tuning import Case, Shapes

MAX_ELEMENTS = 1 << 34
MAX_CASES = 64
SHAPE = re.compile(r"\d{1,10}(x\d{1,10})*")
DTYPES = ("float32", "bfloat16", "float16", "float64")
SHORT = {
    "fp32": "float32", "f32": "float32", "bf16": "bfloat16", "fp16": "float16", "f16": "float16",
    "fp64": "float64",
}  # fmt: skip
ODD = (13, 7, 29, 3, 5, 11, 17, 19)
"""Sizes for edge cases: no multiple of any block, and not equal to each other."""


def parse_shapes(text: str, option: str = "--shapes") -> tuple[Shapes, ...]:
    """The cases in a text; an error in words where one is no shape."""
    cases = []
    for case in text.split(","):
        shapes = []
        for part in case.split(";"):
            word = part.strip().lower()
            if not SHAPE.fullmatch(word):
                raise UsageError(
                    f"{option} {text}: {part.strip()!r} is no shape. Write 1024x1024, a comma "
                    "between cases, a semicolon between the tensors of one case: 512x256;256x1024"
                )
            shapes.append(_sizes([int(size) for size in word.split("x")], f"{option} {text}"))
        cases.append(tuple(shapes))
    return tuple(cases)


def declared_shapes(declared: object, where: str) -> tuple[Shapes, ...]:
    """The same from a module: [(1024, 1024), 4096, ((512, 256), (256, 1024)), "1000x7"]."""
    if isinstance(declared, str):
        return parse_shapes(declared, where)
    if not isinstance(declared, list | tuple) or not declared:
        raise UsageError(f"{where} must be a list of shapes, as in [(1024, 1024), (1000, 7)]")
    cases: list[Shapes] = []
    for case in declared:
        if isinstance(case, str):
            cases += parse_shapes(case, where)
        elif isinstance(case, int):
            cases.append((_sizes([case], where),))
        elif (
            isinstance(case, list | tuple) and case and all(isinstance(size, int) for size in case)
        ):
            cases.append((_sizes(case, where),))
        elif (
            isinstance(case, list | tuple)
            and case
            and all(isinstance(shape, list | tuple) for shape in case)
        ):
            cases.append(tuple(_sizes(shape, where) for shape in case))
        else:
            raise UsageError(
                f"{where}: {str(case)[:80]!r} is no shape; write (1024, 1024), or a tuple of such "
                "for several tensors"
            )
    return tuple(cases)


def parse_dtypes(text: str) -> tuple[str, ...]:
    names = []
    for part in text.split(","):
        word = part.strip().lower().removeprefix("torch.")
        name = SHORT.get(word, word)
        if name not in DTYPES:
            raise UsageError(f"--dtypes {text}: {part.strip()!r} is none of {', '.join(DTYPES)}")
        names.append(name)
    return tuple(dict.fromkeys(names))


def edge_shapes(timed: Sequence[Shapes]) -> tuple[Shapes, ...]:
    """Shapes that kernels get wrong, made from the first timed ones: sizes of 1, odd ones, one more
    and one less than it was.

    A size is replaced wherever it stands, so that tensors keep fitting each other: 512x256;256x1024
    becomes 13x7;7x29. Whatever the reference cannot take is left out later, and said.
    """
    edges: dict[Shapes, None] = {}
    for shapes in timed[:2]:
        sizes = list(dict.fromkeys(size for shape in shapes for size in shape))
        if not sizes:
            continue
        odd = {size: ODD[index % len(ODD)] for index, size in enumerate(sizes)}
        first = sizes[0]
        for mapping in (
            dict.fromkeys(sizes, 1),
            odd,
            {size: size + 1 if size < 64 else size - 1 for size in sizes},
            {first: 1},
            {first: 13},
            {sizes[-1]: odd[sizes[-1]] * 37},
        ):
            edges[tuple(tuple(mapping.get(size, size) for size in shape) for shape in shapes)] = (
                None
            )
    return tuple(shapes for shapes in edges if shapes not in timed)


def make_cases(
    timed: Sequence[Shapes], edges: Sequence[Shapes], dtypes: Sequence[str]
) -> tuple[Case, ...]:
    """Edges first: they are small, and find most faults."""
    cases = [
        Case(shapes=shapes, dtype=dtype, is_timed=False) for shapes in edges for dtype in dtypes
    ]
    cases += [
        Case(shapes=shapes, dtype=dtype, is_timed=True) for shapes in timed for dtype in dtypes
    ]
    cases = list(dict.fromkeys(cases))
    if len(cases) > MAX_CASES:
        raise UsageError(
            f"{len(cases)} cases of shapes and dtypes are more than {MAX_CASES}: give fewer "
            "--shapes or --dtypes"
        )
    return tuple(cases)


def _sizes(sizes: Sequence[int], where: str) -> tuple[int, ...]:
    total = 1
    for size in sizes:
        if size < 1 or isinstance(size, bool):
            raise UsageError(f"{where}: a size of {size} is not possible; sizes are 1 or more")
        total *= size
    if total > MAX_ELEMENTS:
        raise UsageError(
            f"{where}: {'x'.join(map(str, sizes))} has more than {MAX_ELEMENTS} elements"
        )
    return tuple(sizes)
