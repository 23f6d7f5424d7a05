"""Shapes as a user writes them, and the edges made from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import UsageError
from stepscope.tune.kernels.cases import (
    declared_shapes,
    edge_shapes,
    make_cases,
    parse_dtypes,
    parse_shapes,
)
from stepscope.tune.kernels.space import (
    declared_configs,
    default_options,
    parse_configs,
    process_of,
    product,
)
from stepscope.tune.shapes.kernel_tuning import shape_words


def test_shapes_are_read_as_cases_of_tensors() -> None:
    assert parse_shapes("1024x1024, 1000x7") == (((1024, 1024),), ((1000, 7),))
    assert parse_shapes("512x256;256x1024") == (((512, 256), (256, 1024)),)


@pytest.mark.parametrize(
    "text", ["", "12x", "axb", "-3x4", "0x4", "1e3", "4,,5", "99999999x99999999"]
)
def test_what_is_no_shape_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(UsageError, match="--shapes"):
        parse_shapes(text)


@given(
    st.lists(
        st.lists(st.integers(1, 500), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3
    ).map(tuple)
)
def test_words_of_shapes_read_back(shapes: tuple[tuple[int, ...], ...]) -> None:
    assert parse_shapes(shape_words(shapes)) == (shapes,)


def test_declared_shapes_may_be_numbers_tuples_and_words() -> None:
    declared = [(4, 5), 7, ((2, 3), (3, 4)), "8x9"]
    assert declared_shapes(declared, "stepscope_shapes") == (
        ((4, 5),),
        ((7,),),
        ((2, 3), (3, 4)),
        ((8, 9),),
    )
    with pytest.raises(UsageError, match="stepscope_shapes"):
        declared_shapes([{"rows": 3}], "stepscope_shapes")


def test_edges_have_ones_and_odd_sizes_and_keep_tensors_fitting() -> None:
    edges = edge_shapes([((512, 256), (256, 1024))])
    assert ((1, 1), (1, 1)) in edges
    assert any(all(size % 2 and size > 1 for shape in shapes for size in shape) for shapes in edges)
    assert all(a[1] == b[0] for a, b in edges)
    assert ((512, 256), (256, 1024)) not in edges


def test_edges_come_before_the_cases_that_are_timed() -> None:
    cases = make_cases([((4, 4),)], [((1, 1),)], ["float32", "bfloat16"])
    assert [case.is_timed for case in cases] == [False, False, True, True]


def test_dtypes_have_short_names_and_no_strange_ones() -> None:
    assert parse_dtypes("bf16,torch.float32,bfloat16") == ("bfloat16", "float32")
    with pytest.raises(UsageError, match="int7"):
        parse_dtypes("int7")


def test_configs_are_a_product_of_typed_values() -> None:
    axes = parse_configs(["BLOCK=64,128", "fast=on,off", "mode=default"])
    assert axes == {"BLOCK": (64, 128), "fast": (True, False), "mode": ("default",)}
    assert len(product(axes)) == 4
    assert product(axes)[0] == {"BLOCK": 64, "fast": True, "mode": "default"}


@pytest.mark.parametrize("text", ["BLOCK", "=3", "BLOCK=", "BLOCK=1,,2", "a b=3"])
def test_what_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--config"):
        parse_configs([text])


def test_too_many_configs_are_refused_with_their_number() -> None:
    with pytest.raises(UsageError, match="1,000,000 configurations"):
        product({"a": list(range(1000)), "b": list(range(1000))})


def test_declared_configs_may_be_axes_or_a_list() -> None:
    assert declared_configs({"BLOCK": [1, 2], "w": 4}, "c") == (
        {"BLOCK": 1, "w": 4},
        {"BLOCK": 2, "w": 4},
    )
    assert declared_configs([{"BLOCK": 1}, {"BLOCK": 1}], "c") == ({"BLOCK": 1},)
    with pytest.raises(UsageError, match="stepscope_configs"):
        declared_configs({"BLOCK": [object()]}, "stepscope_configs")


def test_process_wide_settings_have_a_process_of_their_own() -> None:
    ways = default_options(on_gpu=True, has_compiler=True, has_conv=True, has_products=True)
    assert {process_of(way) for way in ways} == {(), ("cudnn_benchmark",), ("tunable_op",)}
    without = default_options(on_gpu=False, has_compiler=False, has_conv=False, has_products=False)
    assert without == ({"backend": "aot_eager"},)
