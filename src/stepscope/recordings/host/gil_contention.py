"""Threads of the training process wait for the interpreter's lock.

What it sees: stacks of a profiler, with native frames and idle threads (`py-spy record --native
--idle --threads`), in which a thread stands in the wait for the GIL.

Why it costs: one thread of a process runs Python at a time. While another has the lock (metrics,
prefetching, a logger, a tokenizer in a thread pool), the thread that launches kernels stands still,
up to 5 ms at a time.

Evidence it needs: native frames and idle threads: without the first the wait has no name, without
the second it is left out.

What to do: move the other thread's Python into a process (loader workers, `multiprocessing`), make
it call code that releases the lock, or do the work less often; `sys.setswitchinterval` below 5 ms
shortens each wait and fixes nothing.

Example: three threads that all compute in Python stand in this wait for two thirds of their
samples: the process does the work of one.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.system import HostStacks, HostThread

CODE = "gil-contention"
BOUND = "host"
MAIN = "MainThread"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.1
    """Share of a thread's own samples that wait for the lock. The wait for a lock that nobody else
    wants is never seen."""
    least_seen: float = 0.02
    """Share of all samples that must be a thread's for its own shares to be more than chance."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    """The main thread where it has a name, or else the one that waits most."""
    if auxiliary.system is None:
        return []
    return [
        advice
        for advice in (_judged(stacks) for stacks in auxiliary.system.stacks)
        if advice is not None
    ]


def _judged(stacks: HostStacks) -> Advice | None:
    sampled = [
        thread
        for thread in stacks.threads
        if thread.gil_wait_share is not None and thread.share >= POLICY.least_seen
    ]
    named = [thread for thread in sampled if MAIN in thread.name] or sampled
    if not named:
        return None
    worst = max(named, key=_waits)
    if _waits(worst) < POLICY.least_share:
        return None
    others = sorted((thread for thread in sampled if thread is not worst), key=_waits)[:2]
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"Thread {worst.name} waits for the interpreter's lock in {_waits(worst):.0%} of "
        "its samples.",
        action="move the other threads' Python into a process (loader workers, multiprocessing), "
        "or do it less often",
        evidence=tuple(
            (
                f"{thread.name}: {thread.share:.0%} of all samples, {_waits(thread):.0%} of these "
                "waiting"
            )
            for thread in (worst, *others)
        ),
        weight=_waits(worst),
        weight_of="that thread's samples",
    )


def _waits(thread: HostThread) -> float:
    return thread.gil_wait_share or 0.0


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
