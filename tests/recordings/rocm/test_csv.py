"""Tables of rocprofv3 and of rocprof v1 and v2: by their columns, together with their neighbours,
and damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.kernels import KernelReport
from stepscope.core.trace import Kind, Launch, Trace
from stepscope.errors import FormatError, InputError
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import diagnose
from stepscope.readers import cache
from stepscope.readers.detect import formats_of
from stepscope.readers.format import Source
from stepscope.readers.inputs import find_sources
from stepscope.recordings.rocm import chrome as rocprof_chrome
from stepscope.recordings.rocm import compute as rocprof_compute
from stepscope.recordings.rocm import csv as rocprof_csv
from stepscope.recordings.rocm import stats as rocprof_stats
from stepscope.recordings.rocm.table import MAX_LINE_BYTES
from tests.recording_texts import texts_of
from tests.wording import any_mentions

KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id",'
    '"Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count",'
    '"Accum_VGPR_Count","SGPR_Count",'
    '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y",'
    '"Grid_Size_Z"\n'
    '"KERNEL_DISPATCH","Agent 4",1,5,69,1,16,"void add<float>(float*, '
    'int)",100,5000,9000,512,0,24,8,16,64,1,1,1000,2,1\n'
    '"KERNEL_DISPATCH","Agent '
    '5",2,6,69,2,17,"Cijk_A.kd",101,9000,9400,0,0,32,0,16,256,1,1,256,1,1\n'
)
OLD_KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
    '"Correlation_Id","Start_Timestamp",'
    '"End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X",'
    '"Workgroup_Size_Y","Workgroup_Size_Z",'
    '"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
    '"KERNEL_DISPATCH",1,2,69,1,16,"add",1451,5000,9000,0,0,64,1,1,1024,1,1\n'
)
CALLS = (
    '"Domain","Function","Process_Id","Thread_Id","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp"\n'
)
HIP = (
    CALLS + '"HIP_RUNTIME_API","hipLaunchKernel",42,69,100,4000,4100\n'
    '"HIP_RUNTIME_API","hipLaunchKernel",42,69,101,4200,4300\n'
)
MARKS = CALLS + '"MARKER_CORE_API","step 1",42,69,7,3000,9500\n'
COPIES = (
    '"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id",'
    '"Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    '"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",5,"Agent 0","Agent 4",0,4600,4700\n'
    '"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST",5,"Agent 5","Agent 0",0,9600,9700\n'
)
AGENTS = (
    '"Node_Id","Logical_Node_Id","Agent_Type","Wave_Front_Size","Cu_Count",'
    '"Local_Mem_Size","Name","Product_Name"\n'
    '0,0,"CPU",0,64,0,"EPYC","EPYC"\n4,4,"GPU",64,304,0,"gfx942","AMD Instinct MI300X"\n'
    '5,5,"GPU",64,304,0,"gfx942","AMD Instinct MI300X"\n'
)
V1 = (
    "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,"
    "accum_vgpr,sgpr,wave_size,"
    "DispatchNs,BeginNs,EndNs,CompleteNs\n\n"
    '0,"vecCopy(double*, int) [clone .kd]",1,2,0,10,11,1048576,256,0,0,8,0,16,64,100,200,350,400\n'
)
V2 = (
    "Domain,Operation,Kernel_Name,Start_Timestamp,Stop_Timestamp,Correlation_ID\n\n"
    "HIP_OPS_DOMAIN,KernelExecution,k,200,350,9\n"
)
COUNTERS = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id",'
    '"Grid_Size","Kernel_Id","Kernel_Name",'
    '"Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","SGPR_Count",'
    '"Counter_Name","Counter_Value",'
    '"Start_Timestamp","End_Timestamp"\n'
    '1,1,1,1,9,9,1024,16,"k",64,0,0,8,16,"SQ_INSTS",16,200,300\n'
    '1,1,1,1,9,9,1024,16,"k",64,0,0,8,16,"GRBM_COUNT",3,200,300\n'
)
V1_COUNTERS = (
    '"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","lds","scr",'
    '"arch_vgpr","accum_vgpr","sgpr","wave_size","sig","obj","SQ_INSTS","GRBM_GUI_ACTIVE",'
    '"DispatchNs","BeginNs","EndNs","CompleteNs"\n'
    '0,"vecCopy(double*, int) [clone .kd]",2,0,0,9,9,1048576,256,512,0,8,0,16,64,"0x0","0x7f",'
    "16384,40000,100,200,350,360\n"
)
"""Formed by hand after the columns that rocprof v1 documents."""
STATS = (
    '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'
    '"Cijk_A.kd",4,2000,500.5,40.0,100,900,1.5\n"add",1,3000,3000,60.0,3000,3000,0.0\n'
    '"broken","x",1,1,1,1,1,1\n'
)
CHROME = """{ "traceEvents":[{}
,{"args":{"name":"Markers and Ranges"},"ph":"M","pid":1,"name":"process_name","sort_index":0}
,{"args":{"name":"CPU HIP API"},"ph":"M","pid":2,"name":"process_name","sort_index":1}
,{"args":{"name":"GPU3"},"ph":"M","pid":9,"name":"process_name","sort_index":2}
,{"args":{"name":"GPU Barriers3"},"ph":"M","pid":521,"name":"process_name","sort_index":3}
,{"ph":"X","name":"step","pid":1,"tid":7,"ts":"0","dur":"9",
  "args":{"BeginNs":"1000","EndNs":"10500","pid":"42","tid":"7"}}
,{"ph":"X","name":"hipLaunchKernel","pid":2,"tid":7,"ts":"1","dur":"1",
  "args":{
    "BeginNs":"2345",
    "EndNs":"2445", "pid":"42", "tid":"7", "Name":"hipLaunchKernel"
  }
}
,{"ph":"X","name":"gemm","pid":9,"tid":0,"ts":"4","dur":"2",
  "args":{"BeginNs":"5001","EndNs":"7003","dev-id":"3","queue-id":"1","stream-id":"5","pid":"42"}}
,{"ph":"X","name":"CopyHostToDevice","pid":9,"tid":0,"ts":"8","dur":"1",
  "args":{"BeginNs":"9000","EndNs":"9100","queue-id":"1"}}
,{"ph":"X","name":"b","pid":521,"tid":0,"ts":"8","dur":"1",
  "args":{"BeginNs":"9000","EndNs":"9100"}}
,{"ts":1,"ph":"s","cat":"DataFlow","id":12,"pid":2,"tid":7,"name":"dep"}
,{"ts":4,"ph":"t","cat":"DataFlow","id":12,"pid":9,"tid":0,"name":"dep"}
],
"otherData": {
  }
}"""


def read(path: Path, text: str | bytes, name: str = "x.csv") -> Trace:
    file = path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    trace = rocprof_csv.read(Source(path=file, label=name))
    trace.self_check()
    return trace


def shown(trace: Trace) -> list[tuple[str, str, int, int, int, int, int]]:
    columns = (
        trace.start_ns + trace.meta.base_ns,
        trace.dur_ns,
        trace.device,
        trace.stream,
        trace.correlation,
    )
    names = [trace.names[code] for code in trace.name.tolist()]
    found = zip(trace.kind, names, *(column.tolist() for column in columns), strict=True)
    return [(Kind(kind).name, *rest) for kind, *rest in found]


def test_a_table_of_kernels_brings_its_neighbours_along(tmp_path: Path) -> None:
    for name, text in (("hip_api", HIP), ("marker_api", MARKS), ("memory_copy", COPIES)):
        (tmp_path / f"7_{name}_trace.csv").write_text(text)
        (tmp_path / f"8_{name}_trace.csv").write_text(text)
    (tmp_path / "7_agent_info.csv").write_text(AGENTS)
    trace = read(tmp_path, KERNELS, "7_kernel_trace.csv")
    assert shown(trace) == [
        ("MARK", "step 1", 3000, 6500, -1, -1, -1),
        ("RUNTIME", "hipLaunchKernel", 4000, 100, -1, -1, 100),
        ("RUNTIME", "hipLaunchKernel", 4200, 100, -1, -1, 101),
        ("MEMCPY", "Memcpy HtoD", 4600, 100, 0, 5, -1),
        ("KERNEL", "void add<float>(float*, int)", 5000, 4000, 0, 5, 100),
        ("KERNEL", "Cijk_A", 9000, 400, 1, 6, 101),
        ("MEMCPY", "Memcpy DtoH", 9600, 100, 1, 5, -1),
    ]
    assert trace.details[trace.detail[4]] == Launch(
        grid=(16, 2, 1), block=(64, 1, 1), registers=32, shared_bytes=512, occupancy_pct=None
    )
    assert [
        (one.index, one.name, one.warp_size, one.memory_bytes) for one in trace.meta.devices
    ] == [
        (0, "AMD Instinct MI300X", 64, None),
        (1, "AMD Instinct MI300X", 64, None),
    ]
    assert any("7_hip_api_trace.csv" in note and "8_" not in note for note in trace.notes)


def test_a_neighbour_is_read_with_the_table_of_kernels_or_alone(tmp_path: Path) -> None:
    alone = read(tmp_path, HIP, "7_hip_api_trace.csv")
    assert [row[0] for row in shown(alone)] == ["RUNTIME", "RUNTIME"]
    assert any("no kernels" in note for note in alone.notes)
    (tmp_path / "7_kernel_trace.csv").write_text(KERNELS)
    with pytest.raises(InputError, match=r"one recording with 7_kernel_trace\.csv"):
        read(tmp_path, HIP, "7_hip_api_trace.csv")


def test_kernels_alone_say_what_is_missing(tmp_path: Path) -> None:
    trace = read(tmp_path, OLD_KERNELS)
    assert shown(trace) == [("KERNEL", "add", 5000, 4000, 1, 2, 1451)]
    assert any("no host calls" in note for note in trace.notes)
    assert any("no ROCTx ranges" in note for note in trace.notes)


def test_older_tables_are_known_by_their_columns(tmp_path: Path) -> None:
    first = read(tmp_path, V1)
    assert shown(first) == [("KERNEL", "vecCopy(double*, int) [clone .kd]", 200, 150, 1, 2, -1)]
    assert first.details[0] == Launch(
        grid=(4096, 1, 1), block=(256, 1, 1), registers=8, shared_bytes=0, occupancy_pct=None
    )
    assert shown(read(tmp_path, V2)) == [("KERNEL", "k", 200, 150, -1, -1, 9)]


def test_damaged_lines_cost_themselves_alone(tmp_path: Path) -> None:
    row = KERNELS.splitlines()[2]
    text = "\r\n".join(
        [
            *KERNELS.splitlines(),
            row[:20],
            '"',
            "x" * (MAX_LINE_BYTES + 5),
            row.replace("9000,9400", "soon,later"),
            row,
        ]
    )
    trace = read(tmp_path, text)
    assert len(trace) == 3
    assert any_mentions(trace.notes, "1 damaged line", "left out")
    assert any_mentions(trace.notes, "2 row", "without", "time", "left out")


def test_cut_anywhere_is_read_or_refused_in_words(tmp_path: Path) -> None:
    counts = []
    for end in range(0, len(KERNELS), 13):
        try:
            counts.append(len(read(tmp_path, KERNELS[:end])))
        except InputError as problem:
            counts.append(0)
            told = str(problem)
    assert counts == sorted(counts)
    assert counts[-1] == 2
    assert "x.csv" in told


@pytest.mark.parametrize("text", [b"", b"\x00\x01\x02,\xff\n", b"a,b\n1,2\n", b'{"a": [1,2]}'])
def test_other_tables_are_refused_and_not_claimed(tmp_path: Path, text: bytes) -> None:
    assert not rocprof_csv.is_mine(text, "kernel_trace.csv")
    with pytest.raises(InputError, match=r"x\.csv"):
        read(tmp_path, text)


def test_headers_are_claimed_by_one_reader_alone() -> None:
    ncu = b'"ID","Process ID","Kernel Name","Metric Name"\n'
    nsys = b"Start (ns),Duration (ns),CorrId,Name\n"
    counters = b"Dispatch_ID,GPU_ID,Kernel_Name,SQ_INSTS,Start_Timestamp,End_Timestamp\n"
    assert all(
        rocprof_csv.is_mine(text.encode(), "")
        for text in (KERNELS, OLD_KERNELS, HIP, MARKS, COPIES, V1, V2)
    )
    others = (ncu, nsys, counters, STATS.encode(), COUNTERS.encode(), V1_COUNTERS.encode())
    assert not any(rocprof_csv.is_mine(text, "") for text in others)
    assert all(rocprof_compute.is_mine(text.encode(), "") for text in (COUNTERS, V1_COUNTERS))
    assert rocprof_stats.is_mine(STATS.encode(), "")
    assert not rocprof_stats.is_mine(KERNELS.encode(), "")


def stats_of(file: Path) -> KernelReport:
    return KernelReport(recordings=(rocprof_stats.read_file(Source(path=file, label="stats")),))


def test_totals_are_of_kernels(tmp_path: Path) -> None:
    file = tmp_path / "1_kernel_stats.csv"
    file.write_text(STATS)
    report = stats_of(file)
    assert [
        (one.name, one.count, one.total_ns, one.mean_ns) for one in report.recordings[0].totals
    ] == [
        ("Cijk_A", 4, 2000.0, 500.5),
        ("add", 1, 3000.0, 3000.0),
    ]
    assert texts_of(report)[0].tables[0].rows[0] == ("add", "1", "0.00", "3.0", "60.0%")
    assert any("1 line(s)" in note for note in report.recordings[0].notes)
    file.write_text(STATS.replace("Cijk_A.kd", "hipMalloc").replace('"add"', '"ncclAllReduce"'))
    assert stats_of(file).recordings[0].totals == ()
    file.write_text(
        STATS.replace("Cijk_A.kd", "ncclDevKernel_Generic_1(x)").replace(
            '"add"', '"hip_add(float*)"'
        )
    )
    assert len(stats_of(file).recordings[0].totals) == 2
    file.write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match="no table"):
        stats_of(file)


def test_a_chrome_trace_of_roctracer_is_told_by_its_processes(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(CHROME)
    assert rocprof_chrome.is_mine(CHROME.encode(), "")
    assert not rocprof_chrome.is_mine(
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "GPU0"}]}', ""
    )
    trace = rocprof_chrome.read(Source(path=file, label="results.json"))
    trace.self_check()
    assert shown(trace) == [
        ("MARK", "step", 1000, 9500, -1, -1, -1),
        ("RUNTIME", "hipLaunchKernel", 2345, 100, -1, -1, 12),
        ("KERNEL", "gemm", 5001, 2002, 3, 5, 12),
        ("MEMCPY", "Memcpy HtoD", 9000, 100, 3, 1, -1),
    ]
    assert trace.unknown == {"GPU Barriers3": 1}
    for end in range(0, len(CHROME), 41):
        file.write_text(CHROME[:end])
        try:
            rocprof_chrome.read(Source(path=file, label="results.json")).self_check()
        except InputError:
            continue


def test_arrows_of_one_microsecond_are_told_apart_by_their_order(tmp_path: Path) -> None:
    def event(name: str, pid: int, tid: int, at_ns: int) -> dict[str, object]:
        args = {"BeginNs": str(at_ns), "EndNs": str(at_ns + 200), "pid": "77", "tid": "5"}
        return {
            "ph": "X",
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": str(at_ns // 1000),
            "dur": "1",
            "args": args,
        }

    def arrow(kind: str, number: int, pid: int, tid: int, at_us: int) -> dict[str, object]:
        return {"ph": kind, "id": number, "pid": pid, "tid": tid, "ts": str(at_us)}

    labels = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in ((2, "CPU HIP API"), (6, "GPU0"))
    ]
    # Two short kernels begin in one microsecond; the later one is written first. Another call
    # shares one with a launch.
    slices = [
        event("launch a", 2, 5, 10_100),
        event("launch b", 2, 5, 12_100),
        event("query", 2, 5, 12_400),
    ]
    slices += [event("b", 6, 1, 20_500), event("a", 6, 1, 20_100)]
    arrows = [
        arrow("s", 1, 2, 5, 10),
        arrow("t", 1, 6, 1, 20),
        arrow("s", 2, 2, 5, 12),
        arrow("t", 2, 6, 1, 20),
    ]
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"traceEvents": [*labels, *slices, *arrows]}))
    trace = rocprof_chrome.read(Source(path=file, label="results.json"))
    found = {
        trace.names[name]: number
        for name, number in zip(trace.name, trace.correlation.tolist(), strict=True)
    }
    assert found == {"launch a": 1, "launch b": 2, "query": 2, "a": 1, "b": 2}


def test_a_cache_is_stale_when_a_neighbour_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MIN_CACHED_BYTES", 0)
    kernels = (
        "Kind,Agent_Id,Queue_Id,Dispatch_Id,Kernel_Name,Correlation_Id,"
        "Start_Timestamp,End_Timestamp\n"
    )
    calls = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp\n"
    (tmp_path / "7_kernel_trace.csv").write_text(
        kernels + "KERNEL_DISPATCH,Agent 4,1,1,gemm,1,1000,2000\n"
    )
    (source,) = find_sources([tmp_path / "7_kernel_trace.csv"]).sources
    assert len(cache.read_trace(source)) == 1
    assert cache.load(source) is not None
    (tmp_path / "7_hip_api_trace.csv").write_text(
        calls + "HIP_RUNTIME_API,hipLaunchKernel,7,7,1,500,600\n"
    )
    assert cache.load(source) is None
    assert [Kind(kind).name for kind in cache.read_trace(source).kind] == ["RUNTIME", "KERNEL"]
    assert cache.load(source) is not None


def samples() -> Iterator[tuple[str, str, bytes]]:
    texts = {
        "kernels": KERNELS,
        "old_kernels": OLD_KERNELS,
        "hip": HIP,
        "copies": COPIES,
        "v1": V1,
        "v2": V2,
    }
    for name, text in texts.items():
        yield "rocprof-csv", f"{name}_kernel_trace.csv", text.encode()
    yield "rocprof-stats", "kernel_stats.csv", STATS.encode()
    yield "roctracer-json", "results.json", CHROME.encode()


def test_counters_are_figures_of_kernels_and_never_a_timeline(tmp_path: Path) -> None:
    for text, count, took in ((COUNTERS, 16, 100), (V1_COUNTERS, 16384, 150)):
        file = tmp_path / "counter_collection.csv"
        file.write_text(text)
        assert [each.name for each in formats_of(text.encode(), file.name)] == ["rocprof-compute"]
        recording = rocprof_compute.read_file(Source(path=file, label="c.csv"))
        (kernel,) = recording.kernels
        assert kernel.instructions == count
        assert kernel.duration_ns == took
        assert any("no timeline" in note for note in recording.notes)
        diagnosis = diagnose([str(file)], Options(use_cache=False, jobs=1))
        assert diagnosis.verdict.bound == "unknown"
        assert diagnosis.step.ms is None


def test_a_counter_of_several_dies_is_one_sum(tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text(COUNTERS + COUNTERS.splitlines()[1] + "\n")
    recording = rocprof_compute.read_file(Source(path=file, label="c.csv"))
    assert recording.kernels[0].instructions == 32


def test_kernels_of_a_run_with_counters_are_refused(tmp_path: Path) -> None:
    (tmp_path / "7_kernel_trace.csv").write_text(KERNELS)
    (tmp_path / "7_counter_collection.csv").write_text(COUNTERS)
    source = Source(path=tmp_path / "7_kernel_trace.csv", label="7_kernel_trace.csv")
    with pytest.raises(InputError, match=r"7_counter_collection\.csv.*no timeline"):
        rocprof_csv.read(source)
