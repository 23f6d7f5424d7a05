"""Reading an operator's recorded inputs; and `recorded`, which the other tests of work build theirs
with."""

from __future__ import annotations

import json
from math import prod
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.core.trace import OpInputs
from stepscope.workload.inputs import (
    Shape,
    Shapes,
    flag_at,
    flags_at,
    integer_at,
    integers_at,
    number_at,
)
from stepscope.workload.model import MODELS, ParsedInputs, parse_inputs, work_of


class Arg(NamedTuple):
    """One argument as the recorder writes it."""

    dims: list[int] | list[list[int]]
    type: str
    strides: list[int] | list[list[int]]
    concrete: str


def tensor(*dims: int, dtype: str = "float", strides: list[int] | None = None) -> Arg:
    return Arg(list(dims), dtype, _steps(dims) if strides is None else strides, "")


def _steps(dims: tuple[int, ...]) -> list[int]:
    return [prod(max(size, 1) for size in dims[at + 1 :]) for at in range(len(dims))]


def bf16(*dims: int) -> Arg:
    return tensor(*dims, dtype="c10::BFloat16")


def tensors(*shapes: tuple[int, ...]) -> Arg:
    return Arg(
        [list(shape) for shape in shapes], "TensorList", [_steps(shape) for shape in shapes], ""
    )


def scalar(value: object) -> Arg:
    return Arg([], "Scalar", [], str(value))


def scalars(*values: object) -> Arg:
    return Arg([], "ScalarList", [], "[" + ", ".join(map(str, values)) + "]")


NONE = Arg([], "", [], "")


def recorded(*args: Arg) -> ParsedInputs:
    """These arguments, written as text and read back."""
    inputs = parse_inputs(
        OpInputs(
            dims=json.dumps([arg.dims for arg in args]),
            types=json.dumps([arg.type for arg in args]),
            strides=json.dumps([arg.strides for arg in args]),
            concrete=json.dumps([arg.concrete for arg in args]),
        )
    )
    assert inputs is not None
    return inputs


def dims_alone(text: str) -> OpInputs:
    return OpInputs(dims=text, types=None, strides=None, concrete=None)


def test_parse_reads_tensors_lists_and_scalars() -> None:
    inputs = recorded(tensor(4, 3), tensors((2, 2), (5,)), scalar(True), scalars(1, 2), NONE)
    assert inputs.dims == ((4, 3), ((2, 2), (5,)), (), (), ())
    assert inputs.types == ("float", "TensorList", "Scalar", "ScalarList", "")
    assert inputs.strides == ((3, 1), ((2, 1), (1,)), (), (), ())
    assert inputs.concrete == ("", "", "True", "[1, 2]", "")


def test_parse_without_dims_is_none() -> None:
    assert parse_inputs(OpInputs(dims=None, types='["float"]', strides=None, concrete=None)) is None


def test_parse_fills_in_what_was_not_recorded() -> None:
    inputs = parse_inputs(dims_alone("[[4, 3], []]"))
    assert inputs == ParsedInputs(dims=((4, 3), ()), types=("", ""), strides=(), concrete=("", ""))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "{}",
        "[1]",
        "[[1, [2]]]",
        "[[[[1]]]]",
        "[[-1]]",
        '[["3"]]',
        "[[true]]",
        "[[1.5]]",
        "[[1]",
        "[[9223372036854775808]]",
        "[[" + "9" * 5000 + "]]",
        "[[1e400]]",
        "[[NaN]]",
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "[[" + "1," * 65 + "1]]",
        "[[\ud800]]",
    ],
)
def test_parse_of_what_no_recorder_writes_is_none(text: str) -> None:
    assert parse_inputs(dims_alone(text)) is None


def test_parse_of_parts_that_disagree_is_none() -> None:
    good = OpInputs(dims="[[2]]", types='["float"]', strides="[[1]]", concrete='[""]')
    assert parse_inputs(good) is not None
    for part, text in (
        ("types", "[]"),
        ("strides", "[[1], []]"),
        ("concrete", '["", ""]'),
        ("types", "[1]"),
        ("concrete", "[null]"),
    ):
        changed = {
            name: getattr(good, name) for name in ("dims", "types", "strides", "concrete")
        } | {part: text}
        assert parse_inputs(OpInputs(**changed)) is None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=12,
)


@given(st.lists(st.text(max_size=40) | JSON.map(json.dumps), min_size=4, max_size=4))
def test_parse_never_raises(texts: list[str]) -> None:
    parsed = parse_inputs(
        OpInputs(dims=texts[0], types=texts[1], strides=texts[2], concrete=texts[3])
    )
    assert parsed is None or len(parsed.dims) <= len(parsed.types)


HUGE = st.integers(0, 2**63 - 1) | st.integers(0, 4)
ARGS = st.builds(
    Arg,
    st.lists(HUGE, max_size=6) | st.lists(st.lists(HUGE, max_size=4), min_size=1, max_size=3),
    st.sampled_from(
        [
            "float",
            "c10::BFloat16",
            "long int",
            "bool",
            "double",
            "TensorList",
            "Scalar",
            "ScalarList",
            "",
            "alien",
        ]
    ),
    st.just([]),
    st.sampled_from(
        [
            "",
            "True",
            "False",
            "0",
            "1",
            "-1",
            "99999999999999999999",
            "1e999",
            "[]",
            "[1, 1]",
            "[0]",
            "[True, False, True]",
            "[x",
        ]
    ),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(ARGS, max_size=18), st.booleans())
def test_no_model_raises_or_gives_nonsense(args: list[Arg], with_strides: bool) -> None:
    inputs = ParsedInputs(
        dims=tuple(_frozen(arg.dims) for arg in args),
        types=tuple(arg.type for arg in args),
        strides=tuple(_frozen(arg.dims) for arg in args) if with_strides else (),
        concrete=tuple(arg.concrete for arg in args),
    )
    for op in MODELS:
        work = work_of(op, inputs)
        if work is not None:
            assert work.flops is not None or work.bytes is not None
            for figure in (work.flops, work.bytes, work.hardware_flops):
                assert figure is None or 0 <= figure < float("inf")


def _frozen(dims: list[int] | list[list[int]]) -> Shape | Shapes:
    return tuple(tuple(size) if isinstance(size, list) else size for size in dims)  # type: ignore[return-value]


def test_concrete_values_are_read_or_none() -> None:
    inputs = recorded(
        scalar("True"),
        scalar("-7"),
        scalar("2.5"),
        scalars(3, 4),
        scalars(True, False),
        scalars(),
        scalar("[1, x]"),
    )
    assert flag_at(inputs, 0) is True
    assert flag_at(inputs, 1) is None
    assert integer_at(inputs, 1) == -7
    assert integer_at(inputs, 2) is None
    assert number_at(inputs, 2) == 2.5
    assert integers_at(inputs, 3) == (3, 4)
    assert flags_at(inputs, 4) == (True, False)
    assert integers_at(inputs, 5) == ()
    assert integers_at(inputs, 6) is None
    assert integer_at(inputs, 99) is None
