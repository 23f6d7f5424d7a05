"""What people paste: texts of the field's tools that repeat themselves; others are in pasted/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PASTED = Path(__file__).parent / "pasted"


def nvidia_smi(*samples: tuple[int, int, int]) -> str:
    """`nvidia-smi --query-gpu=... --format=csv -lms 500`: device, utilization, MiB in use."""
    head = "timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB]\n"
    return head + "".join(
        f"2026/11/01 10:00:{i // 2 % 60:02d}.{i % 2 * 5}00, {device}, NVIDIA A100-SXM4-80GB, "
        f"{busy} %, {used} MiB, 81920 MiB\n"
        for i, (device, busy, used) in enumerate(samples)
    )


def dmon(*busy: int, num: int = 20) -> str:
    """`nvidia-smi dmon`: utilization of each device."""
    rows = "".join(
        f"    {i}    300     60     60     {sm}     20   1593   1410\n" for i, sm in enumerate(busy)
    )
    return (
        "# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk\n"
        "# Idx      W      C      C      %      %    MHz    MHz\n" + rows * num
    )


def dcgm(num: int = 20) -> str:
    return (
        "#Entity   GPUTL  SMACT  TENSO  DRAMA  NVLTX        NVLRX\nID\n"
        + "GPU 0     95     0.900  0.080  0.850  25000000000  24000000000\n" * num
    )


def ncu(sm: float, dram: float) -> str:
    """`ncu --metrics ... --csv` of one kernel."""
    head = (
        '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
        '"Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit",'
        '"Metric Value"\n'
    )
    row = (
        '"0","77","python","127.0.0.1","elem_kernel","1","7","(256, 1, 1)","(10000, 1, 1)","0",'
        '"8.0","Command line profiler metrics","{}","{}","{}"\n'
    )
    percent = "throughput.avg.pct_of_peak_sustained_elapsed"
    return head + "".join(
        row.format(*metric)
        for metric in (
            ("gpu__time_duration.sum", "nsecond", "100000"),
            (f"sm__{percent}", "%", str(sm)),
            (f"dram__{percent}", "%", str(dram)),
        )
    )


def speedscope() -> str:
    """`py-spy record -f speedscope`: 91.5 % of the samples in a dataset's __getitem__."""
    frames = [
        {"name": "<module>", "file": "train.py", "line": 50},
        {"name": "fetch", "file": "torch/utils/data/_utils/fetch.py", "line": 52},
        {"name": "__getitem__", "file": "train.py", "line": 12},
        {"name": "forward", "file": "model.py", "line": 30},
    ]
    samples = [[0, 1, 2]] * 915 + [[0, 3]] * 85
    profile = {
        "type": "sampled",
        "name": 'Thread 1 "MainThread"',
        "unit": "seconds",
        "startValue": 0,
        "endValue": 10,
        "samples": samples,
        "weights": [0.01] * len(samples),
    }
    schema = "https://www.speedscope.app/file-format-schema.json"
    shared = {"frames": frames}
    return json.dumps({"$schema": schema, "profiles": [profile], "shared": shared})


def memory_stats() -> str:
    """`torch.cuda.memory_stats()` after each of ten steps, of which each leaves a GiB."""
    return json.dumps([_memory_stats(step) for step in range(10)])


def _memory_stats(step: int) -> dict[str, Any]:
    held = 10 + step << 30
    return {
        "allocated_bytes.all.current": held,
        "allocated_bytes.all.peak": held + (2 << 30),
        "reserved_bytes.all.current": 24 << 30,
        "reserved_bytes.all.peak": 24 << 30,
        "num_alloc_retries": 0,
        "num_ooms": 0,
    }


def rocprof_counters() -> str:
    """`rocprof -i metrics.txt`: a matrix product without one MFMA instruction."""
    head = "Index,KernelName,gpu-id,pid,grd,wgr,wave_size,SQ_WAVES,SQ_INSTS_VALU,SQ_INSTS_MFMA,"
    return f"{head}BeginNs,EndNs\n" + "".join(
        f'{i},"Cijk_Ailk_Bljk_SB_MT64x64x16_SE.kd",0,1,262144,256,64,4096,9000000,0,'
        f"{i * 1000000},{i * 1000000 + 900000}\n"
        for i in range(5)
    )
