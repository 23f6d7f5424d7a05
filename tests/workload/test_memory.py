"""Work of everything that is bound by bytes: pointwise operators, reductions, norms, copies,
lookups, losses, optimizers.

Bytes here were compared with what torch 2.13 read and wrote on the CPU: the inputs' storage plus
the outputs' it returned.
"""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.workload.model import MODELS, Work, work_of
from stepscope.workload.pointwise import kept_elements
from tests.workload.test_inputs import NONE, Arg, bf16, recorded, scalar, scalars, tensor, tensors

A, B = tensor(8, 16), tensor(16)
H, I64, I32, MASK = (
    bf16(8, 16),
    tensor(8, 16, dtype="long int"),
    tensor(8, 16, dtype="int"),
    tensor(8, 16, dtype="bool"),
)
ROWS = tensor(8, 16, strides=[1, 0])
"""A column expanded to 16."""
UNRECORDED = Arg([], "Scalar", [], "")
SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)


def work(op: str, *args: Arg) -> Work:
    found = work_of(f"aten::{op}" if "::" not in op else op, recorded(*args))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("op", "args", "moved", "precision"),
    [
        ("add", (A, B, scalar(1)), 1088, "fp32"),
        ("add", (A, ROWS, scalar(1)), 1056, "fp32"),
        ("mul", (A, H), 1280, "fp32"),
        ("mul", (H, tensor(8, 16, dtype="c10::Half")), 1024, "fp32"),
        ("mul", (I64, I32), 2560, "int64"),
        ("mul", (I64, scalar("2.5")), 1536, "fp32"),
        ("mul", (I64, scalar(2)), 2048, "int64"),
        ("mul", (A, A, tensor(0)), 1536, "fp32"),  # an out= tensor, to be resized
        ("mul", (H, scalar("2."), H), 512, "bf16"),
        ("gt", (A, B), 704, "fp32"),
        ("eq", (I64, I64), 2176, "int64"),
        ("isnan", (A,), 640, "fp32"),
        ("sigmoid", (I64,), 1536, "fp32"),
        ("where", (MASK, A, A), 1664, "fp32"),
        ("masked_fill", (A, MASK, scalar("-inf")), 1152, "fp32"),
        ("addcmul", (A, A, B, scalar(1)), 1600, "fp32"),
        ("clamp", (A, scalar(0), NONE), 1024, "fp32"),
        ("pow", (scalar(2), A), 1024, "fp32"),
        ("add_", (A, B, scalar(1)), 1088, "fp32"),
        ("masked_fill_", (A, MASK, scalar("0.")), 1152, "fp32"),
        ("div_", (A, tensor(8, 16, dtype="double")), 2048, "fp64"),
        ("gelu_backward", (A, A, NONE), 1536, "fp32"),
        ("elu_backward", (A, scalar(1), scalar(1), scalar(1), scalar(False), A), 1536, "fp32"),
        ("hardsigmoid_backward", (A, A), 1536, "fp32"),  # by the generic rule
        ("glu", (A, scalar(-1)), 768, "fp32"),
        ("mse_loss", (A, A, scalar(1)), 1536, "fp32"),
        ("mse_loss_backward", (tensor(), A, A, scalar(1)), 1540, "fp32"),
    ],
)
def test_pointwise_bytes(op: str, args: tuple[Arg, ...], moved: int, precision: str) -> None:
    found = work(op, *args)
    assert found.bytes == moved
    assert found.precision == precision
    assert not found.is_matrix


def test_python_number_leaves_the_tensors_type() -> None:
    number = tensor(dtype="double")
    assert work("mul", H, number).precision == "bf16"
    assert work("mul", I64, number).precision == "fp32"
    assert work("add", tensor(dtype="c10::Half"), number).precision == "fp64"


def test_pointwise_of_shapes_that_do_not_broadcast_has_no_work() -> None:
    assert work_of("aten::add", recorded(tensor(3), tensor(4), scalar(1))) is None
    assert work_of("aten::add_", recorded(tensor(1), tensor(4), scalar(1))) is None


def test_backward_of_an_unknown_function_has_no_work() -> None:
    assert work_of("aten::frobnicate_backward", recorded(A, A)) is None
    assert work_of("aten::add_backward", recorded(A, A)) is None


