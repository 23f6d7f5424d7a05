"""PyTorch's own words in a job's output: which line, how often, by whom, with which figures; and
nothing else."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.job_output import JobOutput
from stepscope.readers.detect import formats_of
from stepscope.readers.format import Source
from stepscope.readers.inputs import find_sources
from stepscope.recordings.job_log import killed_workers
from stepscope.recordings.job_log.log import is_mine, read
from stepscope.recordings.job_log.parser import MAX_SAID
from tests.readers.test_formats import MEGATRON
from tests.recording_texts import texts_of
from tests.shared_data import SAMPLES
from tests.wording import any_mentions, mentions

GIB, MIB = 1 << 30, 1 << 20
UNUSED = (
    "[rank{rank}]:[W1115 02:02:26.9 reducer.cpp:1457] Warning: find_unused_parameters=True was "
    "specified in DDP constructor, but"
    " did not find any unused parameters in the forward pass. This flag results in an extra "
    "traversal of the autograd graph every"
    " iteration,  which can adversely affect performance. (function operator())\n"
)
SDPA = (
    "train.py:9: UserWarning: {} (Triggered internally at "
    "/pytorch/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp:{}.)\n"
)
LOADER = (
    "site-packages/torch/utils/data/dataloader.py:627: UserWarning: This DataLoader will create "
    "64 worker processes in total."
    " Our suggested max number of worker in current system is 16, which is smaller than what this "
    "DataLoader is going to\n"
)
NEW_OOM = (
    "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has "
    "a total capacity of 31.47 GiB of"
    " which 12.73 GiB is free. Including non-PyTorch memory, this process has 18.73 GiB memory in "
    "use. Of the allocated memory"
    " 9.08 GiB is allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but unallocated. If "
    "reserved\n"
)
OLD_OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total "
    "capacity; 781.59 MiB already allocated;"
    " 3.03 GiB free; 1.24 GiB reserved in total by PyTorch)\n"
)
HUNG = (
    "[rank{rank}]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog "
    "caught collective operation timeout:"
    " WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, "
    "Timeout(ms)=600000) ran for 600060"
    " milliseconds before timing out.\n"
)
DETECTED = (
    "[rank{rank}]:[E321 02:07:08.465150152 ProcessGroupNCCL.cpp:1664] [PG ID 0 PG GUID "
    "0(default_pg) Rank {rank}] Exception"
    " (either an error or timeout) detected by watchdog at work: 1580, last enqueued NCCL work: "
    "1582, last completed NCCL work:"
    " 1579.\n"
)
SIGNALLED = (
    "[rank{rank}]:[E703 15:37:17.178360488 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID "
    "0(default_pg) Rank {rank}] Received a dump"
    " signal due to a collective timeout from  rank 0 and we will try our best to dump the debug "
    "info. Last enqueued NCCL work:"
    " {last}, last completed NCCL work: 1579.This is most likely caused by incorrect usages of "
    "collectives\n"
)


def output_of(tmp_path: Path, text: str | bytes) -> JobOutput:
    path = tmp_path / "job.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (output,) = read([Source(path=path, label="job.log")]).outputs
    return output


def test_a_real_jobs_output() -> None:
    path = SAMPLES / "formats" / "ddp_log.txt"
    log = read([Source(path=path, label=str(path))])
    (output,) = log.outputs
    threads, profiler = output.said
    assert (threads.kind, threads.line, threads.num, threads.numbers) == ("threads", 3, 1, (1,))
    assert (profiler.kind, profiler.line, profiler.num) == ("profiler", 7, 2)
    assert output.num_lines == sum(bool(line.strip()) for line in path.read_text().splitlines())
    assert output.num_read == 3
    (recording,) = texts_of(log)
    assert mentions(dict(recording.pairs)["lines"], "3 of PyTorch's own", "other 9")
    assert log.step_ns is None, "what the job prints of its own steps is not taken for a time"


def test_what_several_ranks_say_is_one_warning(tmp_path: Path) -> None:
    output = output_of(
        tmp_path, "hello\n" + "".join(UNUSED.format(rank=rank) for rank in (3, 0, 1, 3))
    )
    (one,) = output.said
    assert (one.kind, one.line, one.num, one.ranks) == ("unused parameters", 2, 4, (0, 1, 3))
    assert one.text.startswith("find_unused_parameters=True was specified in DDP constructor")


def test_bars_and_colours_hide_nothing_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    bar = b"\r".join(b"  %d%%|#  | %d/100 [00:00<00:01, 2.83s/it]" % (i, i) for i in range(100))
    text = (
        b"\n\n"
        + bar
        + b"\r\x1b[33m"
        + LOADER.encode().rstrip()
        + b"\x1b[0m\r\n"
        + LOADER.encode().replace(b"64", b"32")
    )
    output = output_of(tmp_path, gzip.compress(text))
    assert [(one.kind, one.line, one.numbers) for one in output.said] == [
        ("workers", 3, (64, 16)),
        ("workers", 4, (32, 16)),
    ]


def test_reasons_stand_with_the_kernel_that_was_not_taken(tmp_path: Path) -> None:
    reason = (
        "Flash attention requires q,k,v to have the same last dimension and to be less than or "
        "equal to 256."
    )
    text = SDPA.format("Flash attention kernel not used because:", 917) + SDPA.format(reason, 210)
    output = output_of(tmp_path, text)
    (one,) = output.said
    assert (one.kind, one.text, one.details) == (
        "attention kernels",
        "Flash attention kernel not used because:",
        (reason,),
    )
    assert output.num_read == 2


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (NEW_OOM, (22.78 * GIB, 31.47 * GIB, 12.73 * GIB, 18.73 * GIB, 9.08 * GIB, 9.35 * GIB)),
        (
            NEW_OOM.replace("capacity", "capacty"),
            (22.78 * GIB, 31.47 * GIB, 12.73 * GIB, 18.73 * GIB, 9.08 * GIB, 9.35 * GIB),
        ),
        (OLD_OOM, (2.26 * GIB, 6 * GIB, 3.03 * GIB, None, 781.59 * MIB, 1.24 * GIB - 781.59 * MIB)),
        ("CUDA out of memory. Tried to allocate 512 bytes.\n", (512, None, None, None, None, None)),
    ],
)
def test_memory_that_ran_out_is_told_in_figures(
    tmp_path: Path, text: str, figures: tuple[float | None, ...]
) -> None:
    (one,) = output_of(tmp_path, text * 2).failures
    told = (
        one.tried_bytes,
        one.total_bytes,
        one.free_bytes,
        one.own_bytes,
        one.allocated_bytes,
        one.idle_bytes,
    )
    for value, figure in zip(told, figures, strict=True):
        assert value == (None if figure is None else pytest.approx(figure, abs=2))
    assert (one.line, one.num) == (1, 2)


def test_memory_in_pieces_and_of_others_is_told_apart(tmp_path: Path) -> None:
    text = NEW_OOM.replace("22.78", "20.00") + NEW_OOM.replace("18.73", "2.73").replace(
        "[rank2]", "[rank5]"
    )
    pieces, others = output_of(tmp_path, text).failures
    assert pieces.is_in_pieces, "9.35 + 12.73 is more than 20"
    assert not others.is_in_pieces
    assert others.others_bytes == pytest.approx((31.47 - 12.73 - 2.73) * GIB, abs=4)
    assert (pieces.ranks, others.ranks) == ((2,), (5,))


TRACED = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/job/train.py", line 40, in <module>
[rank1]:     main()
[rank0]:   File "/home/me/job/train.py", line 41, in other
[rank1]:   File "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1790, in call
[rank1]:     return forward_call(*args, **kwargs)
[rank1]:   File "/home/me/job/model.py", line 154, in forward
[rank1]:     out = self.conv3(out)
[rank1]:   File "/venv/lib/python3.12/site-packages/torch/nn/modules/conv.py", line 548, in forward
[rank1]:     return F.conv2d(
"""
LIMITED = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 98.00 MiB. GPU 0 has a "
    "total capacity of 139.80 GiB of which 135.13 GiB is free. Including non-PyTorch memory, this "
    "process has 4.66 GiB memory in use. 3.99 GiB allowed; Of the allocated memory 3.90 GiB is "
    "allocated by PyTorch, and 5.48 MiB is reserved by PyTorch but unallocated.\n"
)


