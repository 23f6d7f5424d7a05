"""Tables of rocprof-compute: counters of a launch made into shares by hand, panels, lists of
kernels, and damaged ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.kernels import KernelReport
from stepscope.errors import InputError
from stepscope.readers.format import Source
from stepscope.recordings.rocm import compute as rocprof_compute
from stepscope.recordings.rocm import csv as rocprof_csv
from tests.recording_texts import texts_of

SYSTEM = (
    "workload_name,gpu_model,gpu_arch,cu_per_gpu,simd_per_cu,wave_size,max_waves_per_cu,max_sclk,total_l2_chan,hbm_bw,num_xcd\n"
    "run,MI300X_A1,gfx942,100,4,64,32,2000,16,1000.0,2\n"
)
ABOUT = (
    "Dispatch_ID,GPU_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,Wave_Size,"
    "Kernel_Name"
)
COUNTERS = {
    "GRBM_GUI_ACTIVE": 20_000,
    "SQ_ACTIVE_INST_VALU": 250_000,
    "SQ_ACTIVE_INST_SCA": 100_000,
    "SQ_ACTIVE_INST_FLAT": 300_000,
    "SQ_ACTIVE_INST_VMEM": 300_000,
    "SQ_VALU_MFMA_BUSY_CYCLES": 1_600_000,
    "TCC_HIT_sum": 300,
    "TCC_MISS_sum": 100,
    "TCC_REQ_sum": 500,
    "TCC_HIT[0]": 7,
    "TCC_EA0_RDREQ_sum": 1000,
    "TCC_EA0_RDREQ_32B_sum": 100,
    "TCC_BUBBLE_sum": 200,
    "TCC_EA0_WRREQ_sum": 60,
    "TCC_EA0_WRREQ_64B_sum": 50,
    "TCP_TOTAL_CACHE_ACCESSES_sum": 1000,
    "SQ_LDS_IDX_ACTIVE": 900,
    "SQ_LDS_BANK_CONFLICT": 600,
    "SQ_INSTS": 4242,
    "SQ_INSTS_VALU_MFMA_MOPS_BF16": 10,
    "SQ_INSTS_VALU_MFMA_MOPS_F16": 2,
    "SQ_INSTS_VALU_MFMA_MOPS_F32": 0,
    "SQ_INSTS_VALU_MFMA_MOPS_F64": 0,
    **{
        f"SQ_INSTS_VALU_{kind}_{size}": 1
        for kind in ("ADD", "MUL", "TRANS")
        for size in ("F16", "F32", "F64")
    },
    **{f"SQ_INSTS_VALU_FMA_{size}": 3 for size in ("F16", "F32", "F64")},
}


def table(counters: dict[str, int], name: str = '"gemm(float*, int) (.kd)"') -> str:
    head = ",".join([ABOUT, *counters, "Start_Timestamp", "End_Timestamp"])
    row = ",".join(
        [
            "0,60633,1048576,256,16384,0,96,32,16,64",
            name,
            *(f"{value}.0" for value in counters.values()),
            "1000,11000",
        ]
    )
    return f"{head}\n{row}\n"


def read(folder: Path, text: str | bytes, system: str | None = SYSTEM) -> KernelReport:
    file = folder / "pmc_perf.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    if system is not None:
        (folder / "sysinfo.csv").write_text(system)
    return KernelReport(
        recordings=(rocprof_compute.read_file(Source(path=file, label="pmc_perf.csv")),)
    )


def test_counters_become_shares(tmp_path: Path) -> None:
    (kernel,) = read(tmp_path, table(COUNTERS)).kernels
    assert kernel.name == "gemm(float*, int)"
    assert (kernel.duration_ns, kernel.grid, kernel.block) == (10_000, (4096, 1, 1), (256, 1, 1))
    assert (kernel.registers, kernel.shared_bytes, kernel.num_multiprocessors) == (128, 16_384, 100)
    # 20 000 cycles over two dies are 10 000 of each, on 100 compute units a million.
    assert kernel.fma_pipe == pytest.approx(0.25)
    assert kernel.tensor_pipe == pytest.approx(1_600_000 / 4_000_000)
    assert kernel.compute_throughput == pytest.approx(0.6)
    assert kernel.l2_hits == pytest.approx(0.75)
    assert kernel.dram_read_bytes == 128 * 200 + 64 * 700 + 32 * 100
    assert kernel.dram_write_bytes == 64 * 50 + 32 * 10
    # 77 120 bytes in 10 us are 7.712 GB/s, of 1000.
    assert kernel.dram_throughput == pytest.approx(0.007712)
    assert kernel.l2_throughput == pytest.approx(500 * 128 / 10_000 / (2.0 * 128 * 16))
    assert kernel.l1_throughput == pytest.approx(1000 * 128 / 10_000 / (2.0 * 128 * 100))
    assert (kernel.shared_wavefronts, kernel.shared_wavefronts_ideal) == (900, 300)
    assert kernel.tensor_flops == 12 * 512
    assert kernel.vector_flops == 64 * (9 + 2 * 9)


def test_mi200_counts_its_fabric_under_other_names(tmp_path: Path) -> None:
    older = {
        "TCC_EA_RDREQ_sum": 100,
        "TCC_EA_RDREQ_32B_sum": 10,
        "TCC_EA_WRREQ_sum": 20,
        "TCC_EA_WRREQ_64B_sum": 20,
    }
    (kernel,) = read(tmp_path, table(older)).kernels
    assert (kernel.dram_read_bytes, kernel.dram_write_bytes) == (64 * 90 + 32 * 10, 64 * 20)


def test_what_was_not_counted_is_none(tmp_path: Path) -> None:
    lone = {
        key: value
        for key, value in COUNTERS.items()
        if key not in ("TCC_MISS_sum", "SQ_INSTS_VALU_MFMA_MOPS_F64", "TCC_BUBBLE_sum")
    }
    (kernel,) = read(tmp_path, table(lone)).kernels
    assert (
        kernel.l2_hits,
        kernel.tensor_flops,
        kernel.dram_read_bytes,
        kernel.dram_throughput,
    ) == (None, None, None, None)
    assert kernel.occupancy is None
    (tmp_path / "sysinfo.csv").unlink()
    report = read(tmp_path, table(COUNTERS), system=None)
    assert (report.kernels[0].fma_pipe, report.kernels[0].dram_throughput) == (None, None)
    assert report.kernels[0].l2_hits == 0.75
    assert any("sysinfo.csv" in note for note in report.recordings[0].notes)


def test_panels_and_lists_are_shown(tmp_path: Path) -> None:
    panel = (
        "Metric_ID,Metric,Avg,Unit,Peak,Pct of Peak\n2.1.3,MFMA FLOPs "
        "(BF16),123.4,Gflop,1000,12.3\n"
    )
    report = read(tmp_path, panel)
    assert report.kernels == ()
    assert texts_of(report)[0].tables[0].rows == (
        ("MFMA FLOPs (BF16)", "123.4", "Gflop", "1000", "12.3"),
    )
    top = (
        'Kernel_Name,Count,Sum(ns),Mean(ns),Median(ns),Pct\n"a(int, '
        'int)",3,300.0,100.0,90.0,75\nb,x,1,1,1,1\n'
    )
    report = read(tmp_path, top)
    assert [
        (one.name, one.count, one.total_ns, one.mean_ns) for one in report.recordings[0].totals
    ] == [("a(int, int)", 3, 300.0, 100.0)]
    assert any("1 row(s)" in note for note in report.recordings[0].notes)


def test_headers_are_claimed_here_and_not_as_a_trace() -> None:
    head = table(COUNTERS).encode()
    assert rocprof_compute.is_mine(head, "")
    assert not rocprof_csv.is_mine(head, "pmc_perf.csv")
    assert not rocprof_compute.is_mine(
        b'"Kind","Dispatch_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n', ""
    )
    assert not rocprof_compute.is_mine(b"metric,value\n", "")


def test_cut_and_damaged_tables_are_read_or_refused_in_words(tmp_path: Path) -> None:
    text = table(COUNTERS)
    for end in range(0, len(text), 23):
        try:
            report = read(tmp_path, text[:end])
        except InputError:
            continue
        assert len(report.recordings) == 1
    for rubbish in (b"", b"\x00\xff,\x01\n1,2\n", b"a,b\n1,2\n"):
        with pytest.raises(InputError, match=r"pmc_perf\.csv"):
            read(tmp_path, rubbish)
    odd = table({"TCC_HIT_sum": 10**29, "TCC_MISS_sum": 0}).replace(
        "1000,11000", "9999999999999999999999,1"
    )
    (kernel,) = read(
        tmp_path, odd, system=SYSTEM.replace("100,4", "0,4").replace("1000.0,2", "-1,0")
    ).kernels
    assert (kernel.duration_ns, kernel.l2_hits, kernel.fma_pipe) == (None, 1.0, None)


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "rocprof-compute", "pmc_perf.csv", table(COUNTERS).encode()
