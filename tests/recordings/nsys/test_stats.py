"""Tables of nsys stats, as its releases print them. Figures are the tables' own, added up by
hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.kernels import KernelReport
from stepscope.errors import FormatError
from stepscope.readers.detect import format_of, head_of
from stepscope.readers.format import Source
from stepscope.recordings.nsys.stats import MAX_LINE_BYTES, is_mine, read
from tests.recording_texts import texts_of
from tests.wording import any_mentions, mentions

KERNELS = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,6000000,3,2000000.0,2100000.0,1000000,2900000,1.0,"void gemm<(int)4, true>(float *)"
40.0,4000000,8,500000.0,500000.0,400000,600000,0.0,relu
"""
API = """\
Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
90.0,900000,9,100000.0,99000.0,1,2,3.0,cudaLaunchKernel
10.0,100000,1,100000.0,100000.0,1,2,3.0,cudaDeviceSynchronize
"""
COPIES = """\
Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
100.0,250000,2,125000.0,125000.0,1,2,3.0,[CUDA memcpy Host-to-Device]
"""
SIZES = """\
Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation
16.000,2,8.0,8.0,8.0,8.0,0.0,[CUDA memcpy Host-to-Device]
"""
PROJECTIONS = """\
Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),\
Proj Med (ns),Proj Min (ns),Proj Max (ns),\
Proj StdDev (ns),Total GPU Ops,Avg GPU Ops,Avg Range Lvl,Avg Num Child
:forward,PushPop,10740000,4553000,4,2685000.0,2600000.0,1,2,3.0,75624,68.5,3.0,3.0
"""
NVTX = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range
95.0,3481709,1,3481709.0,3481709.0,3481709,3481709,0.0,PushPop,:Profile_Loop
"""
OLD = """\
Time(%),Total Time,Instances,Average,Minimum,Maximum,Name
75.0,300,2,150.0,100,200,a
25.0,100,1,100.0,100,100,b
"""


def table(text: str, tmp_path: Path, name: str = "stats.csv") -> KernelReport:
    path = tmp_path / name
    path.write_text(text)
    return read([Source(path=path, label=name)])


BY_GRID = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),\
GridXYZ,BlockXYZ,Name
100.0,1000,10,100.0,100.0,90,110,1.0,   4    1    1, 128    1    1,gemm
"""
PLAIN = BY_GRID.replace("GridXYZ,BlockXYZ,", "").replace("   4    1    1, 128    1    1,", "")


def test_the_same_kernels_in_two_reports_are_counted_once(tmp_path: Path) -> None:
    """One recording's, that is: an output of two recordings has two tables of each report."""
    reports = (("cuda_gpu_kern_sum", PLAIN), ("cuda_gpu_kern_gb_sum", BY_GRID))
    parts = [
        f"Processing [{run}.sqlite] with [/x/{name}.py]...\n{text}\n"
        for run in ("a", "b")
        for name, text in reports
    ]
    for num in (1, 2):
        report = table("".join(parts[: 2 * num]), tmp_path)
        assert [(one.name, one.count, one.total_ns) for one in report.recordings[0].totals] == [
            ("gemm", 10 * num, 1000.0 * num)
        ]
        assert any_mentions(report.recordings[0].notes, f"{num} table", "left out")
    assert table(BY_GRID, tmp_path).recordings[0].totals[0].count == 10


def test_kernels_are_totalled_with_their_whole_names(tmp_path: Path) -> None:
    report = table(KERNELS, tmp_path)
    gemm, relu = report.recordings[0].totals
    assert (gemm.name, gemm.count, gemm.total_ns) == ("void gemm<(int)4, true>(float *)", 3, 6e6)
    assert relu.mean_ns == 500_000
    kernels = dict(texts_of(report)[0].pairs)["kernels"]
    assert mentions(kernels, "10.00 ms", "11 launches", "2 kernels")
    assert texts_of(report)[0].tables[0].rows[0] == (gemm.name, "6.00", "60.0 %", "3", "2000.0")


def test_one_output_has_several_reports(tmp_path: Path) -> None:
    heads = {
        "cuda_gpu_kern_sum": KERNELS, "cuda_api_sum": API,
        "osrt_sum": API.replace("cudaLaunchKernel", "poll"), "cuda_gpu_mem_time_sum": COPIES,
        "cuda_gpu_mem_size_sum": SIZES, "nvtx_sum": NVTX, "nvtx_gpu_proj_sum": PROJECTIONS,
    }  # fmt: skip
    text = "Generating SQLite file run.sqlite from run.nsys-rep\n"
    for name, rows in heads.items():
        text += (
            f"Processing [run.sqlite] with [/opt/nsys/reports/{name}.py]... \n\n ** Some Summary "
            f"({name}):\n\n{rows}\n"
        )
    (recording,) = texts_of(
        table(text + "SKIPPED: run.sqlite does not contain OpenMP event data.\n", tmp_path)
    )
    titles = {shown.title.split(":")[0]: shown for shown in recording.tables}
    assert list(titles) == [
        "Kernels",
        "Calls into CUDA",
        "Calls into the operating system, all threads",
        "Copies and sets",
        "Copies and sets, by size",
        "NVTX ranges, on the host",
        "NVTX ranges on the device",
    ]
    assert recording.tables[2].rows[0][:2] == ("poll", "0.90")
    assert titles["NVTX ranges on the device"].rows[0] == ("forward", "10.74", "-", "4", "2685.0")
    assert recording.tables[4].columns[1] == "MB"
    assert recording.tables[4].rows[0][1:] == ("16.000", "2")
    assert dict(recording.pairs) == {
        "kernels": "10.00 ms in 11 launches of 2 kernels", "copies": "0.25 ms in 2",
        "calls into CUDA": "1.00 ms in 10"
    }  # fmt: skip
    assert recording.notes == ()


