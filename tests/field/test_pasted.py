"""What people paste is read, ranked and judged: a row for each text, with its answer's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.field import texts
from tests.field.asking import ask
from tests.field.texts import PASTED
from tests.wording import mentions

SAW = texts.nvidia_smi(*((0, 95 if i // 5 % 2 else 3, 40000) for i in range(60)))
LOW = texts.nvidia_smi(*((0, 4, 20000) for _ in range(60)))
FULL = texts.nvidia_smi(*((0, 35, 78000) for _ in range(60)))
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a device that works in bursts": (SAW, ("idle-device", "53%", "stepscope run")),
    "a device that hardly works": (LOW, ("idle-device", "4%", "of the time", "stepscope run")),
    "memory is full and the device idle": (FULL, ("idle-device", "35%", "82 of 86 GB are held")),
    "one of two devices waits": (texts.dmon(95, 42), ("uneven-devices", "42%", "95%")),
    "DRAM at 85 %, tensor cores at 8 %": (texts.dcgm(), ("dram-bound", "85%", "8%")),
    "NVLink's columns": (texts.dcgm(), ("NVLink in", "24 GB/s", "25 GB/s")),
    "14 % and 12 % of the peaks": (texts.ncu(14, 12), ("latency-bound", "14%", "--set full")),
    "91 % of the memory's peak": (texts.ncu(24, 91), ("dram-bound", "91%", "fewer bytes")),
    "py-spy in __getitem__": (texts.speedscope(), ("serial-loader", "__getitem__", "num_workers")),
    "memory that grows": (texts.memory_stats(), ("memory-growth", "1073.7 MB", "detach")),
    "no MFMA instruction": (texts.rocprof_counters(), ("idle-tensor-cores", "Cijk", "0%")),
    "killed_worker": ("", ("killed-workers", "host memory ran out", "fewer workers")),
    "shm": ("", ("killed-workers", "shared memory", "--shm-size")),
    "recompile_limit": ("", ("recompilation", "recompile_limit", "forward", "mark_dynamic")),
    "graph_sizes": ("", ("9 sizes", "pad", "cudagraph_skip_dynamic_graphs")),
    "docker0": ("", ("slow-link", "docker0", "no network card", "NCCL_SOCKET_IFNAME")),
    "shared_memory": ("", ("slow-link", "NCCL_P2P_DISABLE", "nvidia-smi topo")),
    "perf_stat": ("", ("stalled-cores", "0.50 instructions", "34.2%", "8% of branches", "memory")),
    "c2c": ("", ("NVLink-C2C", "0.423 GB/s", "Not judged")),
    "perf_report": ("", ("_PyEval_EvalFrameDefault", "libpython3.11.so.1.0", "32.2%")),
    "memory_summary": ("", ("fragmentation", "12 times", "expandable_segments")),
    "rocm_bandwidth": ("", ("Copies", "MI250X", "49.0", "slow-pair", "24.1")),
    "nsys_stats": ("", ("launch-overhead", "90,000 of 90,900", "fp32-matmul", "55%")),
    "vmstat": ("", ("short-host-memory", "15.0 MB/s", "prefetch_factor")),
    "iostat": ("", ("slow-storage", "nvme0n1", "9,311 reads/s of 20 kB", "larger files")),
    "free": ("", ("short-host-memory", "1.0%", "99% of the swap")),
    "strace": ("", ("slow-storage", "98%", "25,006 files opened", "WebDataset")),
    "stack_dump": ("", ("serial-loader", "only look", "__getitem__ (data.py:33)", "ImageFile.py")),
    "hung_dump": ("", ("hung-collective", "all_reduce", "train.py:55", "every rank")),
    "faulthandler": ("", ("starved-loader", "only look", "workers")),
    "profiler_table": ("", ("serial-loader", "81%", "80.1 ms a batch", "num_workers")),
    "ncu_printed": ("", ("dram-bound", "elementwise_kernel", "88%")),
    "perf_decode": ("", ("serial-loader", "60%", "libjpeg", "num_workers")),
    "topology": ("", ("slow-link", "6 of 6 pairs", "4 SYS, 2 PHB")),
    "deepspeed": ("", ("exposed-collectives", "bwd_allreduce_microstep", "37%", "overlap_comm")),
    "megatron": ("", ("starved-loader", "batch-generator", "31%", "num_workers")),
    "top": ("", ("Not judged", "python (4410)", "one core", "nvidia-smi dmon")),
    "part_of_nvidia_smi": ("", ("idle-device", "only look", "22%", "48 of 52 GB")),
    "explain": ("", ("graph-breaks", "train.py:11", "train.py:14", "torch.where")),
}
"""By a row's name, or that of a file in pasted/: the text, and what the answer must mention."""


@pytest.mark.parametrize("row", ROWS)
def test_a_pasted_text_is_judged(
    row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words = ROWS[row]
    path = tmp_path / ("given.json" if text.startswith(("{", "[")) else "given.txt")
    path.write_text(text or (PASTED / f"{row}.txt").read_text())
    answer = ask(capsys, "diagnose", path, "-v")
    for word in words:
        assert mentions(answer, word), (word, answer)


def test_the_printed_columns_of_samples_are_no_threads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`perf report -n` has a column more."""
    answer = ask(capsys, "diagnose", PASTED / "perf_report.txt", "-v")
    assert not mentions(answer, "python libpython"), answer
    assert not mentions(answer, "106"), answer


def test_no_pasted_text_is_called_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    for path in sorted(PASTED.iterdir()):
        answer = ask(capsys, "diagnose", path)
        assert not mentions(answer, "no fault") or mentions(answer, "not judged"), answer
