"""Which sizes of a call are its batch's."""

from __future__ import annotations

import pytest

from stepscope.core.hardware import Dims, OperatorCall
from stepscope.rules.shared.larger_calls import larger_call

WEIGHTS = frozenset({(64, 32), (16, 8, 3, 3)})


def call(op: str, *dims: Dims, strides: tuple[Dims, ...] = ()) -> OperatorCall:
    words = ("",) * len(dims)
    return OperatorCall(op=op, dims=dims, types=words, strides=strides, concrete=words)


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [
        ("aten::mm", ((10, 32), (32, 64)), ((20, 32), (32, 64))),
        ("aten::mm", ((10, 64), (64, 32)), ((20, 64), (64, 32))),
        ("aten::mm", ((64, 10), (10, 32)), ((64, 20), (20, 32))),
        ("aten::addmm", ((64,), (10, 32), (32, 64)), ((64,), (20, 32), (32, 64))),
        ("aten::addmm", ((10, 64), (10, 32), (32, 64)), ((20, 64), (20, 32), (32, 64))),
        ("aten::bmm", ((6, 10, 4), (6, 4, 10)), ((12, 10, 4), (12, 4, 10))),
        (
            "aten::convolution",
            ((2, 8, 9, 9), (16, 8, 3, 3), ()),
            ((4, 8, 9, 9), (16, 8, 3, 3), ()),
        ),
        (
            "attention",
            ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8), (2, 1, 9, 9), ()),
            ((4, 4, 9, 8), (4, 4, 9, 8), (4, 4, 9, 8), (4, 1, 9, 9), ()),
        ),
        (
            "attention",
            ((2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8), (1, 1, 9, 9), ()),
            ((4, 4, 9, 8), (4, 4, 9, 8), (4, 4, 9, 8), (1, 1, 9, 9), ()),
        ),
    ],
)
def test_the_batch_grows_and_weights_do_not(
    op: str, before: tuple[Dims, ...], after: tuple[Dims, ...]
) -> None:
    grown = larger_call(call(op, *before), WEIGHTS, 2)
    assert grown is not None
    assert grown.dims == after


def test_what_lies_outside_of_the_batch_is_further_apart() -> None:
    gradient = call("aten::mm", (64, 10), (10, 32), strides=((1, 64), (32, 1)))
    turned = call("aten::mm", (64, 10), (10, 32), strides=((10, 1), (32, 1)))
    for before, strides in ((gradient, ((1, 64), (32, 1))), (turned, ((20, 1), (32, 1)))):
        grown = larger_call(before, WEIGHTS, 2)
        assert grown is not None
        assert grown.strides == strides


def test_a_product_of_no_weight_and_other_operators_are_not_known() -> None:
    assert larger_call(call("aten::mm", (5, 7), (7, 9)), WEIGHTS, 2) is None
    assert larger_call(call("aten::gelu", (5, 7)), WEIGHTS, 2) is None
