"""Work of two runs is paired by what it is, and none of it is lost or counted twice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepscope.experiments.compare.differences import account, device_accounts, device_change
from stepscope.experiments.compare.pairing import pair
from stepscope.experiments.compare.pieces import (
    Detail,
    Pieces,
    Share,
    WorkKey,
    join,
    plain_name,
    shapes_words,
)

Call = tuple[str, str, float]
"""`phase op[shapes]`, the kernel, nanoseconds."""


def sort_of(words: str, kernel: str) -> WorkKey:
    phase, _, rest = words.partition(" ")
    op, _, shapes = rest.partition("[")
    return WorkKey(
        phase=None if phase == "-" else phase,
        op=op or None,
        kernel=None if op else kernel,
        home=None,
        shapes=shapes.rstrip("]") or None,
        module=None,
    )


def pieces(
    calls: Sequence[Call], *, precision: str | None = None, busy: float | None = None
) -> Pieces:
    sorts: dict[WorkKey, int] = {}
    shares: list[Share] = []
    details: list[dict[str, Detail]] = []
    order = []
    for words, kernel, ns in calls:
        code = sorts.setdefault(sort_of(words, kernel), len(sorts))
        if code == len(shares):
            shares.append(Share())
            details.append({})
        shares[code].add(Share(count=1, ns=ns))
        made = details[code].setdefault(
            kernel, Detail(category="gemm", precision=precision, share=Share())
        )
        made.share.add(Share(count=1, ns=ns))
        order.append((code, ns))
    total = sum(ns for _, _, ns in calls)
    return Pieces(
        where="device",
        sorts=tuple(sorts),
        details=tuple(details),
        calls=tuple(order),
        each=1.0,
        shares=tuple(shares),
        busy_ns=total if busy is None else busy,
        ranks=(0,),
    )


def changes(before: Pieces, after: Pieces) -> dict[str, tuple[tuple[str, ...], str, int, int]]:
    device, differing = device_change(before, after)
    device.self_check(differing)
    return {
        changed.name: (changed.how, changed.paired_by, changed.before_ns, changed.after_ns)
        for changed in differing
    }


def test_a_product_with_another_kernel_and_precision_is_the_same_product() -> None:
    before = pieces([("forward aten::mm[8x3, 3x4]", "sgemm_fp32", 900)], precision="fp32")
    after = pieces([("forward aten::mm[8x3, 3x4]", "nvjet_bf16", 100)], precision="bf16")
    assert changes(before, after) == {"aten::mm": (("precision", "kernels"), "name", 900, 100)}


def test_pointwise_work_between_the_same_products_was_replaced_by_the_fused_kernel_there() -> None:
    eager = [
        ("forward aten::mul[8]", "mul", 50),
        ("forward aten::add[8]", "add", 30),
        ("forward aten::relu[8]", "relu", 20),
    ]
    first, last = ("forward aten::mm[1]", "gemm", 500.0), ("forward aten::mm[2]", "gemm", 600.0)
    before = pieces([first, *eager, last, first, *eager, last])
    fused = ("forward triton_poi_fused_add_mul_relu[]", "triton_poi_fused_add_mul_relu", 25.0)
    after = pieces([first, fused, last, first, fused, last])
    assert changes(before, after) == {
        "aten::mul, aten::add, aten::relu -> triton_poi_fused_add_mul_relu": (
            ("replaced",),
            "place",
            200,
            50,
        )
    }


def test_an_optimizer_that_loops_is_paired_with_one_that_is_fused() -> None:
    loop = [
        (f"optimizer aten::{name}[{size}]", name, 10.0)
        for size in range(40)
        for name in ("mul_", "addcmul_", "addcdiv_")
    ]
    before = pieces([("backward aten::mm[9]", "gemm", 100), *loop])
    after = pieces(
        [
            ("backward aten::mm[9]", "gemm", 100),
            ("optimizer aten::_fused_adamw_[]", "multi_tensor_apply", 200),
        ]
    )
    (how, _, before_ns, after_ns) = next(iter(changes(before, after).values()))
    assert (how, before_ns, after_ns) == (("replaced",), 1200, 200)


def test_work_that_came_and_went_without_a_partner_stays_alone() -> None:
    anchor = ("forward aten::mm[1]", "gemm", 500.0)
    before = pieces([anchor, ("forward aten::_local_scalar_dense[]", "Memcpy DtoH", 5.0), anchor])
    after = pieces([anchor, anchor, ("backward aten::cumsum[7]", "scan", 9.0)])
    assert changes(before, after) == {
        "aten::_local_scalar_dense": (("went",), "none", 5, 0),
        "aten::cumsum": (("came",), "none", 0, 9),
    }


def test_the_same_work_in_fewer_calls_is_a_count_and_no_replacement() -> None:
    """Eight micro-batches become one: everything but the optimizer has another shape and number."""
    step = ("optimizer aten::_fused_adamw_[]", "adam", 70.0)
    micro = [("forward aten::mm[1x4]", "gemm_s", 10.0), ("forward aten::gelu[1x4]", "gelu", 2.0)]
    whole = [("forward aten::mm[8x4]", "gemm_l", 30.0), ("forward aten::gelu[8x4]", "gelu", 9.0)]
    rows = changes(pieces([*micro * 8, step]), pieces([*whole, step]))
    assert rows["aten::mm"] == (("shape", "count", "kernels"), "operator", 80, 30)
    assert rows["aten::gelu"] == (("shape", "count"), "operator", 16, 9)


def test_kernels_of_a_graph_are_paired_with_the_operators_that_launched_them_before() -> None:
    before = pieces([("forward aten::mm[4]", "gemm", 50), ("backward aten::mm[5]", "gemm_t", 60)])
    after = pieces([("- ", "gemm", 55), ("- ", "gemm_t", 61)])
    _, differing = device_change(before, after)
    assert {
        (changed.name, changed.phase, changed.how, changed.before_ns, changed.after_ns)
        for changed in differing
    } == {
        ("aten::mm", "forward", ("launcher",), 50, 55),
        ("aten::mm", "backward", ("launcher",), 60, 61),
    }


def test_work_of_a_graph_is_counted_in_kernels_on_both_sides() -> None:
    # One call of the operator ran two kernels; the graph has them without it.
    split = pieces([("forward aten::mm[4]", "gemm", 50), ("forward aten::mm[4]", "splitk", 5)])
    before = replace(split, shares=(Share(count=1, ns=55),), calls=((0, 55),))
    _, (changed,) = device_change(before, pieces([("- ", "gemm", 50), ("- ", "splitk", 5)]))
    assert changed.how == ("launcher",)
    assert changed.before is not None
    assert changed.after is not None
    assert (changed.before.count, changed.after.count) == (2, 2)


def test_two_models_with_one_optimizer_are_not_paired_as_a_replacement() -> None:
    step = ("optimizer aten::_fused_adamw_[]", "adam", 70.0)
    before = pieces(
        [
            ("forward aten::cudnn_convolution[1]", "conv", 900),
            ("forward aten::native_batch_norm[1]", "bn", 100),
            step,
        ]
    )
    after = pieces(
        [("forward aten::mm[2]", "gemm", 500), ("forward aten::gelu[2]", "gelu", 50), step]
    )
    assert {how for how, *_ in changes(before, after).values()} == {("went",), ("came",)}


def test_a_whole_phase_that_was_compiled_is_a_replacement() -> None:
    eager = [(f"forward aten::{name}[8]", name, 50.0) for name in ("mul", "tanh", "exp")]
    fused = [("forward triton_poi_fused_exp_mul_tanh[]", "triton_poi_fused_exp_mul_tanh", 20.0)]
    end = ("backward aten::mm[9]", "gemm", 100.0)
    assert list(changes(pieces([*eager, end]), pieces([*fused, end])).values()) == [
        (("replaced",), "place", 150, 20)
    ]


def test_a_batch_that_grew_pairs_each_product_with_its_own() -> None:
    before = pieces(
        [("forward aten::mm[8x3]", "gemm", 10), ("forward aten::mm[8x5]", "gemm", 1000)]
    )
    after = pieces(
        [("forward aten::mm[16x3]", "gemm", 20), ("forward aten::mm[16x5]", "gemm", 2000)]
    )
    sides = {(round(paired.before_ns), round(paired.after_ns)) for paired in pair(before, after)}
    assert sides == {(10, 20), (1000, 2000)}


def test_numbers_that_a_compiler_gives_are_left_out_and_others_are_kept() -> None:
    assert plain_name("triton_poi_fused_add_mul_12") == "triton_poi_fused_add_mul"
    assert plain_name("Torch-Compiled Region: 3/0") == "Torch-Compiled Region"
    assert (
        plain_name("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT_2")
        == "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT_2"
    )
    assert plain_name("aten::mm_2") == "aten::mm_2"


def test_shapes_are_words_and_nonsense_is_none() -> None:
    assert shapes_words("[[8, 3], [3, 4], []]") == "8x3, 3x4"
    assert shapes_words("[[[2, 2], [3]], []]") == "[2x2, 3]"
    assert shapes_words("[[], []]") is None
    assert shapes_words("{not json") is None
    assert shapes_words("5") is None


NAMES = st.sampled_from(
    [
        f"{phase} aten::{op}[{shape}]"
        for phase in ("forward", "-")
        for op in "ab"
        for shape in ("1", "2", "")
    ]
)
CALLS = st.lists(
    st.tuples(
        NAMES | st.just("- "), st.sampled_from(["k1", "k2", "triton_x_1"]), st.integers(0, 10**6)
    ),
    max_size=30,
)


@given(first=CALLS, second=CALLS, busy=st.integers(0, 10**7))
def test_every_nanosecond_is_in_exactly_one_pair_and_accounts_sum(
    first: list[tuple[str, str, int]], second: list[tuple[str, str, int]], busy: int
) -> None:
    before, after = pieces(first, busy=busy), pieces(second)
    made = pair(before, after)
    assert math.isclose(
        sum(paired.before_ns for paired in made), sum(ns for _, _, ns in first), abs_tol=1e-3
    )
    assert math.isclose(
        sum(paired.after_ns for paired in made), sum(ns for _, _, ns in second), abs_tol=1e-3
    )
    for calls, side in ((first, "before"), (second, "after")):
        counted = sum(share.count for paired in made for share in getattr(paired, side).values())
        assert math.isclose(counted, len(calls), abs_tol=1e-6)
    change, differing = device_change(before, after)
    change.self_check(differing)
    assert change.before_ns == busy
    for by, rows in device_accounts(before, after).items():
        rows.self_check(by)
        assert (rows.before_ns, rows.after_ns) == (busy, round(after.busy_ns))


def test_an_account_keeps_the_largest_changes_and_its_rest_has_the_others() -> None:
    before = {f"row{i}": float(i) for i in range(100)}
    made = account(before, {})
    made.self_check("kernel")
    assert made.rows[0].name == "row99"
    assert made.num_left_out == 60
    assert made.rest.before_ns == sum(range(60))
    assert made.rows[0].after_ns is None


def test_modules_are_compared_only_where_both_runs_tell_them() -> None:
    plain = pieces([("forward aten::mm[1]", "gemm", 50)])
    named = replace(plain, sorts=tuple(replace(sort, module="layers.0") for sort in plain.sorts))
    assert list(device_accounts(named, plain)) == ["phase", "category", "kernel"]
    assert list(device_accounts(named, named)) == [
        "phase",
        "category",
        "kernel",
        "module",
    ]


def test_the_mean_over_ranks_is_a_mean() -> None:
    first, second = (
        pieces([("forward aten::mm[1]", "gemm", 100)]),
        pieces([("forward aten::mm[1]", "gemm", 300)]),
    )
    both = join([first, second])
    assert both is not None
    assert [(share.count, share.ns) for share in both.shares] == [(1.0, 200.0)]
    assert both.busy_ns == 200


@pytest.mark.parametrize("part", [" ", ":", "_1", " 1/", "x"])
def test_a_name_that_repeats_what_a_compiler_adds_is_soon_plain(part: str) -> None:
    name = "## Call CompiledFxGraph" + part * 50_000 + "!"
    assert plain_name(name) == name
