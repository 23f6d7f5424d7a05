"""The host's memory is full: pages go to the swap, or a process will be killed.

What it sees: `vmstat` with pages that go to the swap and back while the job runs; `free` with
almost nothing left for programs.

Why it costs: a page that comes back from the swap takes a disk's time instead of memory's, a
thousand times as long. Without a swap the kernel ends a process: a loader's worker, or the job.

Evidence it needs: one of these, taken while the job trains.

What to do: fewer workers and a smaller prefetch_factor; datasets that workers share (numpy, Arrow,
memory maps) in place of lists and dicts, of which each worker ends up with a copy; less pinned
memory; a larger machine.

Example: 9 MB/s to the swap and 4 MB/s back, 14 threads blocked.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.host_load import HostLoad

CODE = "short-host-memory"
BOUND = "host"
ACTION = (
    "fewer workers and a smaller prefetch_factor; datasets that workers share (numpy, Arrow, "
    "memory maps); ps aux --sort=-rss names who holds it"
)


class Policy(Struct, frozen=True, kw_only=True):
    least_swapped: float = 256e3
    """Bytes a second: single pages come and go on any machine with a swap (a judgement)."""
    most_free: float = 0.05
    """Share of the memory that is free, up to which it is full."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> Iterator[Advice]:
    """One for each recording that shows it."""
    for load in () if auxiliary.system is None else auxiliary.system.loads:
        swapped, free = load.swapped_bytes_per_s, load.memory_free_share
        if swapped is not None and swapped >= POLICY.least_swapped:
            yield _advice(
                load,
                f"Memory goes to the swap and back: {swapped / 1e6:.1f} MB/s.",
                "" if load.blocked is None else f", {load.blocked:.0f} threads blocked",
            )
        elif free is not None and free <= POLICY.most_free:
            used = load.swap_used_share
            yield _advice(
                load,
                f"The host's memory is full: {free:.1%} of it is left.",
                "" if used is None else f", {used:.0%} of the swap in use",
            )


def _advice(load: HostLoad, summary: str, more: str) -> Advice:
    looks = "one look" if load.num_looks == 1 else f"{load.num_looks} looks"
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=summary,
        action=ACTION,
        evidence=(f"{load.tool}: {looks}{more}",),
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