def test_the_traceback_above_says_who_asked(tmp_path: Path) -> None:
    (failure,) = output_of(tmp_path, TRACED + LIMITED).failures
    assert (failure.frame, failure.phase) == ("forward (job/model.py:154)", "forward")
    assert failure.ranks == (1,)


def test_a_process_that_limits_itself_has_no_more_room_than_that(tmp_path: Path) -> None:
    (failure,) = output_of(tmp_path, LIMITED).failures
    assert failure.room_bytes == pytest.approx(0.09 * GIB - 5.48 * MIB, abs=4)
    assert not failure.is_in_pieces
    assert failure.frame is None


def test_the_rank_that_did_not_come_is_named(tmp_path: Path) -> None:
    text = "".join(HUNG.format(rank=rank) + DETECTED.format(rank=rank) for rank in (0, 1, 3))
    (hang,) = output_of(
        tmp_path, text + SIGNALLED.format(rank=2, last=1579) + SIGNALLED.format(rank=1, last=1582)
    ).hangs
    assert (hang.op, hang.sequence, hang.timeout_s, hang.elements) == (
        "ALLREDUCE",
        1580,
        600.0,
        466119168,
    )
    assert (hang.waiting, hang.behind, hang.group) == (
        (0, 1, 3),
        (2,),
        "PG ID 0 PG GUID 0(default_pg)",
    )
    # One of another group tells nothing of this one.
    other = SIGNALLED.format(rank=2, last=3).replace("PG ID 0", "PG ID 4")
    (hang,) = output_of(tmp_path, text + other).hangs
    assert hang.behind == ()


