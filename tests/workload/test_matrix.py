"""Work of matrix products, convolutions, attention and recurrent layers.

Figures marked (counter) are what torch 2.13's torch.utils.flop_counter.FlopCounterMode gave for the
same call on the CPU.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.workload.attention import Band, attended_pairs
from stepscope.workload.model import Work, work_of
from tests.workload.test_inputs import NONE, Arg, bf16, recorded, scalar, scalars, tensor, tensors

SIZES = st.integers(1, 64)


def work(op: str, *args: Arg) -> Work:
    found = work_of(op, recorded(*args))
    assert found is not None
    return found


# Matrix products


def test_mm_counts_two_flops_a_multiply_add() -> None:
    found = work("aten::mm", bf16(8192, 1024), bf16(1024, 3072))
    assert found == Work(
        kind="gemm",
        flops=2 * 8192 * 1024 * 3072,
        bytes=2 * (8192 * 1024 + 1024 * 3072 + 8192 * 3072),
        precision="bf16",
        is_matrix=True,
        hardware_flops=2 * 8192 * 1024 * 3072,
    )


def test_mm_does_not_read_its_out_tensor() -> None:
    plain = work("aten::mm", bf16(8, 4), bf16(4, 6))
    assert work("aten::mm", bf16(8, 4), bf16(4, 6), bf16(8, 6)) == plain
    into_fp32 = work("aten::mm", bf16(8, 4), bf16(4, 6), tensor(8, 6))
    assert into_fp32.bytes == 2 * (8 * 4 + 4 * 6) + 4 * 8 * 6


def test_mm_may_name_its_output_type() -> None:
    assert (
        work("aten::mm", bf16(8, 4), bf16(4, 6), scalar(6)).bytes == 2 * (8 * 4 + 4 * 6) + 4 * 8 * 6
    )
    with_bias = (bf16(6), bf16(8, 4), bf16(4, 6))
    assert (
        work("aten::addmm", *with_bias, scalar(6), scalar(0), scalar(1)).bytes
        == 2 * (8 * 4 + 4 * 6) + 4 * 8 * 6
    )


def test_addmm_reads_the_bias_unless_beta_is_zero() -> None:
    args = (tensor(4), tensor(8, 16), tensor(16, 4))
    assert (
        work("aten::addmm", *args, scalar(1), scalar(1)).flops == 1024
    )  # (counter): one third of 3072, forward and backward
    assert work("aten::addmm", *args, scalar(1), scalar(1)).bytes == 4 * (4 + 128 + 64 + 32)
    assert work("aten::addmm", *args, scalar(0), scalar(1)).bytes == 4 * (128 + 64 + 32)


@pytest.mark.parametrize(
    ("op", "args", "flops"),
    [
        (
            "aten::linear",
            (tensor(6, 10, 48), tensor(80, 48), tensor(80)),
            460_800,
        ),  # (counter), of 1382400
        ("aten::matmul", (tensor(2, 3, 8, 16), tensor(2, 3, 16, 4)), 6144),  # (counter), of 18432
        ("aten::matmul", (tensor(2, 3, 8, 16), tensor(16, 4)), 6144),  # (counter)
        ("aten::matmul", (tensor(2, 8, 16), tensor(16)), 512),
        ("aten::mv", (tensor(8, 16), tensor(16)), 256),
        ("aten::dot", (tensor(16), tensor(16)), 32),
        ("aten::bmm", (tensor(5, 8, 16), tensor(5, 16, 4)), 5120),  # (counter), of 15360
        (
            "aten::baddbmm",
            (tensor(5, 8, 4), tensor(5, 8, 16), tensor(5, 16, 4), scalar(1), scalar(1)),
            5120,
        ),  # (counter)
        (
            "aten::addbmm",
            (tensor(8, 4), tensor(5, 8, 16), tensor(5, 16, 4), scalar(1), scalar(1)),
            5120,
        ),
        (
            "aten::_addmm_activation",
            (tensor(4), tensor(8, 16), tensor(16, 4), scalar(1), scalar(1), scalar(False)),
            1024,
        ),
    ],
)
def test_products_agree_with_the_flop_counter(op: str, args: tuple[Arg, ...], flops: int) -> None:
    assert work(op, *args).flops == flops


def test_scaled_mm_is_fp8_and_writes_the_type_it_names() -> None:
    left, right = (
        tensor(64, 32, dtype="c10::Float8_e4m3fn"),
        tensor(32, 16, dtype="c10::Float8_e5m2", strides=[1, 32]),
    )
    found = work(
        "aten::_scaled_mm", left, right, tensor(), tensor(), NONE, NONE, scalar(15), scalar(True)
    )
    assert found.precision == "fp8"
    assert found.flops == 2 * 64 * 32 * 16
    assert found.bytes == 64 * 32 + 32 * 16 + 4 + 4 + 2 * 64 * 16


def test_fp4_holds_two_values_a_byte() -> None:
    left, right = (tensor(*dims, dtype="c10::Float4_e2m1fn_x2") for dims in ((64, 16), (16, 8)))
    assert (
        work(
            "aten::_scaled_mm",
            left,
            right,
            tensor(),
            tensor(),
            NONE,
            NONE,
            scalar(15),
            scalar(True),
        ).flops
        == 2 * 64 * 32 * 8
    )


def test_int_mm_gives_int32() -> None:
    args = [tensor(32, 32, dtype="signed char")] * 2
    assert work("aten::_int_mm", *args).bytes == 32 * 32 * (1 + 1 + 4)
    assert work("aten::_int_mm", *args).precision == "int8"


def test_grouped_mm_adds_its_groups_up() -> None:
    offsets = tensor(4, dtype="int")
    rows = work("aten::_grouped_mm", bf16(100, 8), bf16(4, 8, 6), offsets, NONE, NONE)
    inner = work("aten::_grouped_mm", bf16(8, 100), bf16(100, 6), offsets, NONE, NONE)
    assert (rows.kind, rows.is_matrix) == ("grouped-gemm", True)
    assert rows.flops == 2 * 100 * 8 * 6
    assert rows.bytes == 2 * (100 * 8 + 4 * 8 * 6 + 100 * 6) + 16
    assert inner.flops == 2 * 8 * 100 * 6
    assert inner.bytes == 2 * (8 * 100 + 100 * 6 + 4 * 8 * 6) + 16


def test_complex_product_has_four_times_the_flops() -> None:
    assert work("aten::mm", *[tensor(4, 4, dtype="c10::complex<float>")] * 2).flops == 8 * 4 * 4 * 4


def test_te_gemm_finds_k_from_the_output() -> None:
    args = [NONE] * 11
    args[0], args[5], args[10] = bf16(32, 64), bf16(100, 64), bf16(100, 32)
    assert work("tex_ts::te_gemm_ts", *args).flops == 2 * 100 * 32 * 64
    args[5] = bf16(100, 63)
    assert work_of("tex_ts::te_gemm_ts", recorded(*args)) is None


def test_sparse_operand_has_no_work() -> None:
    sparse = Arg([4, 4], "float", [], "")
    assert work_of("aten::mm", recorded(sparse, tensor(4, 5))) is None
    assert (
        work_of("aten::addmm", recorded(tensor(4, 5), sparse, tensor(4, 5), scalar(0), scalar(1)))
        is None
    )


def test_product_of_shapes_that_do_not_fit_has_no_work() -> None:
    assert work_of("aten::mm", recorded(tensor(4, 3), tensor(4, 5))) is None
    assert work_of("aten::bmm", recorded(tensor(2, 4, 3), tensor(3, 3, 5))) is None


def test_expanded_operand_counts_its_storage() -> None:
    expanded = tensor(64, 8, 4, strides=[0, 4, 1])
    assert work("aten::bmm", expanded, tensor(64, 4, 2)).bytes == 4 * (
        8 * 4 + 64 * 4 * 2 + 64 * 8 * 2
    )


def test_unknown_element_type_leaves_flops_and_no_bytes() -> None:
    found = work("aten::mm", tensor(4, 3, dtype="alien"), tensor(3, 5, dtype="alien"))
    assert (found.flops, found.bytes, found.precision) == (120, None, None)


@given(SIZES, SIZES, SIZES, SIZES, st.integers(2, 5))
def test_bmm_work_grows_with_the_batch(
    batch: int, rows: int, inner: int, columns: int, times: int
) -> None:
    once = work("aten::bmm", bf16(batch, rows, inner), bf16(batch, inner, columns))
    more = work("aten::bmm", bf16(batch * times, rows, inner), bf16(batch * times, inner, columns))
    assert once.flops is not None
    assert once.bytes is not None
    assert more.flops == times * once.flops
    assert more.bytes == times * once.bytes
    assert once.bytes >= 2 * batch * rows * columns


# Convolutions


def conv(op: str, tensor_dims: tuple[int, ...], weight: tuple[int, ...], *rest: Arg) -> Work:
    return work(op, tensor(*tensor_dims), tensor(*weight), *rest)


def plain_conv(
    dims: tuple[int, ...],
    weight: tuple[int, ...],
    stride: int,
    padding: int,
    dilation: int = 1,
    *,
    transposed: bool = False,
    extra: int = 0,
    groups: int = 1,
) -> Work:
    lists = [scalars(*[value] * (len(dims) - 2)) for value in (stride, padding, dilation, extra)]
    return conv(
        "aten::convolution",
        dims,
        weight,
        NONE,
        *lists[:3],
        scalar(transposed),
        lists[3],
        scalar(groups),
    )


@pytest.mark.parametrize(
    ("found", "flops"),
    [
        (plain_conv((2, 3, 17, 17), (16, 3, 3, 3), 2, 1), 139_968),
        (plain_conv((2, 8, 9, 9), (16, 2, 3, 3), 1, 1, groups=4), 93_312),
        (plain_conv((2, 4, 12, 12), (6, 4, 3, 3), 1, 2, 2), 124_416),
        (plain_conv((3, 4, 40), (6, 4, 5), 2, 0), 12_960),
        (plain_conv((1, 2, 5, 6, 7), (4, 2, 3, 3, 3), 1, 1), 90_720),
        (plain_conv((2, 6, 7, 7), (6, 4, 3, 3), 2, 1, transposed=True, extra=1), 42_336),
        (plain_conv((2, 8, 5, 5), (8, 2, 3, 3), 2, 0, transposed=True, groups=2), 14_400),
        (plain_conv((2, 8, 9, 9), (8, 1, 3, 3), 1, 1, groups=8), 23_328),
    ],
)
def test_convolutions_agree_with_the_flop_counter(found: Work, flops: int) -> None:
    assert found.flops == flops
    assert found.is_matrix


def test_convolution_bytes_include_the_output() -> None:
    # (11 + 2 - 3) // 2 + 1 = 6; and transposed (5 - 1) * 2 - 2 + 2 + 1 + 1 = 10. Both were compared
    # with tensors torch gave.
    plain = plain_conv((2, 3, 11, 11), (6, 3, 3, 3), 2, 1)
    assert plain.bytes == 4 * (2 * 3 * 121 + 6 * 27 + 2 * 6 * 36)
    transposed = plain_conv((2, 4, 5, 5), (4, 3, 3, 3), 2, 1, transposed=True, extra=1)
    assert transposed.bytes == 4 * (2 * 4 * 25 + 4 * 27 + 2 * 3 * 100)


def test_cudnn_convolution_has_padding_before_stride() -> None:
    # The stem of lab/single/nchw: 112 x 112 outputs.
    lists = (
        scalars(3, 3),
        scalars(2, 2),
        scalars(1, 1),
        scalar(1),
        scalar(True),
        scalar(False),
        scalar(False),
    )
    found = work("aten::cudnn_convolution", bf16(256, 3, 224, 224), bf16(64, 3, 7, 7), *lists)
    assert found.flops == 2 * 256 * 112 * 112 * 64 * 3 * 49
    assert found.precision == "bf16"


def conv_backward(mask: tuple[bool, bool, bool], *, weight: tuple[int, ...] = (8, 6, 3, 3)) -> Work:
    lists = (
        scalars(0),
        scalars(1, 1),
        scalars(1, 1),
        scalars(1, 1),
        scalar(False),
        scalars(0, 0),
        scalar(1),
        scalars(*mask),
    )
    return work(
        "aten::convolution_backward",
        tensor(4, 8, 5, 5),
        tensor(4, 6, 5, 5),
        tensor(*weight),
        *lists,
    )


def test_convolution_backward_does_what_its_mask_asks() -> None:
    both, weight_alone = conv_backward((True, True, False)), conv_backward((False, True, True))
    assert both.flops == 172_800  # (counter): twice 2 * 4*8*25 * 6*9
    assert weight_alone.flops == 86_400
    assert both.bytes == 11_456  # each of three read, two written: compared with tensors torch gave
    assert weight_alone.bytes == 7328


def test_grouped_convolution_backward_is_twice_its_forward() -> None:
    # The counter takes no notice of groups in the weight's gradient: it gives 4 times as much for
    # it here.
    assert (
        conv_backward((True, True, False), weight=(8, 2, 3, 3)).flops == 2 * 2 * 4 * 8 * 25 * 2 * 9
    )


def test_convolution_without_recorded_values_has_no_work() -> None:
    args = (
        tensor(2, 3, 9, 9),
        tensor(4, 3, 3, 3),
        Arg([], "ScalarList", [], ""),
        Arg([], "ScalarList", [], ""),
    )
    assert work_of("aten::cudnn_convolution", recorded(*args)) is None


@given(SIZES, st.integers(1, 3), st.integers(0, 2), st.integers(1, 4), st.integers(2, 4))
def test_convolution_flops_are_linear_in_the_batch(
    size: int, stride: int, padding: int, batch: int, times: int
) -> None:
    if size + 2 * padding < 3:
        return
    once = plain_conv((batch, 3, size, size), (5, 3, 3, 3), stride, padding)
    more = plain_conv((batch * times, 3, size, size), (5, 3, 3, 3), stride, padding)
    assert once.flops is not None
    assert once.bytes is not None
    assert more.flops == once.flops * times
    assert once.bytes >= 4 * once.flops / (2 * 3 * 9)  # at least the outputs


# Attention


def flash(
    *,
    causal: bool,
    heads_k: int = 4,
    length_k: int = 32,
    window: tuple[object, object] | None = None,
) -> Work:
    left, right = (NONE, NONE) if window is None else (scalar(window[0]), scalar(window[1]))
    shape = (2, length_k, heads_k, 16)
    return work(
        "aten::_flash_attention_forward",
        *(
            bf16(2, 32, 4, 16),
            bf16(*shape),
            bf16(*shape),
            NONE,
            NONE,
            scalar(32),
            scalar(length_k),
            scalar("0."),
        ),
        *(scalar(causal), scalar(False), NONE, left, right, NONE, NONE),
    )


def test_attention_forward_is_two_products() -> None:
    assert (
        flash(causal=False).flops == 524_288
    )  # 4*b*h*sq*sk*d; (counter): a third of the math path's 1572864
    assert flash(causal=True).flops == 262_144


def test_attention_forward_bytes() -> None:
    queries = 2 * 32 * 4
    assert flash(causal=True).bytes == 2 * 4 * queries * 16 + 4 * queries


def test_grouped_queries_cost_flops_by_query_heads_and_bytes_by_key_heads() -> None:
    full, grouped = flash(causal=False), flash(causal=False, heads_k=2)
    assert full.bytes is not None
    assert grouped.bytes is not None
    assert grouped.flops == full.flops
    assert full.bytes - grouped.bytes == 2 * 2 * (2 * 32 * 2 * 16)


def test_cross_attention_counts_both_lengths() -> None:
    assert flash(causal=False, length_k=48).flops == 4 * 2 * 4 * 32 * 48 * 16


def test_window_narrows_the_band() -> None:
    unbounded = flash(causal=True).flops
    assert flash(causal=True, window=(-1, -1)).flops == unbounded
    assert flash(causal=True, window=(32, 0)).flops == unbounded
    # 8 keys back: 32 * 8 pairs, less the triangle at the start.
    assert flash(causal=True, window=(8, 0)).flops == 4 * 2 * 4 * 16 * (32 * 8 - 8 * 8 / 2)


def test_attention_of_unknown_causality_has_bytes_alone() -> None:
    args = [bf16(2, 4, 32, 16)] * 3
    found = work(
        "aten::_scaled_dot_product_flash_attention", *args, scalar(""), scalar(""), scalar(""), NONE
    )
    assert found.flops is None
    assert found.hardware_flops is None
    assert found.bytes is not None


SDPA_BACKWARD = [bf16(2, 4, 32, 16)] * 5 + [tensor(2, 4, 32)]


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            [
                *SDPA_BACKWARD,
                NONE,
                NONE,
                scalar(32),
                scalar(32),
                scalar("0."),
                scalar(False),
                NONE,
                NONE,
                NONE,
            ],
        ),
        (
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
            [*SDPA_BACKWARD, scalar("0."), scalar(False), NONE, NONE],
        ),
        (
            "aten::_cudnn_attention_backward",
            [
                *SDPA_BACKWARD,
                NONE,
                NONE,
                NONE,
                NONE,
                NONE,
                scalar(32),
                scalar(32),
                scalar("0."),
                scalar(False),
                NONE,
            ],
        ),
        (
            "aten::_scaled_dot_product_cudnn_attention_backward",
            [
                *SDPA_BACKWARD,
                NONE,
                NONE,
                scalar(32),
                scalar(32),
                scalar("0."),
                scalar(False),
                NONE,
                NONE,
                NONE,
            ],  # torch 2.4's order
        ),
    ],
)
def test_attention_backward_is_twice_forward_and_executes_five_products(
    op: str, args: list[Arg]
) -> None:
    found = work(op, *args)
    assert found.flops == 2 * 524_288
    assert found.hardware_flops == 1_310_720  # torch.utils.flop_counter.sdpa_backward_flop_count
    elements = 2 * 4 * 32 * 16
    assert found.bytes == 2 * 8 * elements + 4 * 2 * 4 * 32


def test_efficient_attention_reads_its_mask_type() -> None:
    qkv = [tensor(8, 1024, 16, 64)] * 3
    full = 4 * 8 * 16 * 1024 * 1024 * 64
    for mask, flops in ((0, full), (1, full / 2), (2, full / 2)):
        new = work(
            "aten::_efficient_attention_forward",
            *qkv,
            *[NONE] * 5,
            scalar("0."),
            scalar(mask),
            scalar(True),
            NONE,
            NONE,
            NONE,
        )
        old = work(
            "aten::_efficient_attention_forward",
            *qkv,
            *[NONE] * 4,
            scalar("0."),
            scalar(mask),
            scalar(True),
            NONE,
            NONE,
            NONE,
        )
        assert new.flops == flops
        assert old.flops == flops


def varlen(tokens: int, count: int, longest: int) -> Work:
    lengths = tensor(count + 1, dtype="int")
    qkv = [bf16(tokens, 4, 16)] * 3
    maxima = (scalar(longest), scalar(longest))
    rest = (
        scalar("0."),
        scalar("0.25"),
        scalar(True),
        scalar(-1),
        scalar(-1),
        scalar("0."),
        NONE,
        scalar(False),
        NONE,
        NONE,
        NONE,
    )
    return work("flash_attn::_flash_attn_varlen_forward", *qkv, lengths, lengths, *maxima, *rest)


def test_packed_sequences_have_flops_only_where_their_lengths_follow() -> None:
    assert varlen(100, 1, 100).flops == 4 * 4 * 16 * 100 * 100 / 2
    assert varlen(100, 4, 25).flops == 4 * 4 * 4 * 16 * 25 * 25 / 2
    assert varlen(100, 4, 40).flops is None
    assert varlen(100, 4, 40).bytes == varlen(100, 4, 25).bytes


def test_attention_over_pages_has_no_work() -> None:
    args = (
        [bf16(2, 32, 4, 16)] * 3
        + [NONE] * 20
        + [scalar("0.25"), scalar(True), scalar(-1), scalar(-1), scalar(0), scalar("0.")]
    )
    assert work("flash_attn_3::fwd", *args).flops == 262_144
    args[14] = tensor(2, 4, dtype="int")
    assert work_of("flash_attn_3::fwd", recorded(*args)) is None


def test_flash_attn_packages_agree() -> None:
    lse = tensor(2, 4, 32)
    qkv, grads = [bf16(2, 32, 4, 16)] * 3, [bf16(2, 32, 4, 16)] * 2
    tail = (scalar("0."), scalar("0.25"), scalar(True), scalar(-1), scalar(-1))
    forward = work(
        "flash_attn::_flash_attn_forward", *qkv, *tail, scalar("0."), NONE, scalar(False)
    )
    backward = work(
        "flash_attn::_flash_attn_backward",
        grads[0],
        *qkv,
        grads[1],
        lse,
        *qkv,
        *tail,
        scalar("0."),
        NONE,
        scalar(False),
    )
    xformers = work(
        "xformers_flash::flash_bwd",
        scalar(True),
        grads[0],
        *qkv,
        grads[1],
        lse,
        NONE,
        NONE,
        scalar(32),
        scalar(32),
        *tail,
        NONE,
    )
    assert forward.flops == 262_144
    assert backward.flops == xformers.flops == 2 * 262_144
    assert backward.hardware_flops == 2.5 * 262_144
    assert backward.bytes == xformers.bytes


LENGTHS = st.integers(1, 24)
EDGES = st.integers(0, 30) | st.just(float("inf"))


@given(LENGTHS, LENGTHS, EDGES, EDGES, st.booleans())
def test_attended_pairs_is_the_area_of_the_band(
    length_q: int, length_k: int, left: float, right: float, bottom_right: bool
) -> None:
    shift = length_k - length_q if bottom_right else 0
    # Trapezoids over half steps: the edges bend at whole numbers alone, so this is exact.
    rows = [row / 2 for row in range(2 * length_q + 1)]
    widths = [
        min(max(row + shift + right, 0), length_k) - min(max(row + shift - left, 0), length_k)
        for row in rows
    ]
    area = sum((first + second) / 4 for first, second in pairwise(widths))
    assert attended_pairs(
        length_q, length_k, Band(left=left, right=right, bottom_right=bottom_right)
    ) == pytest.approx(area)


@given(LENGTHS)
def test_causal_square_is_exactly_half(length: int) -> None:
    for bottom_right in (False, True):
        band = Band(left=float("inf"), right=0.0, bottom_right=bottom_right)
        assert attended_pairs(length, length, band) == length * length / 2


# Recurrent layers


def cudnn_rnn(mode: int, *, layers: int = 1, both_ways: bool = False, projection: int = 0) -> Work:
    numbers = map(scalar, (mode, 20, projection, layers, False, "0.", True, both_ways))
    return work(
        "aten::_cudnn_rnn",
        tensor(7, 3, 10),
        tensors((80, 10)),
        scalar(4),
        NONE,
        tensor(1, 3, 20),
        NONE,
        *numbers,
        scalars(),
        NONE,
    )


def test_recurrent_layers_agree_with_the_flop_counter() -> None:
    # (counter), with torch.nn.LSTM and GRU taken apart into linear layers.
    assert cudnn_rnn(2).flops == 100_800
    assert cudnn_rnn(2, layers=2, both_ways=True).flops == 604_800
    assert cudnn_rnn(2, projection=5).flops == 54_600
    assert cudnn_rnn(3).flops == 75_600
    assert cudnn_rnn(2).is_matrix


# A whole step


def test_lab_step_has_the_flops_of_the_transformer_formula() -> None:
    """One step of lab/single/fp32_no_tf32.slow: 6P + 12*L*d*s per token, the second term halved
    (causal), logits in P."""
    tokens, width, layers, vocabulary, length = 8192, 1024, 12, 32000, 1024
    # (times in a step, left, right), as recorded; addmm's operands are counted as mm's.
    products = [
        (24, (8192, 1024), (1024, 1024)),
        (12, (8192, 1024), (1024, 3072)),
        (12, (8192, 1024), (1024, 4096)),
        (12, (8192, 4096), (4096, 1024)),
        (12, (8192, 1024), (1024, 4096)),
        (12, (1024, 8192), (8192, 4096)),
        (12, (8192, 4096), (4096, 1024)),
        (12, (4096, 8192), (8192, 1024)),
        (12, (1024, 8192), (8192, 1024)),
        (12, (3072, 8192), (8192, 1024)),
        (12, (8192, 3072), (3072, 1024)),
        (1, (8192, 1024), (1024, 32000)),
        (1, (32000, 8192), (8192, 1024)),
        (1, (8192, 32000), (32000, 1024)),
    ]
    total = sum(
        times * (work("aten::mm", tensor(*left), tensor(*right)).flops or 0)
        for times, left, right in products
    )
    qkv = [tensor(8, 1024, 16, 64)] * 3
    forward = work(
        "aten::_efficient_attention_forward",
        *qkv,
        *[NONE] * 5,
        scalar("0."),
        scalar(1),
        scalar(True),
        NONE,
        NONE,
        NONE,
    )
    backward = work(
        "aten::_efficient_attention_backward",
        *(
            qkv[0],
            *qkv,
            NONE,
            qkv[0],
            NONE,
            NONE,
            scalar(16),
            scalar(16),
            tensor(8, 16, 1024),
            scalar("0."),
        ),
        *(
            tensor(dtype="long int"),
            tensor(dtype="long int"),
            scalar(1),
            scalar(False),
            NONE,
            NONE,
            NONE,
            scalar(False),
        ),
    )
    total += layers * ((forward.flops or 0) + (backward.flops or 0))
    parameters = 12 * layers * width * width + vocabulary * width
    assert total == tokens * (6 * parameters + 12 * layers * width * length / 2)


def test_matrix_kinds_are_what_mfu_counts() -> None:
    assert work("aten::mm", tensor(2, 2), tensor(2, 2)).is_matrix
    assert not work("aten::add", tensor(2, 2), tensor(2, 2)).is_matrix