@given(SHAPES, st.sampled_from(["add", "mul", "sub", "maximum", "addcmul", "lerp", "where"]))
def test_pointwise_bytes_are_no_less_than_the_output(shape: tuple[int, ...], op: str) -> None:
    args = [tensor(*shape)] * 3 if op in ("addcmul", "lerp", "where") else [tensor(*shape)] * 2
    found = work(op, *args)
    assert found.bytes is not None
    assert found.bytes >= 4 * prod(shape)


@given(SHAPES, st.integers(2, 5))
def test_pointwise_work_is_linear_in_the_batch(shape: tuple[int, ...], times: int) -> None:
    once, more = (work("silu", bf16(count, *shape)) for count in (3, 3 * times))
    assert once.flops is not None
    assert once.bytes is not None
    assert (more.flops, more.bytes) == (once.flops * times, once.bytes * times)


@pytest.mark.parametrize(
    ("op", "args", "moved"),
    [
        ("sum", (A, NONE), 516),
        ("sum", (A, scalars(0), scalar(False), NONE), 576),
        ("sum", (A, scalars(0, 1), scalar(True), NONE), 516),
        ("sum", (A, NONE, scalar(False), NONE), 516),
        ("sum", (A, scalars(), scalar(False), NONE), 516),
        ("sum", (A, scalars(0), scalar(False), NONE, B), 576),
        ("sum", (I32, scalars(1), scalar(False), NONE), 576),
        ("sum", (H, scalars(1), scalar(False), scalar(6)), 288),
        ("sum", (H, scalar(7)), 264),
        ("mean", (A, scalars(-1), scalar(False), NONE), 544),
        ("max", (A,), 516),
        ("max", (A, scalar(1), scalar(False)), 608),
        ("max", (A, A), 1536),
        ("argmax", (A, scalar(1), scalar(False)), 576),
        ("argmax", (A, NONE, scalar(False)), 520),
        ("any", (MASK, scalar(1), scalar(False)), 136),
        ("var_mean", (A, scalars(1), NONE, scalar(False)), 576),
        ("linalg_vector_norm", (A, scalar(2), scalars(1), scalar(False), NONE), 544),
        ("cumsum", (I32, scalar(1), NONE), 1536),
        ("cumsum", (A, scalar(0), scalar(7)), 1536),
        ("sort", (A, scalar(1), scalar(False)), 2048),
        ("topk", (A, scalar(3), scalar(1), scalar(True), scalar(True)), 800),
    ],
)
def test_reduction_bytes(op: str, args: tuple[Arg, ...], moved: int) -> None:
    assert work(op, *args).bytes == moved


def test_reduction_whose_dimensions_were_not_recorded_has_flops_alone() -> None:
    found = work("sum", A, NONE, UNRECORDED, NONE)
    assert (found.flops, found.bytes) == (128, None)
    assert (
        work("sum", NONE, tensor(300, 2048, dtype="int"), NONE, UNRECORDED, NONE).flops
        == 300 * 2048
    )  # out first, as once written


def test_maximum_with_one_element_may_be_either_overload() -> None:
    assert work_of("aten::max", recorded(A, tensor())) is None


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_kept_elements_times_reduced_ones_are_all(sizes: list[int], data: st.DataObject) -> None:
    dims = data.draw(st.sets(st.integers(-len(sizes), len(sizes) - 1), min_size=1))
    gone = {dim % len(sizes) for dim in dims}
    kept = kept_elements(tuple(sizes), tuple(dims))
    assert kept is not None
    assert kept * prod(sizes[at] for at in gone) == prod(sizes)
    assert kept_elements(tuple(sizes), (len(sizes),)) is None


X, W = tensor(4, 6, 5, 5), tensor(6)
ROW_STATS, GROUP_STATS = tensor(8, 1), tensor(4, 3)


