"""Numbers and names as the terminal shows them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from stepscope.core.numbers import number_ranges
from stepscope.report.words import (
    NBSP,
    clean,
    first_clauses,
    in_column,
    kernel_name,
    ms,
    op_name,
    per_step,
    percent,
    short_time,
    shorten,
)
from tests.scenarios import ELEMENTWISE, EVIL_NAMES


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (100, "<0.001 ms"),
        (4_000, "0.004 ms"),
        (120_000, "0.12 ms"),
        (4_630_000, "4.63 ms"),
        (9_996_000, "10.0 ms"),
        (46_300_000, "46.3 ms"),
        (99_960_000, "100 ms"),
        (1_234_400_000, "1 234 ms"),
    ],
)
def test_ms_has_sensible_digits(ns: int, text: str) -> None:
    assert ms(ns).replace(NBSP, " ") == text


def test_small_numbers_are_not_nothing() -> None:
    assert percent(0.0001).replace(NBSP, " ") == "<0.1 %"
    assert percent(0) == f"0{NBSP}%"
    assert in_column(0.02, 1) == "<0.1"
    assert in_column(0.2, 0) == "<1"
    assert in_column(0.0, 1) == "0.0"
    assert per_step(1, 300) == "<0.1"


def test_per_step_is_whole_where_it_is_one() -> None:
    assert (per_step(36, 3), per_step(10, 4), per_step(1000, 3)) == ("12", "2.5", "333")


def test_short_time_uses_microseconds() -> None:
    assert short_time(5_200).replace(NBSP, " ") == "5.20 us"
    assert short_time(33_000_000).replace(NBSP, " ") == "33.0 ms"


def test_number_ranges_fold_runs() -> None:
    assert number_ranges([7, 0, 1, 2, 5]) == "0-2, 5, 7"
    assert number_ranges([]) == ""


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (ELEMENTWISE, "vectorized_elementwise_kernel<4, ...>"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::...>(...)",
            "vectorized_elementwise_kernel<4, ...>",
        ),
        (
            "void (anonymous namespace)::softmax_forward<c10::BFloat16, float, 10>(float*)",
            "softmax_forward<BFloat16, float, 10>",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64>(cutlass_80::Params)",
            "Kernel2<cutlass_80_simt_sgemm_64x64>",
        ),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, 7>(X<int>)",
            "kernel<int, 7>",
        ),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT", "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT"),
        ("void ck::kernel_gemm<1>(int) [clone .kd]", "kernel_gemm<1>"),
        ("<", "<"),
        ("", ""),
    ],
)
def test_kernel_name_loses_template_noise(name: str, short: str) -> None:
    assert kernel_name(name) == short


def test_op_name_loses_common_prefixes() -> None:
    assert op_name("aten::mm") == "mm"
    assert op_name("autograd::engine::evaluate_function: AddmmBackward0") == "AddmmBackward0"
    assert op_name("c10d::allreduce_") == "c10d::allreduce_"


def test_a_text_that_is_cut_ends_with_a_clause() -> None:
    loader = "DataLoader(num_workers=1, persistent_workers=True); at least 1, at most the cores"
    assert first_clauses(loader, 70) == "DataLoader(num_workers=1, persistent_workers=True) ..."
    aside = "Rerun with --stacks to see which line it is (Python, logging, a file, a collector)"
    assert first_clauses(aside, 70) == "Rerun with --stacks to see which line it is ..."


def test_shorten_gives_up_template_arguments_first() -> None:
    name = "vectorized_elementwise_kernel<4, ...>"
    assert shorten(name, 40) == name
    assert shorten(name, 35) == "vectorized_elementwise_kernel<...>"
    assert shorten(name, 30) == "vectorized_elementwise_kernel"
    assert shorten(name, 20) == "vectorized_...kernel"
    assert shorten("Kernel2<cutlass_80_simt_sgemm_64x64>", 20) == "Kernel2<cut...64x64>"


@pytest.mark.parametrize("name", EVIL_NAMES)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_clean_leaves_nothing_to_obey(name: str, ascii_only: bool) -> None:
    text = clean(name, ascii_only=ascii_only)
    assert text.isprintable()
    assert text.isascii() or not ascii_only
    text.encode()
    assert clean(text, ascii_only=ascii_only) == text


@given(st.text(st.characters(codec=None)), st.integers(1, 60))
def test_any_name_becomes_printable_and_fits(name: str, width: int) -> None:
    text = clean(name)
    text.replace(NBSP, " ").encode()
    assert text.replace(NBSP, " ").isprintable()
    assert cell_len(shorten(text, width)) <= width


@given(st.text(alphabet="ab:<>(){}[], ->*\x1b"))
def test_kernel_name_takes_any_text(name: str) -> None:
    assert len(kernel_name(name)) <= len(name) + 8
