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
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from stepscope.report.diagnosis.json import to_json
from tests import scenarios
from tests.builders import step_events, tar_bytes, trace_text
from tests.live_runs import (
    add_samples,
    add_steps,
    add_stretches,
    row,
    sample,
    write_rank,
    write_run,
)
from tests.plan.test_config_json import LLAMA
from tests.readers.test_hardware_file import told as hardware_told
from tests.shared_data import DEMO, SAMPLES, unpacked

TESTS = Path(__file__).parent
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
MAX_BYTES = 400_000
"""Of a real file of another format."""
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
    "kineto": ("single/elementwise_chain.slow.pt.trace.json.zst",
               "single/recompiles.slow.pt.trace.json.zst",
               "traces/pinn_tiny_kernels.fixed.pt.trace.json.zst",
               "rank_traces/pp_gpipe_w4.slow.rank0.pt.trace.json.zst"),
    "ncu-csv": ("formats/ncu_raw.csv", "formats/ncu_details.csv"),
    "nvidia-smi": ("formats/nvidia_smi.csv", "formats/dmon.txt"),
    "topology": ("formats/topo.txt",),
    "memory-stats": ("formats/memory_stats.json",),
    "measured-rates": ("formats/peaks.json",),
    "torch-logs": ("formats/torch_logs.txt",),
    "job-log": ("formats/ddp_log.txt",),
    "nccl-log": ("formats/nccl_2rank.txt",),
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
        built = [Sample(kind=kind, files={name: data}) for kind, name, data in _built()]
        built += [Sample(kind=kind, files=_run(Path(folder) / kind)) for kind in (RUN, WATCHED)]
    built += [Sample(kind=kind, files={_short(name): data}) for kind, name, data in _real()]
    return tuple(built)


def written(kind: str, folder: Path) -> Path:
    """The first sample of that kind, which is one file, in a folder."""
    ((name, data),) = next(each.files for each in samples() if each.kind == kind).items()
    path = folder / name
    path.write_bytes(data)
    return path


def _run(folder: Path) -> dict[str, bytes]:
    run = write_run(folder, ended_wall_ns=1_800_000_100_000_000_000, exit_code=0)
    device = {
        "gpu_util_percent": 60,
        "sm_clock_mhz": 1500,
        "max_sm_clock_mhz": 1980,
        "throttle_reasons": ["sw_power_cap"],
    }
    rank = write_rank(
        run, 0,
        machine={"cpu_count": 8, "cpu_affinity": 4, "cpu_quota": 2.5, "num_threads": 4,
                 "devices": [{"name": "H200"}]},
        loaders=[{"is_feeding": True, "num_workers": 0, "batch_size": 8, "pin_memory": False,
                  "prefetch_factor": None}],
        loader_iter={"class": "_SingleProcessDataLoaderIter", "num_workers": 0, "batch_size": 8},
        host="n0", pid=7, flags={"cudnn_benchmark": False, "matmul_tf32": False},
        local_world_size=1, local_rank=0, optimizers=[{"class": "Adam", "foreach": True}],
        models=[{"class": "M", "num_params": 4225}], ddp=[],
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
    (rank / "window-30.pt.trace.json").write_bytes(trimmed(DEMO))
    (run / "alerts.jsonl").write_text(
        '{"kind": "slow", "ranks": [0], "step": 3, "words": "slow", "at_wall_ns": 5}\n'
    )
    (run / "diagnosis.json").write_text(to_json(scenarios.data_bound()))
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file()
    }


def _built() -> Iterator[tuple[str, str, bytes]]:
    yield "kineto", "built.json", trace_text(step_events() * 3, record_shapes=1).encode()
    yield "kineto", "demo.json", trimmed(DEMO)
    yield from _of_readers()
    yield CLUSTER, "cluster.toml", CLUSTER_TEXT.encode()
    yield MODEL, "config.json", json.dumps(LLAMA).encode()
    yield HARDWARE, "machine.json", json.dumps(hardware_told()).encode()
    yield DIAGNOSIS, "contract.json", to_json(scenarios.data_bound()).encode()
    yield DIAGNOSIS, "ranks.json", to_json(scenarios.unsplit_comms()).encode()
    small = trace_text(step_events()).encode()
    yield (
        "archive",
        "ranks.tar",
        tar_bytes({"rank0.json": small, "rank1.json.gz": gzip.compress(small, mtime=0)}),
    )


def _of_readers() -> Iterator[tuple[str, str, bytes]]:
    """What `samples()` of each reader's test module gives."""
    paths = (
        path for room in ("readers", "recordings") for path in TESTS.glob(f"{room}/**/test_*.py")
    )
    for path in sorted(paths):
        if "\ndef samples(" in path.read_text():
            module = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
            yield from import_module(module).samples()


def _real() -> Iterator[tuple[str, str, bytes]]:
    for kind, names in REAL.items():
        for name in names:
            path = SAMPLES / name
            data = trimmed(path) if kind == "kineto" else path.read_bytes()[:MAX_BYTES]
            yield kind, name, data


@cache
def trimmed(path: Path) -> bytes:
    decode = msgspec.json.decode
    parts = decode(unpacked(path), type=dict[str, msgspec.Raw])
    events = decode(parts["traceEvents"], type=list[msgspec.Raw])
    kept = events[:: max(1, len(events) // KEPT_EVENTS)]
    trace = {name: decode(part) for name, part in parts.items() if name != "traceEvents"}
    return json.dumps(
        dict.fromkeys(parts) | trace | {"traceEvents": list(map(decode, kept))}
    ).encode()


def _short(name: str) -> str:
    name = name.rsplit("/", 1)[-1]
    return name.removesuffix(".zst")
