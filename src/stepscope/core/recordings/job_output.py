"""What PyTorch itself said in a job's output: warnings that bear on speed, memory that ran out,
collectives that hung.

None is "not written". Bytes are as PyTorch prints them, in GiB and MiB with two digits.
"""

from __future__ import annotations

from msgspec import Struct


class Said(Struct, frozen=True, kw_only=True):
    """One warning, however often it was made."""

    kind: str
    """Kind as in `recordings/job_log/wordings.json`: unused parameters."""
    text: str
    """Text as it is written, cut."""
    line: int
    """Where it stands first, from 1."""
    num: int
    ranks: tuple[int, ...] = ()
    """Ranks whose lines name it; a line need not name its rank."""
    numbers: tuple[int, ...] = ()
    """Numbers in it, in the order of the wording: workers that are made and workers that are
    advised."""
    details: tuple[str, ...] = ()
    """Reasons that PyTorch gives in lines of their own."""


class OutOfMemory(Struct, frozen=True, kw_only=True):
    """An allocation that failed, with the figures PyTorch gives."""

    line: int
    num: int
    """How often the same was said: an error is printed by its process and by its launcher."""
    tried_bytes: int
    device: int | None = None
    ranks: tuple[int, ...] = ()
    total_bytes: int | None = None
    free_bytes: int | None = None
    """Bytes of the device that nobody holds."""
    own_bytes: int | None = None
    """Bytes of this process, with the libraries' own."""
    allocated_bytes: int | None = None
    """Bytes in tensors."""
    idle_bytes: int | None = None
    """Held by the allocator, in no tensor."""
    allowed_bytes: int | None = None
    """Bytes of the device that the process may take, where it limits itself."""
    frame: str | None = None
    """The innermost line outside of torch, of the traceback above it: `forward (model.py:35)`."""
    phase: str | None = None
    """forward, backward or optimizer, where the traceback says it."""

    @property
    def room_bytes(self) -> int | None:
        """Bytes of the device that nobody holds and that this process may have."""
        if self.allowed_bytes is None or self.allocated_bytes is None:
            return self.free_bytes
        room = max(self.allowed_bytes - self.allocated_bytes - (self.idle_bytes or 0), 0)
        return room if self.free_bytes is None else min(room, self.free_bytes)

    @property
    def others_bytes(self) -> int | None:
        """Bytes of the device held by other processes."""
        if self.total_bytes is None or self.free_bytes is None or self.own_bytes is None:
            return None
        return max(self.total_bytes - self.free_bytes - self.own_bytes, 0)

    @property
    def is_in_pieces(self) -> bool:
        """Whether what is idle and what is free would have been enough, had it been in one
        piece."""
        room = self.room_bytes
        if self.idle_bytes is None or room is None:
            return False
        return self.idle_bytes > 0 and self.idle_bytes + room >= self.tried_bytes > room


class Hang(Struct, frozen=True, kw_only=True):
    """A collective that the watchdog of NCCL gave up on."""

    line: int
    op: str
    """Operation as it is written: ALLREDUCE."""
    sequence: int
    """Number of the collective in its group."""
    timeout_s: float
    waiting: tuple[int, ...]
    """Ranks that waited in it until the time was over."""
    behind: tuple[int, ...] = ()
    """Ranks of the same group that had not even enqueued it."""
    group: str | None = None
    """Group as it is written; None where the lines do not say it."""
    elements: int | None = None
    """Elements of its input."""


class JobOutput(Struct, frozen=True, kw_only=True):
    """One file."""

    path: str
    num_lines: int
    """Lines with something in them."""
    num_read: int
    said: tuple[Said, ...] = ()
    failures: tuple[OutOfMemory, ...] = ()
    hangs: tuple[Hang, ...] = ()