@pytest.mark.parametrize(
    ("op", "args", "moved"),
    [
        ("native_layer_norm", (A, scalars(16), B, B, scalar("1e-05")), 1216),
        (
            "native_layer_norm_backward",
            (A, A, scalars(16), ROW_STATS, ROW_STATS, B, B, scalars(True, True, True)),
            1792,
        ),
        ("_fused_rms_norm", (A, scalars(16), B, scalar("1e-05")), 1120),
        ("native_batch_norm", (X, W, W, W, W, scalar(True), scalar("0.1"), scalar("1e-05")), 4944),
        (
            "native_batch_norm_backward",
            (X, X, *[W] * 5, scalar(True), scalar("1e-05"), scalars(True, True, True)),
            7320,
        ),
        (
            "native_batch_norm_backward",
            (X, X, *[W] * 5, scalar(True), scalar("1e-05"), scalars(True, False, False)),
            7272,
        ),
        ("cudnn_batch_norm_backward", (X, X, *[W] * 5, scalar("1e-05"), tensor(0)), 7320),
        (
            "native_group_norm",
            (X, W, W, scalar(4), scalar(6), scalar(25), scalar(3), scalar("1e-05")),
            4 * (2 * 600 + 12 + 24),
        ),
        (
            "native_group_norm_backward",
            (
                X,
                X,
                GROUP_STATS,
                GROUP_STATS,
                W,
                scalar(4),
                scalar(6),
                scalar(25),
                scalar(3),
                scalars(True, True, True),
            ),
            7368,
        ),
        ("_softmax", (A, scalar(-1), scalar(False)), 1024),
        ("_softmax", (H, scalar(-1), scalar(True)), 256 + 512),
        ("_log_softmax_backward_data", (A, A, scalar(1), scalar(15)), 512 + 512 + 256),
        ("native_dropout", (A, scalar("0.1"), scalar(True)), 1152),
        ("native_dropout_backward", (A, MASK, scalar("1.1")), 1152),
        ("_C::fused_add_rms_norm", (H, H, bf16(16), scalar("1e-05")), 4 * 256 + 32),
    ],
)
def test_stream_bytes(op: str, args: tuple[Arg, ...], moved: int) -> None:
    assert work(op, *args).bytes == moved


def test_layer_norm_without_its_shape_recorded_takes_the_weights() -> None:
    unrecorded = Arg([], "ScalarList", [], "")
    assert work("native_layer_norm", A, unrecorded, B, B, UNRECORDED).bytes == 1216


@pytest.mark.parametrize(
    ("op", "args", "moved"),
    [
        ("copy_", (A, H, scalar(False)), 768),
        ("copy_", (A, ROWS, scalar(False)), 512 + 32),
        ("clone", (ROWS, NONE), 544),
        ("_to_copy", (A, scalar(15), NONE, NONE, NONE, scalar(False), NONE), 768),
        ("fill_", (A, scalar(0)), 512),
        ("zero_", (A,), 512),
        ("normal_", (A, scalar(0), scalar(1), NONE), 512),
        ("arange", (scalar(0), scalar(100), scalar(3), tensor(0, dtype="long int")), 272),
        ("cat", (tensors((8, 16), (8, 16)), scalar(0), tensor(16, 16)), 2048),
        ("index_select", (A, scalar(0), tensor(2, dtype="long int")), 272),
        (
            "embedding",
            (A, tensor(3, dtype="long int"), scalar(-1), scalar(False), scalar(False)),
            408,
        ),
        (
            "embedding",
            (A, tensor(1000, dtype="long int"), scalar(-1), scalar(False), scalar(False)),
            512 + 8000 + 64000,
        ),
        ("gather", (A, scalar(1), I64, scalar(False)), 2048),
        (
            "embedding_dense_backward",
            (tensor(5, 16), tensor(5, dtype="long int"), scalar(100), scalar(-1), scalar(False)),
            680,
        ),
        ("scatter_add_", (A, scalar(0), tensor(4, 16, dtype="long int"), tensor(4, 16)), 1280),
        ("scatter_", (A, scalar(0), tensor(4, 16, dtype="long int"), scalar("1.")), 512 + 256),
        ("nll_loss_forward", (A, tensor(8, dtype="long int"), NONE, scalar(1), scalar(-100)), 96),
    ],
)
def test_memory_bytes(op: str, args: tuple[Arg, ...], moved: int) -> None:
    assert work(op, *args).bytes == moved


def test_copies_compute_nothing() -> None:
    assert work("copy_", A, H, scalar(False)).flops == 0


def test_list_without_a_type_has_no_bytes() -> None:
    found = work("cat", tensors((8, 16), (8, 16)), scalar(0))
    assert (found.kind, found.flops, found.bytes) == ("copy", 0, None)
    # Traces of 2022 put the output first, and gave a list no shapes.
    assert work("cat", A, Arg([], "TensorList", [], ""), scalar(0)).bytes == 1024


