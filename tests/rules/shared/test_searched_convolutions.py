"""A trace's convolutions beside MIOpen's find-db: which entry each is, which solver it ran, and
what the fastest would give.

Kernels are named as in ROCm/MIOpen's src/solver/conv; operators and their arguments as PyTorch
records them on ROCm."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from stepscope.cli.main import main
from stepscope.core.recordings.find_db import FindDb, Searched, SearchedConvolutions, together_of
from stepscope.readers.rocm.miopen_keys import problem_of, solvers_of
from stepscope.rules.case import Case
from stepscope.rules.compute import untuned_convolution
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.shared.searched_convolutions import ConvolutionLookup, look_up
from tests.builders import event, kernel
from tests.miopen_files import GEMM, IGEMM, LAST_KEY, NAIVE, PLAIN_KEY, line, solver
from tests.rules.judging import finding_of
from tests.rules.steps import Launch, case_of_steps, launch
from tests.shared_data import ROOT
from tests.wording import mentions

VALIDATOR = Draft202012Validator(json.loads((ROOT / "docs" / "diagnosis.schema.json").read_text()))
DIMS = [[64, 256, 28, 28], [256, 256, 3, 3]]
PLAIN = [[200704, 784, 28, 1], [2304, 9, 3, 1]]
LAST = [[200704, 1, 7168, 256], [2304, 1, 768, 256]]
NAIVE_KERNEL = "naive_conv_ab_nonpacked_fwd_nchw_ushort_double_ushort"
GEMM_KERNEL = "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1"
WINOGRAD_KERNEL = "miopenSp3AsmConv_v21_1_3_gfx9_fp16_dot2_edc_f2x3_stride1"


def searched(*lines: str) -> SearchedConvolutions:
    entries = []
    for text in lines:
        key, _, values = text.strip().partition("=")
        problem = problem_of(key)
        assert problem is not None
        entries.append(Searched(problem=problem, solvers=solvers_of(values)[0]))
    whole = together_of([FindDb(path="my.ufdb.txt", searched=tuple(entries))])
    assert whole is not None
    return whole


def forward(
    name: str,
    us: float,
    *,
    strides: list[list[int]] = PLAIN,
    benchmark: bool = False,
    fixed: bool = False,
) -> Launch:
    concrete = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", str(benchmark), str(fixed)]
    return launch(
        "aten::miopen_convolution",
        name,
        us,
        json.dumps([*DIMS, *[[]] * 7]),
        json.dumps(["c10::BFloat16", "c10::BFloat16", "", *["ScalarList"] * 3, *["Scalar"] * 3]),
        strides=json.dumps([*strides, *[[]] * 7]),
        concrete=json.dumps(concrete),
    )


def backward(name: str, us: float, mask: str = "[True, True, False]") -> Launch:
    concrete = ["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask]
    return launch(
        "aten::convolution_backward",
        name,
        us,
        json.dumps([DIMS[0], *DIMS, *[[]] * 8]),
        json.dumps(
            [*["c10::BFloat16"] * 3, *["ScalarList"] * 4, "Scalar", "ScalarList", "Scalar", ""]
        ),
        strides=json.dumps([PLAIN[0], *PLAIN, *[[]] * 8]),
        concrete=json.dumps(concrete),
    )


def case_with(known: SearchedConvolutions, *launches: Launch) -> Case:
    return replace(case_of_steps(*launches), searched=known)


def looked_up(known: SearchedConvolutions, *launches: Launch) -> ConvolutionLookup:
    case = case_with(known, *launches)
    found = look_up(case.graph, case.table, known)
    assert found is not None
    return found


def test_a_slower_solver_than_the_fastest_is_a_finding_with_a_derived_gain() -> None:
    best = solver("ConvAsmImplicitGemmGTCDynamicFwdXdlopsNHWC", 0.1, 2_000_000, "ImplicitGEMM")
    case = case_with(
        searched(line(PLAIN_KEY, best, GEMM, NAIVE)), *[forward(GEMM_KERNEL, 400.0)] * 6
    )
    proposal = untuned_convolution.propose(case)
    assert isinstance(proposal, Proposal)
    assert mentions(proposal.summary, "2.4 ms", "slower solvers", "find-db", "derived")
    assert mentions(
        proposal.evidence[0],
        "3x3, 256 -> 256 channels, 28x28, batch 64, BF16, NCHW, forward",
        "2.40 ms a step by GemmFwdRest (0.400 ms a call, 0.400 in the find-db)",
        "ConvAsmImplicitGemmGTCDynamicFwdXdlopsNHWC takes 0.100",
        "2.0 MB of workspace",
        "1/4.0",
    )
    assert proposal.evidence[1].startswith("derived from my.ufdb.txt")
    assert mentions(proposal.action, "torch.backends.cudnn.benchmark = True", "this find-db")
    finding = finding_of(case, proposal)
    assert finding.predicted_low <= 1.0
    assert finding.predicted_speedup == pytest.approx(4.0, rel=0.05)


def test_the_fastest_solver_is_no_finding() -> None:
    known = searched(line(PLAIN_KEY, NAIVE.replace("4.0", "0.41"), GEMM))
    assert (
        untuned_convolution.propose(case_with(known, *[forward(NAIVE_KERNEL, 400.0)] * 6)) is None
    ), "nearly as fast"
    assert untuned_convolution.propose(case_with(known, *[forward(GEMM_KERNEL, 400.0)] * 6)) is None


def test_times_of_another_device_promise_nothing() -> None:
    remark = untuned_convolution.propose(
        case_with(searched(line(PLAIN_KEY, IGEMM, GEMM)), *[forward(GEMM_KERNEL, 4000.0)] * 6)
    )
    assert isinstance(remark, Remark)
    assert mentions(remark.text, "1 convolutions", "4 times", "find-db")


def test_deterministic_algorithms_promise_nothing() -> None:
    launches = [forward(GEMM_KERNEL, 400.0, fixed=True)] * 6
    remark = untuned_convolution.propose(
        case_with(searched(line(PLAIN_KEY, IGEMM, GEMM)), *launches)
    )
    assert isinstance(remark, Remark)
    assert mentions(remark.text, "deterministic")


def test_what_is_not_in_the_find_db_is_a_remark() -> None:
    other = PLAIN_KEY.replace("-64-1x1", "-32-1x1")
    remark = untuned_convolution.propose(
        case_with(searched(line(other, IGEMM)), *[forward(GEMM_KERNEL, 400.0)] * 6)
    )
    assert isinstance(remark, Remark)
    assert mentions(remark.text, "1 of 1 convolutions", "not in the find-db")
    assert mentions(remark.text, "3x3, 256 -> 256 channels, 28x28, batch 64")
    assert mentions(remark.text, "2.4 ms a step")
    assert "benchmark = True" in remark.text


def test_a_layout_that_may_be_either_is_not_judged() -> None:
    both = searched(line(PLAIN_KEY, IGEMM, GEMM), line(LAST_KEY, IGEMM, GEMM))
    assert [
        one.searched.problem.layout for one in looked_up(both, forward(GEMM_KERNEL, 400.0)).used
    ] == ["NCHW"]
    unsure = looked_up(both, forward(GEMM_KERNEL, 400.0, strides=LAST))
    assert (len(unsure.used), len(unsure.unsure)) == (0, 1)
    remark = untuned_convolution.propose(
        case_with(both, *[forward(GEMM_KERNEL, 400.0, strides=LAST)] * 6)
    )
    assert isinstance(remark, Remark)
    assert mentions(remark.text, "1 of 1", "several")
    one = looked_up(
        searched(line(LAST_KEY, IGEMM, GEMM)), forward(GEMM_KERNEL, 400.0, strides=LAST)
    )
    assert [used.solver.name for used in one.used] == ["GemmFwdRest"]


def test_a_kernel_of_two_listed_solvers_is_not_judged() -> None:
    twins = [
        solver("ConvBinWinogradRxSf2x3", 0.3, 0, "Winograd"),
        solver("ConvBinWinogradRxSf2x3g1", 0.2, 0, "Winograd"),
    ]
    unsure = looked_up(searched(line(PLAIN_KEY, IGEMM, *twins)), forward(WINOGRAD_KERNEL, 400.0))
    assert (len(unsure.used), len(unsure.unsure)) == (0, 1)
    sure = looked_up(searched(line(PLAIN_KEY, IGEMM, twins[0])), forward(WINOGRAD_KERNEL, 400.0))
    assert [used.solver.name for used in sure.used] == ["ConvBinWinogradRxSf2x3"]


def test_the_gradients_are_told_apart_by_their_kernels() -> None:
    data = line(
        PLAIN_KEY[:-1] + "B",
        solver("ConvDirectNaiveConvBwd", 4.0, 0, "Direct", "B"),
        solver("GemmBwdRest", 0.5, 1, "GEMM", "B"),
    )
    weights = line(
        PLAIN_KEY[:-1] + "W",
        solver("ConvDirectNaiveConvWrw", 3.0, 0, "Direct", "W"),
        solver("GemmWrwUniversal", 1.5, 1, "GEMM", "W"),
    )
    known = searched(line(PLAIN_KEY, GEMM), data, weights)
    first = forward(GEMM_KERNEL, 400.0)
    found = looked_up(
        known,
        first,
        backward(
            "naive_conv_ab_nonpacked_wrw_nchw_ushort_double_ushort", 3000.0, "[False, True, False]"
        ),
    )
    assert [
        (used.searched.problem.direction, used.solver.name, round(used.slower, 1))
        for used in found.used
    ] == [
        ("W", "ConvDirectNaiveConvWrw", 2.0),
        ("F", "GemmFwdRest", 1.0),
    ]
    both = looked_up(known, first, backward(GEMM_KERNEL, 900.0))
    assert {one.direction for one in both.unsure} == {"B", "W"}, (
        "a product may be of either gradient"
    )


def test_convolutions_by_cudnn_are_not_looked_up() -> None:
    some = replace(forward(GEMM_KERNEL, 400.0), op="aten::cudnn_convolution")
    case = case_with(searched(line(PLAIN_KEY, IGEMM, GEMM)), some)
    assert case.searched is not None
    assert look_up(case.graph, case.table, case.searched) is None


def trace_of_rocm(steps: int = 4, calls: int = 6) -> str:
    """Steps of six convolutions on an MI300X, as torch.profiler writes them on ROCm."""
    one = forward(GEMM_KERNEL, 400.0)
    assert one.detail is not None
    assert one.detail.dims is not None
    assert one.detail.types is not None
    assert one.detail.strides is not None
    assert one.detail.concrete is not None
    shapes = {
        "Input Dims": json.loads(one.detail.dims),
        "Input type": json.loads(one.detail.types),
        "Input Strides": json.loads(one.detail.strides),
        "Concrete Inputs": json.loads(one.detail.concrete),
    }
    events, number, host, device = [], 0, 0.0, 5.0
    for step in range(steps):
        began = host
        for _ in range(calls):
            number += 1
            events.append(
                event(name=one.op, ts=host, dur=9.0, args={"External id": number} | shapes)
            )
            launched = {"correlation": number, "External id": number}
            events.append(
                event(
                    cat="cuda_runtime", name="hipLaunchKernel", ts=host + 1, dur=5.0, args=launched
                )
            )
            events.append(kernel(number, device, one.us, one.kernel))
            device, host = device + one.us, host + 10.0
        events.append(
            event(name=f"ProfilerStep#{step}", cat="user_annotation", ts=began, dur=host - began)
        )
        host += 1.0
    device_of = {
        "id": 0,
        "name": "AMD Instinct MI300X",
        "totalGlobalMem": 2**37,
        "numSms": 304,
        "computeMajor": 9,
        "computeMinor": 4,
    }
    header = {
        "schemaVersion": 1,
        "deviceProperties": [device_of],
        "record_shapes": 1,
        "with_stack": 0,
    }
    return json.dumps(header | {"traceEvents": events})


def test_diagnose_matches_a_trace_with_the_find_db_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.json").write_text(trace_of_rocm())
    (tmp_path / "gfx942130.HIP.3_3_0.ufdb.txt").write_text(line(PLAIN_KEY, IGEMM, GEMM, NAIVE))
    assert main(["diagnose", str(tmp_path), "--no-cache", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(told)
    (finding,) = [one for one in told["findings"] if one["code"] == "untuned-convolution"]
    assert finding["predicted_speedup"] == pytest.approx(4.0, rel=0.1)
    assert finding["predicted_low"] <= 1.0
    assert any("GemmFwdRest" in one and "1/4.0" in one for one in finding["evidence"])
    assert any(one.startswith("derived from") for one in finding["evidence"])
    assert main(["diagnose", str(tmp_path), "--no-cache", "-v"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert mentions(shown, "slower solvers", "find-db", "gain derived")
    assert "gfx942, 304 compute units" in shown
