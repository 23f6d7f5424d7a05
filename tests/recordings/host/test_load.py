"""vmstat, iostat, free and strace -c, as releases print them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.host_load import DiskLoad, HostLoad
from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.host import full_cores, load, short_host_memory, slow_storage
from tests.recording_texts import system_report
from tests.wording import mentions

VMSTAT = """procs -----------memory---------- ---swap-- -----io---- -system-- -------cpu-------
 r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st gu
 1  0      0 900000   1201 901234   99   99     0     9 4101  811 99  1  0  0  0  0
96  2      0 900000   1201 901234    0    0     0     9 4101  811 70 28  1  1  0  0
98  4      0 900000   1201 901234    0    0     0     9 4101  811 71 27  1  1  0  0
"""
IOSTAT = """avg-cpu:  %user   %nice %system %iowait  %steal   %idle
          61.00    1.00    8.00    0.20    0.00   29.80

Device:         rrqm/s   wrqm/s     r/s     w/s    rMB/s    wMB/s avgqu-sz   await  %util
sda               0.00     5.00    4.00    9.00     2.00    1.00     0.01     0.80   0.60
"""
FREE = """             total       used       free     shared    buffers     cached
Mem:          7.8G       7.7G       100M         0B       100M       100M
-/+ buffers/cache:       7.4G       400M
Swap:           0B         0B         0B
"""
STRACE = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 80.00    8.000000        4188     21112      4100 futex
 20.00    2.000000        1123      3466           read
------ ----------- ----------- --------- --------- ----------------
100.00   10.000000                 24578      4100 total
"""


def loads_of(tmp_path: Path, text: str) -> tuple[HostLoad, ...]:
    path = tmp_path / "load.txt"
    path.write_text(text)
    assert load.is_mine(text.encode(), "")
    return load.read_file(Source(path=path, label="load.txt")).loads


def beside(*loads: HostLoad) -> Auxiliary:
    return Auxiliary(system=system_report(loads=loads))


def test_the_first_look_of_vmstat_is_of_the_past(tmp_path: Path) -> None:
    (found,) = loads_of(tmp_path, VMSTAT)
    assert (found.num_looks, found.runnable, found.blocked) == (2, 97, 3)
    assert found.work_share == pytest.approx(0.98)
    assert found.swapped_bytes_per_s == 0
    (advice,) = full_cores.advise(beside(found))
    assert mentions(advice.summary, "98%", "97 threads")
    assert not list(short_host_memory.advise(beside(found)))


def test_a_time_behind_the_numbers_is_passed_over(tmp_path: Path) -> None:
    title, header, *rows = VMSTAT.splitlines()
    stamped = [title, f"{header} UTC", *(f"{row} 2026-05-01 10:00:01" for row in rows)]
    assert loads_of(tmp_path, "\n".join(stamped)) == loads_of(tmp_path, VMSTAT)


def test_an_older_iostat_is_read_and_idle_disks_are_no_fault(tmp_path: Path) -> None:
    (found,) = loads_of(tmp_path, IOSTAT)
    (disk,) = found.disks
    assert (disk.name, disk.reads_per_s, disk.read_bytes_per_s) == ("sda", 4.0, 2 << 20)
    assert disk.read_wait_ms == 0.8
    assert disk.busy_share == pytest.approx(0.006)
    assert found.work_share == pytest.approx(0.7)
    assert found.idle_share == pytest.approx(0.298)
    assert not slow_storage.advise(beside(found))
    assert not list(full_cores.advise(beside(found)))


def test_an_older_free_has_its_caches_apart(tmp_path: Path) -> None:
    (found,) = loads_of(tmp_path, FREE)
    assert found.memory_free_share == pytest.approx(300 / (7.8 * 1024))
    assert found.swap_used_share is None
    (advice,) = short_host_memory.advise(beside(found))
    assert mentions(advice.summary, "3.8%")


def test_a_cut_line_of_the_sum_is_no_call(tmp_path: Path) -> None:
    (whole,), (cut,) = loads_of(tmp_path, STRACE), loads_of(tmp_path, STRACE.rstrip()[:-3])
    assert cut == whole


def test_waits_between_threads_are_no_storage(tmp_path: Path) -> None:
    (found,) = loads_of(tmp_path, STRACE)
    assert [(call.name, call.num, call.share) for call in found.calls] == [
        ("futex", 21112, 0.8),
        ("read", 3466, 0.2),
    ]
    said = slow_storage.advise(beside(found))
    assert mentions(said, "futex", "80%")


@pytest.mark.parametrize(("wait_ms", "told"), [(0.1, False), (4.0, True)])
def test_a_disk_that_answers_at_once_is_not_full(wait_ms: float, told: bool) -> None:
    """An NVMe counts as busy with one request of many that it could serve."""
    disk = DiskLoad(name="nvme0n1", busy_share=0.99, read_wait_ms=wait_ms)
    found = HostLoad(path="iostat.txt", tool="iostat", num_looks=9, disks=(disk,))
    assert bool(slow_storage.advise(beside(found))) == told


def test_a_header_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="vmstat 1 30"):
        loads_of(tmp_path, VMSTAT.split(" 1  0 ", maxsplit=1)[0])


def samples() -> Iterator[tuple[str, str, bytes]]:
    for text in (VMSTAT, IOSTAT, FREE, STRACE):
        yield "host-load", "load.txt", text.encode()