@pytest.mark.parametrize(
    ("op", "args", "moved"),
    [
        (
            "max_pool2d_with_indices",
            (
                tensor(2, 3, 11, 11),
                scalars(3, 3),
                scalars(2, 2),
                scalars(1, 1),
                scalars(1, 1),
                scalar(False),
            ),
            5496,
        ),
        (
            "max_pool2d_with_indices",
            (
                tensor(2, 3, 10, 10),
                scalars(3, 3),
                scalars(2, 2),
                scalars(0, 0),
                scalars(1, 1),
                scalar(True),
            ),
            4200,
        ),
        (
            "avg_pool2d",
            (
                tensor(2, 3, 11, 11),
                scalars(2, 2),
                scalars(),
                scalars(0, 0),
                scalar(False),
                scalar(True),
                NONE,
            ),
            3504,
        ),
        ("_adaptive_avg_pool2d", (tensor(2, 3, 11, 11), scalars(5, 5)), 3504),
        ("upsample_nearest2d", (tensor(1, 2, 4, 4), scalars(8, 8), NONE, NONE), 640),
        ("avg_pool2d_backward", (tensor(4, 6, 2, 2), X, scalars(2, 2)), 2784),
        (
            "max_pool2d_with_indices_backward",
            (tensor(4, 6, 2, 2), X, *[NONE] * 5, tensor(4, 6, 2, 2, dtype="long int")),
            3552,
        ),
    ],
)
def test_pool_bytes(op: str, args: tuple[Arg, ...], moved: int) -> None:
    found = work(op, *args)
    assert (found.kind, found.bytes) == ("pooling", moved)


def test_optimizer_has_flops_from_a_list_short_enough_to_be_recorded() -> None:
    lists = [tensors((5, 6), (7,))] * 4
    found = work(
        "_fused_adamw_", *lists, Arg([], "TensorList", [], ""), tensors((), ()), scalar("0.001")
    )
    assert (found.kind, found.flops, found.bytes) == ("optimizer", 16 * 37, None)
    elided = Arg([], "TensorList", [], "")
    assert work_of("aten::_fused_adamw_", recorded(*[elided] * 6, scalar("0.001"))) is None
    assert (
        work(
            "_foreach_add_",
            tensors((128, 128), (128,)),
            tensors((128, 128), (128,)),
            scalar("-0.001"),
        ).flops
        == 128 * 129
    )


def test_compiled_kernel_has_bytes_when_it_must_read_one_tensor_and_write_the_other() -> None:
    elements = scalar(128)
    for op in (
        "triton_poi_fused__to_copy_t_3",
        "triton_poi_fused_gelu_view_8",
        "triton_poi_fused__to_copy_0",
    ):
        found = work_of(op, recorded(A, H, elements))
        assert found is not None
        assert (found.flops, found.bytes) == (None, 512 + 256)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (
            "triton_poi_fused_gelu_gelu_backward_view_6",
            (A, A, scalar(128)),
        ),  # may write either in place
        ("triton_poi_fused_add_1", (A, A, scalar(128))),
        ("triton_poi_fused__to_copy_2", (A, A, H, scalar(128))),
        ("triton_poi_fused__to_copy_2", (A, H, scalar(64))),
        ("triton_red_fused_sum_3", (A, B, scalar(16), scalar(8))),
        ("triton_poi_fused__to_copy_view_extra", (A, H, scalar(128))),
    ],
)
def test_compiled_kernel_that_may_do_otherwise_has_no_work(op: str, args: tuple[Arg, ...]) -> None:
    assert work_of(op, recorded(*args)) is None


@pytest.mark.parametrize(
    "op",
    [
        "aten::view",
        "aten::index",
        "aten::empty",
        "record_param_comms",
        "fbgemm::dense_to_jagged",
        "",
        "ProfilerStep#3",
    ],
)
def test_operator_without_a_model_has_no_work(op: str) -> None:
    assert op not in MODELS
    assert work_of(op, recorded(A, A)) is None


def test_every_model_abstains_without_arguments() -> None:
    assert [op for op in MODELS if work_of(op, recorded()) is not None] == []
