"""`attach` on processes of this machine, and on what py-spy printed of others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.errors import FormatError, InputError, UsageError
from stepscope.live.cli import py_spy as spying
from stepscope.live.cli.attach import find_ranks, look
from stepscope.live.cli.flight_dumps import _ask, dump_of, find_hang_of
from stepscope.live.cli.py_spy import NotPermittedError, dump, find_spy, training_stack
from stepscope.live.report.stacks import stacks_document
from stepscope.live.shapes.triage import Comparison, Frame, Standing
from stepscope.process.table import Process, processes, rank_of, read_process
from stepscope.report.document.terminal import to_text
from tests.capture.jobs import environment
from tests.flight_dumps import write_case
from tests.followed_loops import followed_loops
from tests.installed import absent, need
from tests.waiting import until, until_at_rest
from tests.wording import mentions

HANG = """
import sys, time
def stuck():
    open(sys.argv[1], "w").close()
    time.sleep(600)
stuck()
"""
DUMPED = [
    {
        "thread_name": "other",
        "os_thread_id": 8,
        "frames": [{"name": "poll", "filename": "/x.py", "line": 1}],
    },
    {
        "thread_name": "MainThread",
        "os_thread_id": 7,
        "frames": [{"name": "f", "filename": "/t.py", "line": 3}, None],
    },
]


def process(pid: int, parent: int, name: str = "python3", **environ: str) -> Process:
    return Process(
        pid=pid, parent=parent, group=1, name=name, state="S", cpu_s=0,
        started_ticks=pid, command=(name,), environment=environ,
    )  # fmt: skip


def family(*members: Process) -> dict[int, Process]:
    return {one.pid: one for one in members}


@pytest.fixture
def hung_with_dumps(
    tmp_path: Path, hung: subprocess.Popen[bytes]
) -> tuple[subprocess.Popen[bytes], Path]:
    """The same, with dumps of two ranks of a real job where their environment says."""
    write_case(tmp_path, "other/pickle")
    for rank in (2, 3):
        (tmp_path / f"nccl_trace_rank_{rank}").unlink()
    return hung, tmp_path


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Two ranks that sleep, under a shell that launched them."""
    path = tmp_path / "hang.py"
    path.write_text(HANG)
    one = f"{sys.executable} {path} {tmp_path}/ready"
    words = f"RANK=0 {one}0 & RANK=1 {one}1 & wait"
    prefix = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/nccl_trace_rank_"}
    started = subprocess.Popen(
        ["/bin/sh", "-c", words], env={**environment(), **prefix}, start_new_session=True
    )
    try:
        until(lambda: (tmp_path / "ready0").exists() and (tmp_path / "ready1").exists())
        for rank in find_ranks([started.pid]):
            until_at_rest(rank.pid)
        yield started
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def test_real_processes_are_found_hung_where_they_hang(
    hung: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    need("py-spy")
    ranks = find_ranks([hung.pid])
    assert sorted(rank_of(one) or 0 for one in ranks) == [0, 1]
    try:
        dump(find_spy(), ranks[0].pid)
    except NotPermittedError as problem:
        absent(f"needs ptrace: root, or kernel.yama.ptrace_scope=0 ({problem})")
    assert main(["attach", str(hung.pid)]) == 0
    printed = capsys.readouterr().out
    assert mentions(printed, "all 2 ranks", "same place")
    assert "hung" in printed
    assert "stuck (hang.py:5)" in printed


def test_the_main_threads_stack_is_read() -> None:
    assert training_stack(json.dumps(DUMPED), 7) == (
        Frame(name="f", file="/t.py", line=3),
        Frame(name="?", file="?", line=0),
    )
    assert training_stack(json.dumps(DUMPED), 99)[0].name == "f", (
        "no thread of that number: the one called so"
    )
    assert training_stack("[]", 7) == ()
    with pytest.raises(FormatError, match="py-spy --version"):
        training_stack("Error: what?", 7)


def test_ranks_are_found_and_their_loader_workers_are_not() -> None:
    launcher = process(1, 0, RANK="0")
    ranks = [process(10 + n, 1, RANK=str(n), LOCAL_RANK=str(n)) for n in range(2)]
    workers = [process(20 + n, 10, RANK="0", LOCAL_RANK="0") for n in range(2)]
    known = family(process(0, 0, "init"), launcher, *ranks, *workers)
    assert [one.pid for one in find_ranks([1], known)] == [10, 11], (
        "the launcher's number is its machine's"
    )
    known = family(process(0, 0, "init"), process(1, 0), *ranks, *workers)
    assert [one.pid for one in find_ranks([1], known)] == [10, 11]
    assert [one.pid for one in find_ranks([10], known)] == [10]


def test_a_process_without_a_rank_stands_for_itself_and_a_shell_for_its_python() -> None:
    known = family(process(1, 0, "bash"), process(2, 1), process(3, 2))
    assert [one.pid for one in find_ranks([1], known)] == [2]
    assert [one.pid for one in find_ranks([3], known)] == [3]


def test_what_cannot_be_looked_at_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    known = family(process(1, 0, "bash"))
    with pytest.raises(InputError, match="no process 5"):
        find_ranks([5], known)
    with pytest.raises(InputError, match=r"\(bash\) is not Python"):
        find_ranks([1], known)
    with pytest.raises(InputError, match="/proc"):
        find_ranks([1], {})
    assert main(["attach", "999999999"]) == 2
    assert mentions(capsys.readouterr().err, "no process 999999999")


def test_without_py_spy_the_command_that_brings_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UsageError, match=r"pip install 'stepscope\[attach\]'"):
        find_spy()


