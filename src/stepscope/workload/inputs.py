"""An operator's recorded inputs, read from the trace's JSON text.

What the recorder writes (torch/csrc/profiler/collection.cpp and util.cpp),
one entry per argument of the schema:

    Input Dims       [[8192, 1024], [1024, 3072], []]
                     a list of lists for a TensorList; [] for a scalar or None
    Input type       ["c10::BFloat16", "c10::BFloat16", "Scalar"]
                     also "TensorList", "ScalarList", ""
    Input Strides    [[1024, 1], [1, 1024], []]
                     [] for a tensor of dimensions that has no strides: it is sparse
    Concrete Inputs  ["", "", "False"]
                     scalars and scalar lists as text; "" for a tensor, a string, None

A TensorList of more than 30 tensors is written as [] (TENSOR_LIST_DISPLAY_LENGTH_LIMIT),
and no list says its tensors' types.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeGuard

import msgspec
from msgspec import Struct

from stepscope.core.trace import NONE, OpInputs, Trace

# The recorder writes the C++ name of the element type;
# gcc and clang spell the integers differently.
DTYPES = {
    "double": "fp64", "float": "fp32", "c10::Half": "fp16", "at::Half": "fp16",
    "c10::BFloat16": "bf16", "at::BFloat16": "bf16", "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8", "c10::Float8_e5m2fnuz": "fp8",
    "c10::Float8_e8m0fnu": "fp8", "c10::Float4_e2m1fn_x2": "fp4", "long int": "int64",
    "long": "int64", "long long": "int64", "__int64": "int64", "int": "int32", "short int": "int16",
    "short": "int16", "signed char": "int8", "unsigned char": "uint8", "bool": "bool",
    "unsigned short": "uint16", "short unsigned int": "uint16", "unsigned int": "uint32",
    "unsigned long": "uint64", "long unsigned int": "uint64", "c10::qint8": "int8",
    "c10::quint8": "uint8", "c10::qint32": "int32", "c10::complex<c10::Half>": "complex32",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
}  # fmt: skip

_OF_SIZE = {
    1: "bool int8 uint8 fp8 fp4",  # fp4: a byte holds two, and dims count bytes
    2: "int16 uint16 fp16 bf16",
    4: "int32 uint32 fp32 complex32",
    8: "int64 uint64 fp64 complex64",
    16: "complex128",
}
ITEM_BYTES = {dtype: size for size, dtypes in _OF_SIZE.items() for dtype in dtypes.split()}

# c10/core/ScalarType.h: a ScalarType argument is recorded as its number there.
_FIRST = "uint8 int8 int16 int32 int64 fp16 fp32 fp64 complex32 complex64 complex128 bool"
_FLOAT8 = dict.fromkeys((23, 24, 25, 26, 44), "fp8")
SCALAR_TYPES = (
    dict(enumerate(_FIRST.split()))
    | _FLOAT8
    | {15: "bf16", 27: "uint16", 28: "uint32", 29: "uint64", 45: "fp4"}
)

# c10d writes the ScalarType's own name with a collective.
SCALAR_NAMES = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Half": "fp16", "Float": "fp32", "Double": "fp64", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "Bool": "bool", "BFloat16": "bf16", "Float8_e4m3fn": "fp8",
    "Float8_e5m2": "fp8", "Float8_e4m3fnuz": "fp8", "Float8_e5m2fnuz": "fp8", "UInt16": "uint16",
    "UInt32": "uint32", "UInt64": "uint64",
}  # fmt: skip

BOOL, INTEGER, FLOAT, COMPLEX = range(4)


def category(dtype: str) -> int:
    """Category of a type: bool < integer < float < complex."""
    if dtype == "bool":
        return BOOL
    if dtype.startswith("complex"):
        return COMPLEX
    return FLOAT if dtype.startswith(("fp", "bf")) else INTEGER


def promote(dtypes: Iterable[tuple[str, bool]]) -> str | None:
    """The type that arithmetic on tensors of these (dtype, is 0-dim) gives;
    `None` when one is unknown, or there are none.

    A 0-dim tensor counts only when its category is above that of those with dimensions
    (at::native::result_type). A Python number arrives as a 0-dim double or int64, and then gives
    the default type of its category.
    """
    pairs = list(dtypes)
    if not pairs or any(dtype not in ITEM_BYTES for dtype, _ in pairs):
        return None
    top = max(category(dtype) for dtype, _ in pairs)
    deciding = [dtype for dtype, is_0dim in pairs if not is_0dim and category(dtype) == top]
    if deciding or all(is_0dim for _, is_0dim in pairs):
        return _widest(deciding or [dtype for dtype, _ in pairs if category(dtype) == top])
    default = {"fp64": "fp32", "complex128": "complex64"}
    return _widest([default.get(dtype, dtype) for dtype, _ in pairs if category(dtype) == top])


def _widest(dtypes: list[str]) -> str:
    kinds = set(dtypes)
    if kinds == {"fp16", "bf16"}:
        return "fp32"
    if kinds == {"int8", "uint8"}:
        return "int16"
    return max(dtypes, key=ITEM_BYTES.__getitem__)


Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]

MAX_SIZE = 2**63 - 1
"""Sizes and strides are int64 in the recorder; anything beyond is not one."""
MAX_RANK = 64
"""The most dimensions a tensor of PyTorch may have (TensorIterator and indexing stop at 64)."""

MAX_PARSED = 4096
"""Inputs whose parsed form is remembered: a step's operators take the same again and again."""

