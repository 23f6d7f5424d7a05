"""From where on triage says what, and the shape of its answer."""

from __future__ import annotations

from msgspec import Struct

RECORD = "stepscope run -- python train.py records a trace"
LARGER_QUOTA = "a larger CPU limit (Kubernetes: resources.limits.cpu)"


class Policy(Struct, frozen=True, kw_only=True):
    most_idle: float = 0.02
    """Cores below which a process does nothing: one that only wakes to look whether it may go
    on."""
    most_wakes: float = 2.0
    """A second, of a main thread that waits for what does not come: whoever waits with a time limit
    wakes to look. One that goes on after reads, pauses or other ranks wakes more often."""
    most_resting: float = 0.1
    """Cores below which a rank rests, beside one that does not."""
    most_moved: float = 1e5
    """Bytes a second, over all processes, below which nothing is read or written: logs and
    heartbeats take less."""
    least_device: float = 0.7
    """Share of the time with a kernel, from which the device is what the job waits for."""
    full_device: float = 0.9
    """Share of the time busy from which its idle time is not mentioned."""
    least_busy: float = 0.7
    """Cores wanted, from which a process that does one thing after the other hardly rests."""
    least_io: float = 0.2
    """Share of the looks in an uninterruptible wait: a process that reads from memory's cache is
    never seen in one."""
    least_read: float = 10e6
    """Bytes a second, over all workers, that show that input is read at all."""
    least_held: float = 0.1
    """Share of the time held back by a quota."""
    least_queued: float = 0.25
    """Share of what ranks want, waited for: below it others on the machine cost little."""
    least_others: float = 0.25
    """Share of the job's cores, used by others."""
    least_loader: float = 0.3
    """Share of a rank's stacks, in the loader."""


POLICY = Policy()


class Answer(Struct, frozen=True):
    state: str
    summary: str
    first: str
