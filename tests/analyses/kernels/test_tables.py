from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import build_context
from stepscope.core.facts import RankFacts
from stepscope.core.kernel_names import category_of, rounds_to_tf32, uses_tensor_cores
from stepscope.hardware.lookup import find_spec_by_key
from tests.tracing import Event, call, inputs, kernel, mark, op, trace_of


@pytest.mark.parametrize(
    ("name", "category", "tensor_core"),
    [
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "gemm", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(...)", "gemm", False),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_execute_kernel__5x_cublas",
            "gemm",
            False,
        ),
        ("cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1", "gemm", True),
        (
            "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1_SN_LDSB1",
            "gemm",
            True,
        ),
        ("volta_sgemm_64x64_nt", "gemm", False),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26", "attention", True),
        ("fmha_cutlassB_f32_aligned_64x64_k64_sm80(...)", "attention", None),
        (
            "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
            "convolution",
            True,
        ),
        ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", "convolution", False),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16>", "layout", None),
        ("void at::native::batch_norm_backward_kernel<c10::BFloat16>", "norm", None),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8>", "softmax", None),
        ("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float>>", "reduction", None),
        ("triton_poi_fused_gelu_view_8", "pointwise", None),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<2048ul>)",
            "collective",
            None,
        ),
        (
            (
                "void at::native::elementwise_kernel<128, "
                "at::native::gpu_kernel_impl_nocast<MulFunctor<float>>>"
            ),
            "pointwise",
            None,
        ),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(x)>",
            "copy",
            None,
        ),
        (
            "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, fbgemm_gpu::Foo>",
            "embedding",
            None,
        ),
        (
            (
                "std::enable_if<vllm::_typeConvert<x>::exists, void>::type "
                "vllm::fused_add_rms_norm_kernel<8>"
            ),
            "norm",
            None,
        ),
        ("SubTensorOpWithCastTensor1d", "pointwise", None),
        (
            "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x128x32_wt32x32x8_ws1x1_wr2x1_ta1x8x1x1",
            "convolution",
            True,
        ),
        ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3", "gemm", None),
        ("something_nobody_has_seen", "other", None),
    ],
)
def test_a_kernels_name_tells_its_category_and_its_unit(
    name: str, category: str, tensor_core: bool | None
) -> None:
    assert category_of(name) == category
    if category != "collective":
        assert uses_tensor_cores(name) is tensor_core


def test_tf32_is_nvidias_way_with_floats_not_amds() -> None:
    assert rounds_to_tf32("cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1")
    assert not rounds_to_tf32("cutlass_80_simt_sgemm_128x256_8x4_nt_align1")
    assert not rounds_to_tf32("Cijk_Alik_Bljk_S_MT256x128x64_MI16x16x1_SN")


def two_matmul_steps(
    *,
    kernel_name: str = "nvjet_sm90_tst_128x256",
    types: str = '["c10::BFloat16", "c10::BFloat16"]',
) -> list[Event]:
    """Two steps 1 ms apart, each one 2048^3 matmul with a helper kernel."""
    events: list[Event] = []
    for i in range(3):
        at = i * 1_000_000
        events += [
            mark(f"ProfilerStep#{i}", at, at + 900_000),
            op(
                "aten::mm",
                at + 1000,
                at + 9000,
                detail=inputs("[[2048, 2048], [2048, 2048]]", types),
            ),
            call("cudaLaunchKernel", at + 2000, at + 3000, 2 * i + 1),
            call("cudaLaunchKernel", at + 4000, at + 5000, 2 * i + 2),
            kernel(kernel_name, at + 10_000, at + 410_000, 2 * i + 1),
            kernel("splitKreduce_kernel", at + 410_000, at + 420_000, 2 * i + 2),
        ]
    return events


def measured(*events: Event, spec: str | None = "h100-sxm") -> RankFacts:
    facts = measure_rank(
        build_context(trace_of(*events), None if spec is None else find_spec_by_key(spec)), 0
    )
    facts.self_check()
    return facts


def test_mfu_is_model_flops_over_step_time_and_dense_peak() -> None:
    roofline = measured(*two_matmul_steps()).roofline
    assert roofline.model_flops == 2 * 2048**3
    assert roofline.mfu == pytest.approx(2 * 2048**3 / (1e-3 * 989.4e12), rel=1e-3)
    assert roofline.hfu == roofline.mfu
    assert roofline.peak_precision == "bf16"
    assert roofline.tensor_core_share == 1.0


def test_an_operators_work_goes_to_its_longest_kernel_once() -> None:
    rows = {row.name: row for row in measured(*two_matmul_steps()).kernels}
    main, helper = rows["nvjet_sm90_tst_128x256"], rows["splitKreduce_kernel"]
    assert main.flops == 2 * (2 * 2048**3)
    assert helper.flops is None
    assert main.floor_ns == pytest.approx(2 * 2 * 2048**3 / 989.4e12 * 1e9, rel=1e-3)


def test_float_matmuls_count_against_the_peak_of_the_unit_they_ran_on() -> None:
    floats = '["float", "float"]'
    tf32 = measured(
        *two_matmul_steps(kernel_name="cutlass_80_tensorop_s1688gemm_128x64", types=floats)
    ).roofline
    plain = measured(*two_matmul_steps(kernel_name="ampere_sgemm_128x64_nn", types=floats)).roofline
    assert (tf32.peak_precision, plain.peak_precision) == ("tf32", "fp32")
    assert plain.tensor_core_share == 0.0
    assert tf32.mfu is not None
    assert plain.mfu is not None
    assert plain.mfu > tf32.mfu


def test_an_unknown_device_has_work_but_no_roofs() -> None:
    roofline = measured(*two_matmul_steps(), spec=None).roofline
    assert roofline.model_flops == 2 * 2048**3
    assert roofline.mfu is None
    assert roofline.bandwidth_bound_ns is None


def test_a_part_of_the_flops_does_not_pass_for_all_of_them() -> None:
    unknown = [
        e
        for i in range(3)
        for e in (
            call("cudaLaunchKernel", i * 1_000_000 + 20_000, i * 1_000_000 + 21_000, 100 + i),
            kernel(
                "cublas_mystery_gemm", i * 1_000_000 + 420_000, i * 1_000_000 + 900_000, 100 + i
            ),
        )
    ]
    roofline = measured(*two_matmul_steps(), *unknown).roofline
    assert roofline.model_flops is None
    assert roofline.mfu is None


def test_categories_sum_to_all_kernel_time() -> None:
    facts = measured(*two_matmul_steps())
    assert sum(row.total_ns for row in facts.categories) == 2 * 410_000
    assert np.isclose(sum(row.count for row in facts.categories), 4)