_NESTED = msgspec.json.Decoder(list[list[int | list[int]]])
_TEXTS = msgspec.json.Decoder(list[str])


class ParsedInputs(Struct, frozen=True, kw_only=True):
    """An operator's inputs, one entry per argument in each tuple;
    of a part not recorded, the texts are "", and strides is ()."""

    dims: tuple[Shape | Shapes, ...]
    types: tuple[str, ...]
    strides: tuple[Shape | Shapes, ...]
    concrete: tuple[str, ...]


def inputs_of(trace: Trace, op: int) -> ParsedInputs | None:
    """The operator's recorded inputs; `None` as below, and where none were recorded."""
    recorded = None if trace.detail[op] == NONE else trace.details[trace.detail[op]]
    return parse_inputs(recorded) if isinstance(recorded, OpInputs) else None


@lru_cache(maxsize=MAX_PARSED)
def parse_inputs(inputs: OpInputs) -> ParsedInputs | None:
    """Read the recorded text; `None` when the dims were not
    recorded or any part is not what a recorder writes."""
    if inputs.dims is None:
        return None
    dims = _parse_nested(inputs.dims, low=0)
    if dims is None:
        return None
    types = ("",) * len(dims) if inputs.types is None else _parse_texts(inputs.types)
    concrete = ("",) * len(dims) if inputs.concrete is None else _parse_texts(inputs.concrete)
    strides = () if inputs.strides is None else _parse_nested(inputs.strides, low=-MAX_SIZE)
    if types is None or concrete is None or strides is None:
        return None
    if (
        len(types) != len(dims)
        or len(concrete) != len(dims)
        or (inputs.strides is not None and len(strides) != len(dims))
    ):
        return None
    return ParsedInputs(dims=dims, types=types, strides=strides, concrete=concrete)


def _parse_nested(text: str, *, low: int) -> tuple[Shape | Shapes, ...] | None:
    try:
        entries = _NESTED.decode(text)
    except (
        ValueError,
        RecursionError,
    ):  # msgspec's errors are ValueErrors, as are those of text that is not UTF-8
        return None
    out: list[Shape | Shapes] = []
    for entry in entries:
        shape = _shape_of(entry, low=low)
        if shape is None:
            return None
        out.append(shape)
    return tuple(out)


def _shape_of(entry: list[int | list[int]], *, low: int) -> Shape | Shapes | None:
    if _all_ints(entry):
        return tuple(entry) if _in_range(entry, low) else None
    shapes: list[Shape] = []
    for inner in entry:
        if not isinstance(inner, list) or not _in_range(inner, low):
            return None
        shapes.append(tuple(inner))
    return tuple(shapes)


def _in_range(sizes: list[int], low: int) -> bool:
    return len(sizes) <= MAX_RANK and all(low <= size <= MAX_SIZE for size in sizes)


def _all_ints(entry: list[int | list[int]]) -> TypeGuard[list[int]]:
    return all(isinstance(size, int) for size in entry)


def _parse_texts(text: str) -> tuple[str, ...] | None:
    try:
        return tuple(_TEXTS.decode(text))
    except (ValueError, RecursionError):
        return None


# What the concrete text of one argument says;
# None where the argument is absent, was not recorded, or says something else.


def text_at(inputs: ParsedInputs, index: int) -> str | None:
    """The argument's recorded text."""
    return inputs.concrete[index] or None if 0 <= index < len(inputs.concrete) else None


def is_scalar(inputs: ParsedInputs, index: int) -> bool:
    """Whether the argument is a number or a truth value, by its type,
    whether or not its text was recorded."""
    return 0 <= index < len(inputs.types) and inputs.types[index] == "Scalar"


def flag_at(inputs: ParsedInputs, index: int) -> bool | None:
    """A truth value."""
    return {"True": True, "False": False}.get(text_at(inputs, index) or "")


def integer_at(inputs: ParsedInputs, index: int) -> int | None:
    """A whole number."""
    return _integer(text_at(inputs, index) or "")


def number_at(inputs: ParsedInputs, index: int) -> float | None:
    """A number, whole or not."""
    try:
        return float(text_at(inputs, index) or "")
    except ValueError:
        return None


def integers_at(inputs: ParsedInputs, index: int) -> Shape | None:
    """A list of whole numbers; the empty list is ()."""
    items = _items(text_at(inputs, index))
    if items is None:
        return None
    numbers = tuple(number for number in map(_integer, items) if number is not None)
    return numbers if len(numbers) == len(items) else None


def flags_at(inputs: ParsedInputs, index: int) -> tuple[bool, ...] | None:
    """A list of truth values, such as an output_mask."""
    items = _items(text_at(inputs, index))
    if items is None or any(item not in ("True", "False") for item in items):
        return None
    return tuple(item == "True" for item in items)


def _items(text: str | None) -> list[str] | None:
    if text is None or not (text.startswith("[") and text.endswith("]")):
        return None
    inner = text[1:-1].strip()
    return [item.strip() for item in inner.split(",")] if inner else []


def _integer(text: str) -> int | None:
    try:
        number = int(text) if len(text) <= 20 else None
    except ValueError:
        return None
    return number if number is not None and abs(number) <= MAX_SIZE else None
