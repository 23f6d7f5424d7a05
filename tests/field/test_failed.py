"""Texts of jobs that failed: what failed, and what to do first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.field.asking import ask
from tests.wording import mentions

TIMEOUT = (
    "[rank{0}]:[E312 10:22:01.110 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=255, NumelOut=255, "
    "Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
)
STATUS = (
    "[rank{0}]:[E312 10:22:01.120 ProcessGroupNCCL.cpp:2254] [PG ID 0 PG GUID 0(default_pg) Rank "
    "{0}]  failure detected by watchdog at work sequence id: {1} PG status: last enqueued work: "
    "{2}, last completed work: 70\n"
)
ROWS = {
    "an index out of range": (
        (
            "aten/src/ATen/native/cuda/Indexing.cu:1308: indexSelectLargeIndex: block: [84,0,0], "
            "thread: [31,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
            "RuntimeError: CUDA error: device-side assert triggered\n"
        ),
        ("failed-job", "out of range", "num_embeddings", "CUDA_LAUNCH_BLOCKING"),
    ),
    "an illegal access": (
        "RuntimeError: CUDA error: an illegal memory access was encountered\n",
        ("failed-job", "outside its memory", "compute-sanitizer"),
    ),
    "an Xid": (
        "[1129112.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=44, GPU has fallen off the bus.\n",
        ("failed-job", "Xid 79", "take the node out"),
    ),
    "NCCL's error": (
        (
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled "
            "system error, NCCL version 2.20.5\nncclSystemError: System call failed\n"
        ),
        ("failed-job", "failed first", "NCCL_DEBUG"),
    ),
    "a rank that was killed": (
        (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  rank: 3\n"
            "  exitcode  : -9 (pid: 4410)\n  traceback : Signal 9 (SIGKILL) received by PID 4410\n"
        ),
        ("failed-job", "host memory ran out", "fewer workers"),
    ),
    "a worker that crashed": (
        "RuntimeError: DataLoader worker (pid 771) is killed by signal: Segmentation fault.\n",
        ("killed-workers", "native code", "faulthandler"),
    ),
    "ranks in different collectives": (
        TIMEOUT.format(1, 1812, "ALLREDUCE")
        + TIMEOUT.format(3, 1812, "ALLREDUCE")
        + TIMEOUT.format(2, 1811, "ALLGATHER"),
        ("rank 2 in ALLGATHER number 1811", "rank 1, 3 in ALLREDUCE number 1812", "if rank == 0"),
    ),
    "a rank that did not come, as newer versions say it": (
        TIMEOUT.format(0, 77, "ALLREDUCE") + STATUS.format(0, 77, 80) + STATUS.format(5, 76, 76),
        ("Rank 5 did not come to ALLREDUCE number 77", "py-spy dump"),
    ),
    "Lightning on workers": (
        (
            "connector.py:425: The 'train_dataloader' does not have many workers which may be a "
            "bottleneck. Consider increasing the value of the `num_workers` argument` to "
            "`num_workers=31` in the `DataLoader` to improve performance.\n"
        ),
        ("serial-loader", "num_workers=31", "stepscope run"),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_failed_jobs_text_is_answered(
    row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words = ROWS[row]
    path = tmp_path / "job.txt"
    path.write_text(text)
    answer = ask(capsys, "diagnose", path, "-v")
    for word in words:
        assert mentions(answer, word), (word, answer)
