"""The input waits for a disk or a network file system.

What it sees: `iostat -x` with a disk that is busy nearly all of the time and lets requests wait,
cores that wait for a disk (`vmstat`, `iostat`), or `strace -c` of the job with most of its time in
the system in opening and reading files.

Why it costs: a batch that has to come from a disk takes as long as the disk. Many small files cost
a round trip each, on a network file system two or three.

Evidence it needs: one of these, taken while the job trains. Whether the device waits meanwhile, a
trace shows.

What to do: fewer and larger files (WebDataset, Parquet, LMDB, one memory map), read in the order
they lie in; a local NVMe or enough memory for the page cache; more workers and a larger
prefetch_factor where the disk has room. Where it is writes that fill the disk: asynchronous
checkpoints.

Example: 9,200 reads of 20 KiB a second from a disk that is busy 99.6 % of the time.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stepscope.api import Abstention, Advice, Auxiliary, Rule
from stepscope.core.recordings.host_load import DiskLoad, HostLoad

CODE = "slow-storage"
BOUND = "data"
FILE_CALLS = frozenset((
    "read", "pread64", "readv", "preadv", "open", "openat", "close", "stat", "lstat", "newfstatat",
    "statx", "fstat", "lseek", "access", "faccessat", "getdents64", "readlink",
))  # fmt: skip
OPENING = ("open", "openat")


class Policy(Struct, frozen=True, kw_only=True):
    """Chosen without recordings: courses of the field call a disk above 80 % busy."""

    least_busy: float = 0.8
    least_wait_ms: float = 1.0
    """Milliseconds of a mean read: below, a disk that is always busy still answers at once (an NVMe
    serves many requests side by side)."""
    least_io_wait: float = 0.1
    """Share of all cores' time in wait for a disk."""
    least_calls: float = 0.5
    """Share of the time in the system's calls that must be reads."""
    small_bytes: float = 128 << 10
    """Bytes of a read below which it is called small: the kernel reads that much ahead."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> list[Advice] | Abstention | None:
    """One for each recording that shows it."""
    found = list(_found(auxiliary))
    loads = () if auxiliary.system is None else auxiliary.system.loads
    calls = [load.calls[0] for load in loads if load.calls]
    if found or not calls:
        return found or None
    return Abstention(
        code=CODE,
        reason=f"{calls[0].name} has {calls[0].share:.0%} of the time in the system's calls, and a "
        "wait there (futex, poll) is for something else that strace does not name",
        needs="py-spy record -p PID -f speedscope -o host.json, or stepscope run -- COMMAND",
    )


def _found(auxiliary: Auxiliary) -> Iterator[Advice]:
    for load in () if auxiliary.system is None else auxiliary.system.loads:
        worst = max(load.disks, key=lambda disk: disk.busy_share or 0.0, default=None)
        if worst is not None and _is_full(worst):
            yield _of_disk(load, worst)
        elif load.io_wait_share is not None and load.io_wait_share >= POLICY.least_io_wait:
            if not load.swapped_bytes_per_s:
                yield _of_waits(load, load.io_wait_share)
        elif load.calls:
            share = sum(call.share for call in load.calls if call.name in FILE_CALLS)
            if share >= POLICY.least_calls:
                yield _of_calls(load, share)


def _is_full(disk: DiskLoad) -> bool:
    waits = disk.read_wait_ms is None or disk.read_wait_ms >= POLICY.least_wait_ms
    return disk.busy_share is not None and disk.busy_share >= POLICY.least_busy and waits


def _of_disk(load: HostLoad, disk: DiskLoad) -> Advice:
    assert disk.busy_share is not None
    read, written = disk.read_bytes_per_s or 0.0, disk.written_bytes_per_s or 0.0
    if written > read:
        action = "asynchronous checkpoints (torch.distributed.checkpoint.async_save), less often"
    else:
        action = "a faster disk or more memory for the page cache; the data on a local disk"
        if disk.reads_per_s and read / disk.reads_per_s < POLICY.small_bytes:
            action = f"fewer and larger files (WebDataset, Parquet, one memory map); {action}"
    figures = [f"{disk.name}: {read / 1e6:.0f} MB/s read, {written / 1e6:.0f} MB/s written"]
    if disk.reads_per_s:
        figures.append(f"{disk.reads_per_s:,.0f} reads/s of {read / disk.reads_per_s / 1e3:.0f} kB")
    if disk.read_wait_ms is not None:
        figures.append(f"{disk.read_wait_ms:.1f} ms each")
    if load.io_wait_share is not None:
        figures.append(f"cores wait for it {load.io_wait_share:.0%} of the time")
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"Disk {disk.name} is busy {disk.busy_share:.0%} of the time.",
        action=action,
        evidence=(", ".join(figures),),
        weight=disk.busy_share,
        weight_of="the disk's time",
    )


def _of_waits(load: HostLoad, share: float) -> Advice:
    blocked = "" if load.blocked is None else f", {load.blocked:.0f} threads blocked"
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"The cores wait for a disk {share:.0%} of the time.",
        action="iostat -x 1 names the disk; fewer and larger files, data on a local disk or in the "
        "page cache, more workers",
        evidence=(f"{load.tool}: {share:.0%} of the cores' time in I/O wait{blocked}",),
        weight=share,
        weight_of="the cores' time",
    )


def _of_calls(load: HostLoad, share: float) -> Advice:
    mine = [call for call in load.calls if call.name in FILE_CALLS]
    opened = sum(call.num for call in mine if call.name in OPENING)
    read = sum(call.num for call in mine if call.name.startswith(("read", "pread")))
    words = "opening and reading files"
    small = "fewer and larger files (WebDataset, Parquet, one memory map); "
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{share:.0%} of the time in the system's calls is {words}: {opened:,} files "
        f"opened, {read:,} reads.",
        action=(small if opened and read < 8 * opened else "")
        + "more workers, data on a local disk; py-spy record -p PID names the line",
        evidence=tuple(
            f"{call.name}: {call.num:,} calls, {call.seconds:.1f} s" for call in mine[:4]
        ),
        weight=share,
        weight_of="the time in the system's calls",
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
