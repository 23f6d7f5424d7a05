"""A chain of small operators is what its operators are one after the other, and can be compiled."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.probe.job.tensors import Maker, UnbuildableError, made_bytes, stored_bytes
from tests.installed import package

torch = package("torch")

from stepscope.probe.job.chains import Chain, chain_calls, compiled_chain

WIDE, ROW = [4, 6], [6]


def part(op: str, *arguments: tuple[list[int], str, str], strides: Any = ()) -> dict[str, Any]:
    dims, types, concrete = zip(*arguments, strict=True)
    return {
        "op": f"aten::{op}",
        "dims": list(dims),
        "types": list(types),
        "strides": list(strides),
        "concrete": list(concrete),
    }


def chain(*parts: dict[str, Any], out: tuple[str, ...]) -> dict[str, Any]:
    nothing: dict[str, Any] = {"dims": [], "types": [], "strides": []}
    return {"op": "chain", **nothing, "concrete": list(out), "parts": list(parts)}


NARROWED = part("copy_", (WIDE, "bf16", "empty"), (WIDE, "fp32", "@0"), ([], "Scalar", "False"))
NORMED = chain(
    part("mul", (WIDE, "fp32", "#0"), (ROW, "fp32", "#1")),
    NARROWED,
    part("sum", (WIDE, "bf16", "@1"), ([], "ScalarList", "[1]"), ([], "Scalar", "True")),
    part("add", (WIDE, "fp32", "@0"), (WIDE, "fp32", "#0"), ([], "Scalar", "1")),
    out=("2", "3"),
)
TURNED = chain(
    part("neg", (WIDE, "fp32", "#0")),
    part("exp", ([6, 4], "fp32", "@0"), strides=[[1, 6]]),
    out=("1",),
)


def test_operators_take_what_others_made_and_what_comes_in() -> None:
    made = Chain(Maker(torch, "cpu"), NORMED)
    wide, row = made.given
    total, added = made.run(wide, row)
    assert torch.equal(added, wide * row + wide)
    assert torch.equal(total, (wide * row).to(torch.bfloat16).sum(1, keepdim=True))


def test_a_result_is_turned_as_it_was_read() -> None:
    made = Chain(Maker(torch, "cpu"), TURNED)
    (wide,) = made.given
    (turned,) = made.run(wide)
    assert torch.equal(turned, (-wide).exp().T)


def test_what_an_operator_makes_beside_goes_out_too() -> None:
    rows: tuple[list[int], str, str] = ([4, 1], "fp32", "")
    few: tuple[list[int], str, str] = ([], "ScalarList", "[6]")
    backward = part(
        "native_layer_norm_backward",
        (WIDE, "fp32", "#0"),
        (WIDE, "fp32", "#1"),
        few,
        (*rows[:2], "#2"),
        (*rows[:2], "#3"),
        (ROW, "fp32", "#4"),
        (ROW, "fp32", "#5"),
        ([], "ScalarList", "[True, True, True]"),
    )
    narrowed = part("neg", (WIDE, "fp32", "@0"))
    made = Chain(Maker(torch, "cpu"), chain(backward, narrowed, out=("1",)))
    shapes = [tuple(each.shape) for each in made.run(*made.given)]
    assert shapes == [(4, 6), (6,), (6,)], "the gradients of weight and bias"


def test_copies_are_other_tensors_in_the_same_form() -> None:
    maker = Maker(torch, "cpu")
    first, second = chain_calls(maker, NORMED, 2)
    assert all(torch.equal(a, b) for a, b in zip(first(), second(), strict=True))


def test_a_chain_is_compiled_as_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_it(run: Any, *, dynamic: bool) -> Any:
        assert not dynamic
        compiled.append(run.__func__.__code__)
        return run

    monkeypatch.setattr(torch, "compile", compile_it)
    maker = Maker(torch, "cpu")
    runs = [compiled_chain(maker, each) for each in (NORMED, TURNED)]
    (call,) = chain_calls(maker, TURNED, 1, run=runs[1])
    assert call()[0].shape == (6, 4)
    assert len(set(compiled)) == 2


def test_what_is_not_known_is_no_chain() -> None:
    lists = chain(part("neg", ([[2], [3]], "TensorList", "")), out=("0",))  # type: ignore[list-item]
    with pytest.raises(UnbuildableError, match="TensorList"):
        Chain(Maker(torch, "cpu"), lists)


def test_what_comes_in_is_told_from_what_is_made() -> None:
    assert stored_bytes(NORMED) == 4 * (24 + 6 + 24 + 24) + 5 * 4 - 4
    assert made_bytes(NORMED) == 3 * (4 * 24 + 4)