def test_an_older_watchdog_names_the_waiting_ranks_alone(tmp_path: Path) -> None:
    text = (
        "[E ProcessGroupNCCL.cpp:737] [Rank {}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=469508,"
    )
    text += (
        " OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.\n"
    )
    (hang,) = output_of(tmp_path, text.format(1) + text.format(7)).hangs
    assert (hang.waiting, hang.behind, hang.group, hang.elements, hang.timeout_s) == (
        (1, 7),
        (),
        None,
        None,
        1800.0,
    )


def test_a_frameworks_log_is_read_for_both(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("".join(MEGATRON.format(n=n) for n in range(1, 600)) + NEW_OOM)
    assert log.stat().st_size > 64 << 10, "what PyTorch says comes after the first bytes"
    with find_sources([log]) as found:
        assert [source.format for source in found.others] == ["training-log", "job-log"]
    assert len(output_of(tmp_path, log.read_bytes()).failures) == 1


def test_a_frameworks_log_without_a_word_of_pytorch_gives_nothing(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("".join(MEGATRON.format(n=n) for n in range(1, 9)))
    nothing = read([Source(path=log, label="job.log")])
    assert (nothing.outputs, nothing.recordings) == ((), ())


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"even 0 114.25 ms\nstraggler 1 162.3 ms\n", "job.log"),
        (b'{"warning": "Anomaly Detection has been enabled. "}', "x.json"),
        (b"# How to\n\nAnomaly Detection has been enabled. \n", "README.md"),
        (b"\0\0Anomaly Detection has been enabled. ", "x.bin"),
        (b"", "job.log"),
    ],
)
def test_what_is_no_jobs_output_is_not_claimed(head: bytes, name: str) -> None:
    assert not is_mine(head, name)
    assert formats_of(head, name) == ()


