"""A sample of every format that is read, and of what is not a recording: run folders, clusters,
machines, models, diagnoses.

They are what the tests of each reader build, so that the fuzzing means something without the shared
recordings; where these are there, real ones come in beside them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stepscope.core.saved import save
from stepscope.readers.kineto.trace import read as read_kineto
from stepscope.report.diagnosis.json import to_json
from tests import memory_snapshots, miopen_files, nccl_logs, scenarios
from tests.builders import source, step_events, tar_bytes, trace_text
from tests.live_runs import (
    add_samples,
    add_steps,
    add_stretches,
    row,
    sample,
    write_rank,
    write_run,
)
from tests.nsys_files import write_export
from tests.planner.test_config_json import LLAMA
from tests.readers import (
    test_chakra,
    test_dcgm,
    test_dynamo_counters,
    test_hardware_file,
    test_host_profile,
    test_job_log,
    test_memory_stats,
    test_memory_timeline,
    test_miopen_find_db,
    test_ncu_csv,
    test_ncu_rep,
    test_nsys_stats,
    test_nvidia_smi,
    test_nvidia_topo,
    test_perf_text,
    test_perfetto_trace,
    test_rocm_smi,
    test_rocprof_compute,
    test_rocprof_csv,
    test_rocprofv3_json,
    test_torch_logs,
    test_torch_trace,
    test_training_log_bars,
    test_training_log_deepspeed,
    test_training_log_hostile,
)
from tests.shared_data import DEMO, SHARED

RUN, WATCHED, CLUSTER, HARDWARE, MODEL, DIAGNOSIS = (
    "run",
    "watched run",
    "cluster",
    "hardware",
    "model config",
    "diagnosis",
)
BESIDES = (RUN, WATCHED, CLUSTER, HARDWARE, MODEL, DIAGNOSIS, "archive")
"""What is fuzzed beside the registered formats."""
KEPT_EVENTS = 300
"""Of a real trace: enough for steps, launches and kernels, few enough for thousands of rounds."""
MOST_BYTES = 400_000
"""Of a real file of another format."""
NCU = {
    "gpu__time_duration.sum": ("us", "78.91"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "61.2"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "44.1"),
    "dram__bytes_read.sum": ("Mbyte", "12.5"),
    "launch__registers_per_thread": ("register/thread", "128"),
}
CLUSTER_TEXT = """\
name = "mine"
nodes = 2
devices_per_node = 8
device = "h100"
memory_gb = 80
bandwidth_gb_per_s = 3350
power_w = 700
price_per_hour = 2.5

[peak_tflops]
bf16 = 989

[in_node]
bandwidth_gb_per_s = 450
latency_us = 3.4

[across]
bandwidth_gbit_per_s = 400
latency_us = 14

[host]
memory_gb = 2048
bandwidth_gb_per_s = 51
"""
REAL = {
    "kineto": ("lab/single/elementwise_chain.slow.pt.trace.json.gz", "public/tracelens/torch_compile_triton.trace.json.gz",
               "public/hta/amd_trace.mi250_minitoy_train_ROCm6_2_kineto.json.gz",
               "public/hta/critical_path.cuda_event_sync.event_sync_trace.json.gz"),
    "ncu-csv": ("lab/formats/ncu_raw.csv", "lab/formats/ncu_details.csv"),
    "nvidia-smi": ("lab/formats/nvidia_smi.csv", "lab/formats/dmon.txt"),
    "topology": ("lab/formats/topo.txt",),
    "memory-stats": ("lab/formats/memory_stats.json",),
    "measured-rates": ("lab/formats/peaks.json",),
    "torch-logs": ("lab/formats/torch_logs.txt",),
    "job-log": ("lab/formats/ddp_log.txt",),
    "nccl-log": ("lab/formats/nccl_2rank.txt",),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    kind: str
    """A registered format's name, or one of BESIDES."""
    files: Mapping[str, bytes]
    """By their paths; of a run, in its folder."""


@cache
def samples() -> tuple[Sample, ...]:
    with TemporaryDirectory() as folder:
        built = [Sample(kind=kind, files={name: data}) for kind, name, data in _built(Path(folder))]
        built += [Sample(kind=kind, files=_run(Path(folder) / kind)) for kind in (RUN, WATCHED)]
    built += [Sample(kind=kind, files={_short(name): data}) for kind, name, data in _real()]
    return tuple(built)


