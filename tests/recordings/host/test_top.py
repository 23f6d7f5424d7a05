"""`top -b`, as procps 4.0 writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.system import PROCESS, RANK, WORKER, SystemReport
from stepscope.errors import FormatError
from stepscope.live.judge.judge import judge
from stepscope.live.shapes.triage import HOST, HUNG, INPUT_CPU, INPUT_IO, UNCLEAR
from stepscope.readers.format import Source
from stepscope.recordings.host.top import is_mine, read_file
from tests.wording import mentions

HEAD = """\
top - 16:27:{second:02} up  2:11,  0 user,  load average: 7.78, 9.36, 7.35
Tasks: 115 total,   6 running, 108 sleeping,   0 stopped,   1 zombie
%Cpu(s): 60.0 us, 20.0 sy, 20.0 ni,  0.0 id,  4.0 wa,  0.0 hi,  0.0 si,  0.0 st
MiB Mem :  24065.8 total,  16163.4 free,   3731.0 used,   4486.7 buff/cache
MiB Swap:      0.0 total,      0.0 free,      0.0 used.  20334.8 avail Mem

    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND
      1 root      20   0   38520  14552   7064 S   0.0   0.1   0:03.53 init
"""
ROW = "{pid:>7} root      20   0 1809372   1.1g 100464 {state}  {cpu:.1f}   1.3   0:04.36 {name}\n"


def screens(*rows: tuple[int, str, float, str], num: int = 4) -> str:
    first = "".join(ROW.format(pid=pid, state="S", cpu=1.0, name=name) for pid, _, _, name in rows)
    later = "".join(
        ROW.format(pid=pid, state=state, cpu=cpu, name=name) for pid, state, cpu, name in rows
    )
    return "\n".join(HEAD.format(second=2 * at) + (later if at else first) for at in range(num))


def of_text(folder: Path, text: str) -> SystemReport:
    path = folder / "top.txt"
    path.write_text(text)
    assert is_mine(text.encode(), "top.txt")
    return SystemReport(recordings=(read_file(Source(path=path, label="top.txt")),))


def test_processes_are_averaged_over_all_screens_but_the_first(tmp_path: Path) -> None:
    text = screens((7, "R", 98.0, "pt_main_thread"), (8, "D", 5.0, "pt_data_worker"))
    (host,) = of_text(tmp_path, text).hosts
    assert (host.seconds, host.num_looks, host.io_wait_share) == (6.0, 3, 0.04)
    first, second = host.processes
    assert (first.pid, first.role, first.cores, first.io_wait_share) == (7, RANK, 0.98, 0.0)
    assert (second.role, second.io_wait_share) == (WORKER, 1.0)
    assert second.cores == pytest.approx(0.05)
    assert first.queued_cores is None


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([(7, "R", 99.0, "pt_main_thread")], HOST),
        ([(7, "S", 5.0, "pt_main_thread"), (8, "R", 99.0, "pt_data_worker")], INPUT_CPU),
        ([(7, "S", 5.0, "pt_main_thread"), (8, "D", 9.0, "pt_data_wor+")], INPUT_IO),
        ([(7, "S", 0.0, "python3")], HUNG),
        ([(7, "D", 12.0, "python3"), (8, "D", 9.0, "python3")], INPUT_IO),
        ([(7, "R", 99.0, "python3")], HOST),
        ([(7, "S", 12.0, "python3"), (8, "R", 99.0, "python3")], UNCLEAR),
    ],
)
def test_it_is_judged_as_live_processes_are(
    tmp_path: Path, rows: list[tuple[int, str, float, str]], state: str
) -> None:
    assert judge(of_text(tmp_path, screens(*rows))).state == state


def test_what_top_does_not_tell_is_named(tmp_path: Path) -> None:
    text = screens((7, "R", 98.0, "python"), num=1)
    (host,) = of_text(tmp_path, text).hosts
    assert host.processes[0].role == PROCESS
    assert any("single screen" in note for note in host.not_measured)


def test_damage_is_counted_and_a_file_without_processes_refused(tmp_path: Path) -> None:
    text = screens((7, "R", 98.0, "python")) + "     9 root      20\n"
    (recording,) = of_text(tmp_path, text).recordings
    (note,) = recording.notes
    assert mentions(note, "top.txt", "1 line", "processes")
    with pytest.raises(FormatError, match="top -b -d 2"):
        of_text(tmp_path, "top - 16:27:12 up 2:11\nTasks: 1\n")


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "top", "top.txt", screens((7, "R", 98.0, "python"), (8, "D", 2.0, "python")).encode()