def test_lines_of_the_compilers_log_are_left_to_its_reader(tmp_path: Path) -> None:
    hint = (
        "V1115 02:01:47.025000 493 torch/_inductor/cudagraph_utils.py:3] [__perf_hints] skipping "
        "cudagraphs due to cpu device\n"
    )
    warning = (
        "W1115 02:01:47.025000 493 torch/_inductor/compile_fx.py:2] [0/0] TensorFloat32 tensor "
        "cores for float32 matrix"
    )
    warning += " multiplication available but not enabled. Consider setting\n"
    output = output_of(tmp_path, hint + warning)
    assert [one.kind for one in output.said] == ["fp32 products"]


def test_hostile_output_is_bounded(tmp_path: Path) -> None:
    many = "".join(LOADER.replace("64", str(n)) for n in range(100, 100 + MAX_SAID + 50))
    path = tmp_path / "job.log"
    path.write_text(
        many
        + "x" * 200_000
        + NEW_OOM
        + "CUDA out of memory. Tried to allocate "
        + "9" * 5000
        + " GiB\n"
    )
    log = read([Source(path=path, label="job.log")])
    assert len(log.outputs[0].said) == MAX_SAID
    assert any_mentions(log.recordings[0].notes, "50 line", "PyTorch")


@pytest.mark.parametrize("size", range(0, len(NEW_OOM + HUNG), 37))
def test_output_that_breaks_off_anywhere_is_read(tmp_path: Path, size: int) -> None:
    """What stands there whole is read; of what is cut, no wrong figure."""
    hung = HUNG.format(rank=1)
    path = tmp_path / "job.log"
    path.write_text((hung + NEW_OOM)[:size])
    outputs = read([Source(path=path, label="job.log")]).outputs
    hangs = [
        (hang.op, hang.sequence, hang.timeout_s) for output in outputs for hang in output.hangs
    ]
    tried = [failure.tried_bytes for output in outputs for failure in output.failures]
    assert hangs == [("ALLREDUCE", 1580, 600.0)] or (not hangs and size < len(hung))
    assert tried == [round(22.78 * GIB)] or (
        not tried and size < len(hung) + NEW_OOM.index(" GPU 0")
    )


def samples() -> Iterator[tuple[str, str, bytes]]:
    texts = [LOADER, NEW_OOM, OLD_OOM]
    texts += [text.format(rank=1, last=1580) for text in (UNUSED, HUNG, DETECTED, SIGNALLED)]
    yield "job-log", "job.log", "".join(texts).encode()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ",
            "worker killed",
        ),
        (
            (
                "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is "
                "possible that dataloader's workers are out of shared memory."
            ),
            "no shared memory",
        ),
        (
            (
                "ERROR: Unexpected bus error encountered in worker. This might be caused by "
                "insufficient shared memory (shm)."
            ),
            "no shared memory",
        ),
        ("RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly", "worker exited"),
        (
            (
                "RuntimeError: unable to open shared memory object </torch_1_2_3> in read-write: "
                "Too many open files (24)"
            ),
            "too many open files",
        ),
    ],
)
def test_workers_that_end_are_read_and_advised_on(tmp_path: Path, line: str, kind: str) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"epoch 1\n{line}\n")
    log = read([Source(path=path, label="job.log")])
    (said,) = log.outputs[0].said
    assert (said.kind, said.line) == (kind, 2)
    (advice,) = killed_workers.advise(Auxiliary(training=log))
    assert said.text in advice.evidence[0]


def test_graphs_of_many_sizes_are_counted(tmp_path: Path) -> None:
    line = (
        "CUDAGraph supports dynamic shapes by recording a new graph for each distinct input size. "
        "Recording too many CUDAGraphs may lead to extra overhead. We have observed 9 distinct "
        "sizes. Please consider the following options for better performance: a) padding inputs"
    )
    (said,) = output_of(tmp_path, line).said
    assert (said.kind, said.numbers) == ("CUDA graphs by size", (9,))