def _run(folder: Path) -> dict[str, bytes]:
    run = write_run(folder, ended_wall_ns=1_800_000_100_000_000_000, exit_code=0)
    device = {
        "gpu_util_percent": 60,
        "sm_clock_mhz": 1500,
        "max_sm_clock_mhz": 1980,
        "throttle_reasons": ["sw_power_cap"],
    }
    rank = write_rank(
        run, 0, machine={"cpu_count": 8, "cpu_affinity": 4, "cpu_quota": 2.5, "num_threads": 4, "devices": [{"name": "H200"}]},
        loaders=[{"is_feeding": True, "num_workers": 0, "batch_size": 8, "pin_memory": False, "prefetch_factor": None}],
        loader_iter={"class": "_SingleProcessDataLoaderIter", "num_workers": 0, "batch_size": 8}, host="n0", pid=7,
        flags={"cudnn_benchmark": False, "matmul_tf32": False}, local_world_size=1, local_rank=0,
        optimizers=[{"class": "Adam", "foreach": True}], models=[{"class": "M", "num_params": 4225}], ddp=[],
    )  # fmt: skip
    add_steps(
        rank,
        [
            row(step, wait_ns=3_000_000, device_ns=9_000_000, state=2 if 30 <= step < 33 else 0)
            for step in range(60)
        ],
    )
    add_stretches(rank, [[60, 100, 600_000_000, 1_600_000_000, 9_000_000, 11_000_000, 300_000_000]])
    more: dict[str, Any] = {
        "cpu_user_cores": 1.2,
        "cpu_sys_cores": 0.1,
        "cgroup_throttled_s_per_s": 0.0,
        "devices": [device],
    }
    add_samples(rank, [sample(at / 10, at * 10, **more) for at in range(6)])
    (rank / "events.jsonl").write_text(
        '{"kind": "epoch", "step": 3, "at_ns": 5}\n{"kind": "window", "problem": "none"}\n'
    )
    (rank / "window-30.pt.trace.json").write_bytes(_trimmed(DEMO))
    (run / "alerts.jsonl").write_text(
        '{"kind": "slow", "ranks": [0], "step": 3, "words": "slow", "at_wall_ns": 5}\n'
    )
    (run / "diagnosis.json").write_text(to_json(scenarios.data_bound()))
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file()
    }


