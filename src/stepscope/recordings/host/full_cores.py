"""All cores of the host are busy, and threads wait for one.

What it sees: `vmstat` or `iostat` with no idle time on any core.

Why it costs: the thread that launches kernels waits for a core like any other. Workers of a loader
that are more than the cores, or libraries that start a thread for each core in each of them, make
one another slower.

Evidence it needs: vmstat or iostat, taken while the job trains.

What to do: `top -H` says who: loader workers at work are the input (fewer of them with
OMP_NUM_THREADS=1, transforms on the device, samples prepared beforehand); threads of one process
are operators on the host (torch.set_num_threads).

Example: 97 threads that run or wait, 98 % of the cores' time at work.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule

CODE = "full-cores"
BOUND = "host"


class Policy(Struct, frozen=True, kw_only=True):
    least_work: float = 0.9
    """Share of all cores' time at work from which they are full: the rest is left in the gaps
    between threads."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> Iterator[Advice]:
    """One for each recording that shows it."""
    for load in () if auxiliary.system is None else auxiliary.system.loads:
        if load.work_share is None or load.work_share < POLICY.least_work:
            continue
        ready = (
            "" if load.runnable is None else f"; {load.runnable:.0f} threads run or wait for one"
        )
        yield Advice(
            code=CODE,
            bound=BOUND,
            summary=f"The host's cores are busy {load.work_share:.0%} of the time{ready}.",
            action="top -H names them: loader workers want fewer workers, OMP_NUM_THREADS=1 or "
            "their work on the device; threads of one process torch.set_num_threads",
            evidence=(f"{load.tool}: {load.num_looks} look(s) at all cores",),
            weight=load.work_share,
            weight_of="the cores' time",
        )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
