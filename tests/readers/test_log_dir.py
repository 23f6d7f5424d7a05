"""A log folder of TensorBoard's profiler plugin, written for real and by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.readers.inputs import find_sources
from stepscope.readers.log_dir import Written, newest_recordings, of_one_moment
from tests.builders import event, trace_text, write
from tests.capture.jobs import LIGHT, environment, run_light

JOB = f"""
{LIGHT}
import os, sys
import torch.distributed as dist

world, where, meeting = int(sys.argv[1]), sys.argv[2], sys.argv[3]
# One of them forks the others: each is a process of its own.
rank, others = 0, []
for number in range(1, world):
    child = os.fork()
    if child == 0:
        rank, others = number, []
        break
    others.append(child)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
if world > 1:
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=world)
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
profiler = torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU],
    schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=2),
    on_trace_ready=torch.profiler.tensorboard_trace_handler(where, use_gzip=world == 1),
    record_shapes=True,
)
with profiler:
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        profiler.step()
assert [os.waitpid(other, 0)[1] for other in others] == [0] * len(others)
"""


def train(folder: Path, world: int, where: Path) -> None:
    """What a user of the plugin has: the profiler with its handler, on every rank."""
    job = folder / "train.py"
    job.write_text(JOB, encoding="utf-8")
    words = (str(job), str(world), str(where), str(folder / "meeting"))
    ended = run_light(sys.executable, *words, env=environment())
    assert ended.returncode == 0, ended.stderr.decode()


def test_a_log_dir_of_the_handler_is_diagnosed_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = tmp_path / "log"
    train(tmp_path, 2, log_dir)
    assert len(list(log_dir.glob("*.pt.trace.json"))) == 4
    words = ["diagnose", str(log_dir), "--format", "json", "--no-cache", "--jobs", "1"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    assert told["step"]["count"] >= 2
    (note,) = [note for note in told["notes"] if "several moments" in note]
    assert note.count(".pt.trace.json") == 2

    # A later run of one process, where TensorBoard's own tools put it.
    train(tmp_path, 1, log_dir / "plugins" / "profile" / "later")
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["ranks"]) == 1
    with find_sources([log_dir]) as inputs:
        (source,) = inputs.sources
    assert "later" in source.label


def named(folder: Path, worker: str, stamp: str, rank: int | None = None, world: int = 2) -> Path:
    header = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world}}
    path = folder / f"{worker}.{stamp}.pt.trace.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, trace_text([event(ts=1)], header=header).encode())


def chosen(folder: Path) -> list[str]:
    with find_sources([folder]) as inputs:
        return [str(source.path.relative_to(folder)) for source in inputs.sources]  # type: ignore[union-attr]


def test_the_last_recording_of_each_rank_is_taken(tmp_path: Path) -> None:
    for cycle in range(3):
        for rank in range(2):
            named(tmp_path, f"host_{rank}", str(1_794_937_251_000 + cycle * 1000 + rank), rank)
    assert chosen(tmp_path) == [
        "host_0.1794937253000.pt.trace.json",
        "host_1.1794937253001.pt.trace.json",
    ]


def test_a_run_of_another_width_is_another_run(tmp_path: Path) -> None:
    for rank in range(4):
        named(tmp_path / "wide", f"host_{rank}", "1794937251000", rank, 4)
    for rank in range(2):
        named(tmp_path / "narrow", f"host_{rank + 9}", "1794937299000", rank, 2)
    assert {name.split("/")[0] for name in chosen(tmp_path)} == {"narrow"}
    assert len(chosen(tmp_path)) == 2


def test_a_folder_for_each_rank_is_one_job(tmp_path: Path) -> None:
    for rank in range(2):
        named(tmp_path / f"rank{rank}", f"host_{rank}", f"179493725100{rank}")
    assert len(chosen(tmp_path)) == 2


def test_stamps_of_old_and_new_handlers_are_on_one_clock(tmp_path: Path) -> None:
    named(tmp_path, "worker0", "1794937251494978709")
    named(tmp_path, "worker0", "1794937252000")
    assert chosen(tmp_path) == ["worker0.1794937252000.pt.trace.json"]


def test_a_rank_that_missed_the_last_recording_is_not_mixed_in() -> None:
    def at(rank: int, wall_ns: int) -> Written:
        return Written(path=Path(f"{rank}.{wall_ns}"), wall_ns=wall_ns, rank=rank, world_size=2)

    written = [at(0, 1000), at(1, 1010), at(0, 2000)]
    assert of_one_moment(written) == [at(0, 2000)]
    assert of_one_moment([*written, at(1, 1990)]) == [at(1, 1990), at(0, 2000)]


def test_what_is_named_is_read_whatever_its_moment(tmp_path: Path) -> None:
    first = named(tmp_path, "host_1", "1794937251000", 0)
    second = named(tmp_path, "host_1", "1794937252000", 0)
    with find_sources([first, second]) as inputs:
        assert len(inputs.sources) == 2


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("rank0.json", "rank1.json", "a.12.pt.trace.json")]
    notes: list[str] = []
    assert newest_recordings(tmp_path, files, lambda _: None, notes) == files
    assert notes == []