def _built(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    yield "kineto", "built.json", trace_text(step_events() * 3, record_shapes=1).encode()
    yield "kineto", "demo.json", _trimmed(DEMO)
    yield from _nvidia(folder)
    yield from _amd(folder)
    yield from _memory()
    yield from _compiler()
    yield from _system()
    yield from _logs()
    yield CLUSTER, "cluster.toml", CLUSTER_TEXT.encode()
    yield MODEL, "config.json", json.dumps(LLAMA).encode()
    yield HARDWARE, "machine.json", json.dumps(test_hardware_file.told()).encode()
    yield DIAGNOSIS, "contract.json", to_json(scenarios.data_bound()).encode()
    yield DIAGNOSIS, "ranks.json", to_json(scenarios.unsplit_comms()).encode()
    save(scenarios.comms_eight_ranks(), folder / "saved")
    yield DIAGNOSIS, "saved.json", (folder / "saved").read_bytes()
    small = trace_text(step_events()).encode()
    yield (
        "archive",
        "ranks.tar",
        tar_bytes({"rank0.json": small, "rank1.json.gz": gzip.compress(small, mtime=0)}),
    )


def _nvidia(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    path = folder / "trace.json"
    path.write_bytes(_trimmed(DEMO))
    yield (
        "nsys-sqlite",
        "run.sqlite",
        write_export(read_kineto(source(path)), folder / "run.sqlite").read_bytes(),
    )
    tables = (
        test_nsys_stats.API,
        test_nsys_stats.COPIES,
        test_nsys_stats.PROJECTIONS,
        test_nsys_stats.BY_GRID,
        test_nsys_stats.OLD,
    )
    yield from (("nsys-stats", f"stats{at}.csv", table.encode()) for at, table in enumerate(tables))
    yield "ncu-csv", "ncu.csv", test_ncu_csv.wide(folder, NCU).read_bytes()
    yield "ncu-rep", "run.ncu-rep", test_ncu_rep.NVR


def _amd(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    yield "rocprofv3-json", "results.json", json.dumps(test_rocprofv3_json.small()).encode()
    for name in ("KERNELS", "OLD_KERNELS", "HIP", "COPIES", "V1", "V2"):
        yield (
            "rocprof-csv",
            f"{name.lower()}_kernel_trace.csv",
            getattr(test_rocprof_csv, name).encode(),
        )
    yield "rocprof-stats", "kernel_stats.csv", test_rocprof_csv.STATS.encode()
    yield "roctracer-json", "results.json", test_rocprof_csv.CHROME.encode()
    yield "perfetto", "run.pftrace", test_perfetto_trace.sdk_file()
    yield (
        "rocprof-compute",
        "pmc_perf.csv",
        test_rocprof_compute.table(test_rocprof_compute.COUNTERS).encode(),
    )
    lines = miopen_files.line(miopen_files.PLAIN_KEY, miopen_files.GEMM, miopen_files.NAIVE)
    yield (
        "miopen-find-db",
        "gfx90a6e.HIP.3_2_0.ufdb.txt",
        (lines + miopen_files.line(miopen_files.LAST_KEY, miopen_files.IGEMM)).encode(),
    )
    database = test_miopen_find_db.database(folder, "gfx90a6e.udb", *test_miopen_find_db.PERF_DB)
    assert isinstance(database.path, Path)
    yield "miopen-perf-db", "gfx90a6e.udb", database.path.read_bytes()


def _memory() -> Iterator[tuple[str, str, bytes]]:
    yield (
        "memory-snapshot",
        "snapshot.pickle",
        memory_snapshots.pickled(memory_snapshots.training(3).snapshot()),
    )
    yield "memory-stats", "stats.json", json.dumps(test_memory_stats.FLAT).encode()
    yield "memory-stats", "nested.json", json.dumps([test_memory_stats.NESTED] * 2).encode()
    yield "memory-timeline", "memory.raw.json", json.dumps(test_memory_timeline.ROWS).encode()
    times, sizes = [5000, 6000, 7000], [[0, 1000, 0, 0, 0, 300, 0, 0, 0]] * 3
    yield "memory-timeline", "memory.json", json.dumps([times, sizes]).encode()


def _compiler() -> Iterator[tuple[str, str, bytes]]:
    told = (
        test_torch_logs.recompile("0/0: tensor 'x' size mismatch at index 0. expected 8, actual 16")
        * 3
    )
    yield (
        "torch-logs",
        "torch_logs.txt",
        (told + test_torch_logs.broken("train.py:61", "item() call", "do not")).encode(),
    )
    yield "dynamo-counters", "counters.json", json.dumps(test_dynamo_counters.COUNTERS).encode()
    lines = [
        test_torch_trace.metrics(f"0/{at}", entire_frame_compile_time_s=1.5, graph_op_count=4)
        for at in range(3)
    ]
    artifact = {"artifact": {"name": "recompile_reasons"}, "frame_id": 0, "frame_compile_id": 1}
    lines.append(test_torch_trace.line(artifact, '["0/0: size mismatch"]'))
    yield "torch-trace", "trace.log", "".join(lines).encode()


def _system() -> Iterator[tuple[str, str, bytes]]:
    rows = "".join(
        f"2026/01/01 00:00:0{at}.000, 0, NVIDIA H200, {90 + at} %, 1500 MHz, 1980 MHz, 0x4\n"
        for at in range(4)
    )
    yield "nvidia-smi", "smi.csv", (test_nvidia_smi.HEADER + rows).encode()
    yield "rocm-smi", "smi.csv", test_rocm_smi.MONITOR.encode()
    yield "rocm-smi", "smi.json", json.dumps(test_rocm_smi.CARDS).encode()
    yield "rocm-smi", "metric.json", json.dumps(test_rocm_smi.METRIC).encode()
    yield "dcgm", "dcgm.txt", test_dcgm.DMON.encode()
    yield (
        "dcgm",
        "metrics.txt",
        "".join(test_dcgm.SCRAPE % pair for pair in ((1980, 0), (1500, 64))).encode(),
    )
    for name in ("STAT", "STAT_CSV", "INTERVALS", "INTERVALS_CSV", "SCRIPT"):
        yield "perf", f"{name.lower()}.txt", getattr(test_perf_text, name).encode()
    yield "host-profile", "stacks.txt", test_host_profile.RAW.encode()
    yield from _host_profiles()
    yield "topology", "topo.txt", test_nvidia_topo.NVIDIA.encode()
    yield "topology", "rocm.txt", test_nvidia_topo.ROCM.encode()
    rates = {
        "device": "H200",
        "gemm_bf16_8192_tflops": 800,
        "gemm_fp32_1024_tflops": 50.5,
        "copy_TBps": 4.1,
        "launch_us": 3,
    }
    yield "measured-rates", "peaks.json", json.dumps(rates).encode()
    yield "measured-rates", "calibrated.json", json.dumps(test_hardware_file.told()).encode()


def _host_profiles() -> Iterator[tuple[str, str, bytes]]:
    sampled = {
        "type": "sampled",
        "name": "main",
        "unit": "seconds",
        "samples": [[0, 1], [0, 2]],
        "weights": [0.5, 0.25],
    }
    events = [{"type": kind, "frame": 0, "at": at} for kind, at in (("O", 0), ("C", 5))]
    evented = {"type": "evented", "name": "main", "unit": "milliseconds", "events": events}
    yield (
        "host-profile",
        "speedscope.json",
        json.dumps(test_host_profile.speedscope(sampled, evented)).encode(),
    )
    leaf = {"function": "forward", "file_path": "nn.py", "line_no": 9, "time": 1.5, "children": []}
    root = {
        "function": "main",
        "file_path": "train.py",
        "line_no": 3,
        "time": 2.0,
        "children": [leaf, leaf],
    }
    session = {
        "start_time": 1.5,
        "duration": 2.0,
        "sample_count": 5,
        "cpu_time": 1.0,
        "root_frame": root,
    }
    yield "host-profile", "pyinstrument.json", json.dumps(session).encode()
    call = {
        "ph": "X",
        "cat": "fee",
        "name": "step (/w/train.py:3)",
        "pid": 1,
        "tid": 1,
        "ts": 0.5,
        "dur": 9.5,
    }
    name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "MainThread"}}
    trace = {
        "traceEvents": [name, call, call | {"ts": 2, "dur": 3}],
        "viztracer_metadata": {"version": "1.1"},
    }
    yield "host-profile", "viztracer.json", json.dumps(trace).encode()


def _logs() -> Iterator[tuple[str, str, bytes]]:
    yield "training-log", "everything.log", test_training_log_hostile.EVERYTHING
    yield "training-log", "trainer.log", test_training_log_bars.TRAINER.encode()
    yield (
        "training-log",
        "deepspeed.log",
        "\n".join(
            [*test_training_log_deepspeed.BREAKDOWN, *test_training_log_deepspeed.COMMS]
        ).encode(),
    )
    half = test_chakra.HALF
    types = ["Tensor(c10::Half)"] * 2
    product = test_chakra.node(
        2, "aten::mm", shapes=[[10, 100], [100, 10]], types=types, values=[half, half]
    )
    yield (
        "chakra",
        "et.json",
        test_chakra.trace(product, test_chakra.node(3, "c10d::allreduce_", caller=2)),
    )
    job = [getattr(test_job_log, name) for name in ("LOADER", "NEW_OOM", "OLD_OOM")]
    job += [
        getattr(test_job_log, name).format(rank=1, last=1580)
        for name in ("UNUSED", "HUNG", "DETECTED", "SIGNALLED")
    ]
    yield "job-log", "job.log", "".join(job).encode()
    yield "nccl-log", "nccl.log", nccl_logs.two_nodes().encode()


def _real() -> Iterator[tuple[str, str, bytes]]:
    for kind, names in REAL.items():
        for name in names:
            path = SHARED / name
            if path.is_file():
                yield (
                    kind,
                    name,
                    _trimmed(path) if kind == "kineto" else path.read_bytes()[:MOST_BYTES],
                )


@cache
def _trimmed(path: Path) -> bytes:
    trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    step = max(1, len(trace["traceEvents"]) // KEPT_EVENTS)
    trace["traceEvents"] = trace["traceEvents"][::step]
    return json.dumps(trace).encode()


def _short(name: str) -> str:
    name = name.rsplit("/", 1)[-1]
    return name.removesuffix(".gz")