def fake_spy(folder: Path, text: str, code: int) -> str:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\ncat <<'END' >&2\n{text}\nEND\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "said", ["Error: Permission Denied", "Error: Operation not permitted (os error 1)"]
)
def test_a_refusal_says_what_opens_the_door(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    spy = fake_spy(tmp_path, said, 1)
    me = read_process(os.getpid())
    assert me is not None
    with pytest.raises(NotPermittedError) as refused:
        look([me], lambda pid: dump(spy, pid), 2, 0.0)
    assert refused.value.exit_code == 2
    for words in ("sudo", "kernel.yama.ptrace_scope", "--cap-add SYS_PTRACE"):
        assert words in str(refused.value)


@pytest.mark.parametrize(("every_s", "is_long"), [(0.2, False), (5.0, True)])
def test_looks_that_take_long_are_counted_from_the_start(
    every_s: float, is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("stepscope.live.cli.attach.time.sleep", slept.append)
    me = process(os.getpid(), 1)
    with followed_loops() as loops:
        look([me], lambda _pid: (), 3, every_s)
    assert slept == [every_s, every_s]
    (loop,) = loops
    assert (loop.total, loop.done, loop.is_long) == (3, [1, 2, 3], is_long)


def test_another_failure_is_that_processes_alone(tmp_path: Path) -> None:
    import os

    spy = fake_spy(tmp_path, "Error: Failed to find python version", 1)
    me = read_process(os.getpid())
    assert me is not None
    (one,) = look([me], lambda pid: dump(spy, pid), 2, 0.0)
    assert one.problem is not None
    assert "Failed to find" in one.problem


def test_a_spy_that_does_not_answer_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spying, "DUMP_S", 0.2)
    path = tmp_path / "py-spy"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    with pytest.raises(InputError, match="did not answer"):
        dump(str(path), 1)


def test_this_process_is_in_the_list() -> None:
    import os

    me = processes()[os.getpid()]
    assert me.is_python
    assert me.environment
    assert read_process(2**30) is None


def test_the_view_names_the_rank_that_stands_elsewhere() -> None:
    at = Frame(name="read_shard", file="/home/me/data.py", line=12)
    ranks = [
        Standing(
            pid=50 + n,
            rank=n,
            state="hung",
            where=(at,),
            inside="backward (torch/_tensor.py)",
            collective="backward",
        )
        for n in range(7)
    ]
    late = Standing(
        pid=99, rank=7, state="slow", where=(at,), inside=None, collective=None, is_elsewhere=True
    )
    text = to_text(
        stacks_document(Comparison(ranks=(*ranks, late), summary="Rank 7 stands elsewhere."))
    )
    assert "0-6 alike (7)" in text
    assert text.index("read_shard (data.py:12)") < text.index("backward (torch/_tensor.py)")
    assert all(len(line) <= 80 for line in text.splitlines())


def test_dumps_of_the_ranks_say_which_collective_it_is(
    hung_with_dumps: tuple[subprocess.Popen[bytes], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    started, _ = hung_with_dumps
    assert main(["attach", str(started.pid), "--looks", "2", "--every", "0"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "rank 1 issued broadcast (share_settings, train.py:71)" in printed
    assert "2 of 2 ranks dumped" in printed


def test_dumps_that_cannot_be_read_say_nothing_of_collectives(
    hung_with_dumps: tuple[subprocess.Popen[bytes], Path],
) -> None:
    started, folder = hung_with_dumps
    for path in folder.glob("nccl_trace_rank_*"):
        path.write_bytes(b"")
    hang, words = find_hang_of(find_ranks([started.pid]))
    assert hang is None
    assert mentions(words, "dumps", "not be read")


def test_dumps_from_before_the_process_are_not_its_own(
    hung_with_dumps: tuple[subprocess.Popen[bytes], Path],
) -> None:
    started, folder = hung_with_dumps
    ranks = find_ranks([started.pid])
    assert all(dump_of(rank) is not None for rank in ranks)
    for path in folder.glob("nccl_trace_rank_*"):
        os.utime(path, (1, 1))
    assert [dump_of(rank) for rank in ranks] == [None, None]
    assert find_hang_of(ranks) == (None, "")


def test_only_a_pipe_is_asked_for_a_dump(tmp_path: Path) -> None:
    """A file of that name stays as it is, and a pipe that nobody reads is not waited for."""
    (tmp_path / "fr0.pipe").write_text("mine")
    os.mkfifo(tmp_path / "fr1.pipe")
    ranks = [
        process(10 + n, 1, RANK=str(n), TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/fr")
        for n in range(2)
    ]
    assert find_hang_of(ranks) == (None, "")
    assert (tmp_path / "fr0.pipe").read_text() == "mine"
    reader = os.open(tmp_path / "fr1.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert _ask(ranks[1])
        assert os.read(reader, 8) == b"1\n"
    finally:
        os.close(reader)