def test_old_names_and_other_units_are_the_same(tmp_path: Path) -> None:
    old = table(OLD, tmp_path)
    assert [(one.name, one.total_ns, one.mean_ns) for one in old.recordings[0].totals] == [
        ("a", 300, 150),
        ("b", 100, 100),
    ]
    micro = table(KERNELS.replace("(ns)", "(us)"), tmp_path)
    assert micro.recordings[0].totals[0].total_ns == 6e9


def test_rows_of_one_kernel_by_grid_are_one(tmp_path: Path) -> None:
    text = (
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev "
        "(ns),GridXYZ,BlockXYZ,Name\n"
    )
    text += (
        "75.0,30,3,10.0,10.0,9,11,1.0, 896 1 1, 128 1 1,k\n25.0,10,1,10.0,10.0,10,10,0.0, 1 1 1, "
        "128 1 1,k\n"
    )
    (total,) = table(text, tmp_path).recordings[0].totals
    assert (total.count, total.total_ns, total.mean_ns) == (4, 40, 10)


def test_file_name_tells_what_the_columns_do_not(tmp_path: Path) -> None:
    shown = texts_of(table(API, tmp_path, "run_osrt_sum.csv"))[0].tables[0]
    assert shown.title.startswith("Calls into the operating")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Time (%),Total Time (ns),Instances,Name\n",
        "Time (%),Total Time (ns),Instances,Name\nx,y,z,w\n",
        "Time (%),Total Time (ns),Instances,Name\n1,2\n",
        "Time (%),Total Time (ns),Instances,Category,Operation\n1,2,3,CUDA_API,cudaMalloc\n",
        "nothing\n" * 50,
    ],
)
def test_what_has_no_row_is_refused_in_words(text: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="nsys stats --format csv"):
        table(text, tmp_path)


def test_damage_never_ends_in_anything_but_words(tmp_path: Path) -> None:
    whole = (KERNELS + "\n" + API + "\n" + PROJECTIONS).encode()
    for cut in range(0, len(whole), 37):
        for data in (whole[:cut], whole[:cut] + b'\xff\x00"' + whole[cut:], whole[cut:]):
            path = tmp_path / "cut.csv"
            path.write_bytes(data)
            try:
                report = read([Source(path=path, label="cut.csv")])
            except FormatError:
                continue
            assert report.recordings[0].format == "nsys-stats"


def test_long_lines_and_odd_numbers_are_counted_not_believed(tmp_path: Path) -> None:
    head = "Time (%),Total Time (ns),Instances,Name\n"
    odd = f"1,{'9' * 400},1,huge\n1,nan,1,no\n1,-5,1,negative\n1,7,2,last\n"
    report = table(
        head + f"1,7,2,{'x' * (MAX_LINE_BYTES + 10)}\n" + head + "1,7,2,good\n" + odd, tmp_path
    )
    assert [one.name for one in report.recordings[0].totals] == ["good", "last"]
    long, odd_lines = report.recordings[0].notes
    assert mentions(long, "1 line", "1024 KiB", "left out")
    assert mentions(odd_lines, "3 line", "table")


def test_it_is_told_from_other_tables(tmp_path: Path) -> None:
    for text in (
        KERNELS,
        API,
        COPIES,
        SIZES,
        PROJECTIONS,
        NVTX,
        OLD,
        "Processing [x]\n\n" + KERNELS,
    ):
        assert is_mine(text.encode(), "x.csv")
        path = tmp_path / "s.csv"
        path.write_text(text)
        source = Source(path=path, label="s.csv")
        found = format_of(head_of(source), "s.csv")
        assert found is not None
        assert found.name == "nsys-stats"
    others = [
        b'"ID","Process ID","Process Name","Host Name","Kernel Name"\n',
        b"timestamp, name, pci.bus_id\n",
        b'{"traceEvents": []}',
    ]
    assert not any(is_mine(other, "x.csv") for other in others)


def samples() -> Iterator[tuple[str, str, bytes]]:
    for number, text in enumerate((API, COPIES, PROJECTIONS, BY_GRID, OLD, PRINTED)):
        yield "nsys-stats", f"stats{number}.csv", text.encode()


PRINTED = """Processing [run.sqlite] with [/opt/nsys/reports/cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances  Avg (ns)   Med (ns)                  Name
 --------  ---------------  ---------  ---------  ---------  ---------------------------------
     55.0      121,000,000        900  134,444.0  134,000.0  ampere_sgemm_128x64_tn
     45.0       99,000,000     90,000    1,100.0    1,100.0  void add<(int)4>(float, float *)

Processing [run.sqlite] with [/opt/nsys/reports/cuda_api_sum.py]...

 ** CUDA API Summary (cuda_api_sum):

 Time (%)  Total Time (ns)  Num Calls  Avg (ns)            Name
 --------  ---------------  ---------  ---------  ---------------------
     63.0      800,000,000        500  1,600,000.0  cudaStreamSynchronize
"""


def test_tables_as_text_are_read_as_those_with_commas_are(tmp_path: Path) -> None:
    assert is_mine(PRINTED.encode(), "stats.txt")
    (recording,) = table(PRINTED, tmp_path, "stats.txt").recordings
    assert [(row.name, row.count, row.total_ns) for row in recording.totals] == [
        ("ampere_sgemm_128x64_tn", 900, 121e6),
        ("void add<(int)4>(float, float *)", 90000, 99e6),
    ]
    (calls,) = recording.others
    assert [(row.name, row.count) for row in calls.rows] == [("cudaStreamSynchronize", 500)]
    assert recording.notes == ()
