"""A recorded run on another device: kernels scale by what bounds them."""

from __future__ import annotations

import pytest

from stepscope.core.facts import KernelRow
from stepscope.errors import UsageError
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.other_device import on_device, ratio_of

H200, B200, H100 = (parse_cluster(f"1x{word}") for word in ("H200", "B200", "H100"))


def kernel(
    category: str = "gemm", flops: float | None = 1e12, size: float | None = 1e9
) -> KernelRow:
    return KernelRow(
        name="k", category=category, op="aten::mm", count=1, total_ns=1_000_000, tensor_core=True,
        precision="bf16", flops=flops, bytes=size, floor_ns=None,
    )  # fmt: skip


def test_what_arithmetic_bounds_goes_with_it_and_the_rest_with_memory() -> None:
    memory = H200.bandwidth_bytes_per_s / H100.bandwidth_bytes_per_s
    # One generation: the same products, another memory.
    assert ratio_of(kernel(flops=1e15), H200, H100) == pytest.approx(1, abs=0.02)
    assert ratio_of(kernel(flops=1e6), H200, H100) == pytest.approx(memory, rel=0.02)
    assert ratio_of(kernel("norm", None, None), H200, H100) == pytest.approx(memory)
    middle = ratio_of(kernel(flops=2e11), H200, H100)
    assert 1 < middle < memory
    assert ratio_of(kernel(), H200, B200) < 1


@pytest.mark.parametrize("flops", [1e6, 1e10, 2e11, 1e13, None])
def test_there_and_back_is_where_it_was(flops: float | None) -> None:
    there, back = (
        ratio_of(kernel(flops=flops), H200, H100),
        ratio_of(kernel(flops=flops), H100, H200),
    )
    assert there * back == pytest.approx(1, rel=0.1)
    assert ratio_of(kernel(flops=flops), H200, H200) == 1.0


def test_a_run_is_its_kernels_and_says_what_is_known_of_them() -> None:
    rows = [kernel(flops=1e15), kernel("norm", None, None), kernel("copy", None, None)]
    told = on_device(rows, "NVIDIA H200", "H100")
    memory = H200.bandwidth_bytes_per_s / H100.bandwidth_bytes_per_s
    assert told.device == "NVIDIA H100 SXM"
    assert told.share_known == 0.5
    assert told.ratio == pytest.approx((1 + memory) / 2, rel=0.01)
    with pytest.raises(UsageError, match="does not name its device"):
        on_device(rows, None, "H100")
    with pytest.raises(UsageError, match="no kernel"):
        on_device([], "NVIDIA H200", "H100")
