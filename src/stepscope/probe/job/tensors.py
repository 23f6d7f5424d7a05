"""An operator's arguments, made anew from what a trace recorded of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

DTYPES = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int64": "int64",
    "int32": "int32", "int16": "int16", "int8": "int8", "uint8": "uint8", "bool": "bool",
}  # fmt: skip
FLOATS = ("fp64", "fp32", "fp16", "bf16")
WORDS = {"True": True, "False": False, "None": None, "": None}


class UnbuildableError(Exception):
    """An argument that cannot be made from what was recorded."""


class Maker:
    """Makes tensors with random numbers on a device."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch = torch
        self.device = device

    def tensor(self, dims: Sequence[int], strides: Sequence[int], dtype: str) -> Any:
        """A tensor of these sizes and strides; what stride 0 repeats lies in memory once."""
        torch = self.torch
        if dtype not in DTYPES:
            raise UnbuildableError(f"a tensor of type {dtype or 'unknown'}")
        kind = getattr(torch, DTYPES[dtype])
        size = 1
        if strides and all(dims):
            size += sum((n - 1) * abs(step) for n, step in zip(dims, strides, strict=True))
        else:
            size = max(math.prod(dims), 1)
        if dtype in FLOATS:
            flat = torch.randn(size, device=self.device, dtype=kind)
        else:
            # Indices: 0 and 1 fit whatever they point into.
            flat = torch.randint(0, 2, (size,), device=self.device).to(kind)
        if strides and len(strides) == len(dims) and all(dims):
            return flat.as_strided(tuple(dims), tuple(strides))
        return flat[: math.prod(dims)].reshape(tuple(dims))

    def arguments(self, call: dict[str, Any], precision: str) -> list[Any]:
        """One for each that was recorded, floating tensors in the precision."""
        out: list[Any] = []
        for index, dims in enumerate(call["dims"]):
            dtype = call["types"][index]
            strides = call["strides"][index] if call["strides"] else []
            text = call["concrete"][index] if call["concrete"] else ""
            if dims and isinstance(dims[0], list):
                raise UnbuildableError("a list of tensors")
            if dtype in DTYPES:
                out.append(self.tensor(dims, strides, of_precision(dtype, precision)))
            elif dims:
                raise UnbuildableError(f"a tensor of type {dtype or 'unknown'}")
            else:
                out.append(value_of(text))
        return out


def of_precision(dtype: str, precision: str) -> str:
    """Floating types become the precision's; others stay."""
    if dtype not in ("fp32", "fp16", "bf16"):
        return dtype
    return {"tf32": "fp32", "": dtype}.get(precision, precision)


def value_of(text: str) -> Any:
    """A number, a truth value, a list of either, None, or a word."""
    if text in WORDS:
        return WORDS[text]
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [value_of(item.strip()) for item in inner.split(",")] if inner else []
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def stored_bytes(call: dict[str, Any]) -> int:
    """About what its tensors take, in fp32; of a chain, what comes in."""
    size = sum(stored_bytes(_given(part)) for part in call.get("parts", ()))
    for index, dims in enumerate(call["dims"]):
        if call["types"][index] in DTYPES and not (dims and isinstance(dims[0], list)):
            size += 8 if call["types"][index] in ("int64", "fp64") else 4
            size += 4 * math.prod(dims)
    return size


def made_bytes(call: dict[str, Any]) -> int:
    """What a chain's operators read of each other, in fp32."""
    return sum(stored_bytes(part) - stored_bytes(_given(part)) for part in call.get("parts", ()))


def _given(part: dict[str, Any]) -> dict[str, Any]:
    """A chain's operator with nothing of what others made."""
    pairs = zip(part["types"], part["concrete"], strict=True)
    return {**part, "types": ["" if text.startswith("@") else kind for kind, text in pairs]}
