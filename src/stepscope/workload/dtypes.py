"""Element types: the names traces use, their sizes, and what arithmetic between them is done in."""

from __future__ import annotations

from collections.abc import Iterable

# The recorder writes the C++ name of the element type;
# gcc and clang spell the integers differently.
DTYPES = {
    "double": "fp64",
    "float": "fp32",
    "c10::Half": "fp16",
    "at::Half": "fp16",
    "c10::BFloat16": "bf16",
    "at::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
    "c10::Float8_e8m0fnu": "fp8",
    "c10::Float4_e2m1fn_x2": "fp4",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "__int64": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "unsigned short": "uint16",
    "short unsigned int": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "long unsigned int": "uint64",
    "c10::qint8": "int8",
    "c10::quint8": "uint8",
    "c10::qint32": "int32",
    "c10::complex<c10::Half>": "complex32",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}

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
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "fp16",
    "Float": "fp32",
    "Double": "fp64",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Bool": "bool",
    "BFloat16": "bf16",
    "Float8_e4m3fn": "fp8",
    "Float8_e5m2": "fp8",
    "Float8_e4m3fnuz": "fp8",
    "Float8_e5m2fnuz": "fp8",
    "UInt16": "uint16",
    "UInt32": "uint32",
    "UInt64": "uint64",
}

BOOL, INTEGER, FLOAT, COMPLEX = range(4)


def category(dtype: str) -> int:
    """Which of bool < integer < float < complex this is."""
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
