"""Files' pages are fetched from the disk again and again: memory does not hold the data.

What it sees: major faults that `perf stat` counted, or samples of `perf script` in which the kernel
fetches pages of files.

Why it costs: a page that is not in memory takes a tenth of a millisecond from a local disk and
several from a network's; the loader worker that touched it stands still meanwhile. Memory-mapped
datasets (numpy.memmap, Arrow, token files) fault once a page.

Evidence it needs: `perf stat -e major-faults,page-faults,task-clock`, or `perf record -g` with the
kernel's frames.

What to do: read in order and in large pieces, keep shards that fit in memory, raise the container's
memory limit (its page cache counts), copy the data to a local disk, or ask for readahead
(`madvise(MADV_WILLNEED)`, `vmtouch`).

Example: eight loader workers that pick random rows of a 2 TB memory map on a machine of 256 GB
fault for nearly every row.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.system import HostCounters, HostStacks

CODE = "page-cache-misses"
BOUND = "data"
ACTION = (
    "read in order and in larger pieces, keep shards that fit in memory, raise the container's "
    "memory limit, or copy the data to a local disk"
)


class Policy(Struct, frozen=True, kw_only=True):
    least_per_s: float = 100.0
    """Major faults a second: a hundredth of a thread's time at a tenth of a millisecond each; of a
    network's disk, most of it."""
    least_share: float = 0.05
    """Share of the samples. Threads that wait for the disk are not among them, so the true share is
    larger."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    if auxiliary.system is None:
        return []
    counted = [_counted(counters) for counters in auxiliary.system.counters]
    sampled = [_sampled(stacks) for stacks in auxiliary.system.stacks]
    return [advice for advice in (*counted, *sampled) if advice is not None]


def _counted(counters: HostCounters) -> Advice | None:
    if (
        counters.major_faults is None
        or not counters.elapsed_s
        or counters.major_faults < POLICY.least_per_s * counters.elapsed_s
    ):
        return None
    rate = counters.major_faults / counters.elapsed_s
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{rate:,.0f} pages a second had to be fetched from a disk while a thread waited.",
        action=ACTION,
        evidence=(
            (
                f"{counters.path}: {counters.major_faults:,.0f} major faults in "
                f"{counters.elapsed_s:.1f} s"
            ),
        ),
    )


def _sampled(stacks: HostStacks) -> Advice | None:
    share = stacks.page_read_share
    if share is None or share < POLICY.least_share:
        return None
    return Advice(
        code=CODE,
        bound=BOUND,
        summary="The kernel fetches files' pages from a disk in "
        f"{share:.0%} of the samples on cores.",
        action=ACTION,
        evidence=(
            (
                f"{stacks.path}: readahead and page reads in {share:.1%} of {stacks.amount:,.0f} "
                "samples"
            ),
        ),
        weight=share,
        weight_of="the samples on cores",
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
