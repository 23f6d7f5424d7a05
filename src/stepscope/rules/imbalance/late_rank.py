"""One rank keeps all the others waiting.

What it sees: with the ranks replayed together, one whose own step is longer than the others', and collectives at which it arrives
last, step after step. Clocks are aligned on the ends of collectives first: a clock that is off makes nobody late.

Why it costs: a collective moves its bytes when the last rank has arrived. The late rank's own collectives are the shortest, so it
looks the healthiest of all; the others spend the difference waiting.

Evidence it needs: traces of all ranks, or of several at least; launches (`ProfilerActivity.CPU`) to tell a slow host.

What to do: look at that rank's input (one slow shard or disk), its host (another process, a debugger, fewer cores, a different
NUMA node), its device (clocks, power: see throttled-gpu). The evidence says what it does more of than the others.

Example: one of two ranks slept 60 ms before each backward pass: 188 ms a step, 133 ms without.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.shared.rank_speed import PART_WORDS, at_pace, excess, paces

CODE = "late-rank"
BOUND = "imbalance"
NEEDS_DEVICE = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    least_excess: float = 0.03
    """Of the step, by which a rank's own pace must be longer than the others'."""
    hidden: float = 0.1
    """Of the excess that is seen as lateness, below which the recording hides it."""
    least_ratio: float = 1.5
    """Of what it does more of, to what the others do: hosts of one machine differ by a quarter for no reason of the run's."""
    most_compute: float = 0.5
    """Of that excess in kernels, from which it is more work, not lateness: uneven-work."""


POLICY = Policy()


def propose_job(job: JobCase) -> JobProposal | None:
    """That rank at the others' pace."""
    if len(job.cases) < 2:
        return None
    found = paces(job)
    place = found.slowest
    usual = found.others(found.alone_ns, place)
    over = found.alone_ns[place] - usual
    part, more = excess(found, place)
    if over < POLICY.least_excess * job.step_interval_ns or part == "compute" or more < POLICY.most_compute * over:
        return None
    values = tuple(host[part] for host in found.host_ns)
    if values[place] < POLICY.least_ratio * found.others(values, place):
        return None
    rank = job.ranks[place]
    late = next((one for one in job.lateness if one.rank == rank), None)
    if late is None:
        seen = []
    elif late.median_ns > POLICY.hidden * over:
        seen = [f"it arrives {late.median_ns / 1e6:.1f} ms after the median rank in the recording"]
    else:
        seen = ["the few recorded steps hide it: the hosts run ahead of the device there, which a longer run cannot"]

    def change(job_graph: JobGraph) -> JobGraph:
        return at_pace(job, job_graph, place, usual)

    return JobProposal(
        code=CODE,
        bound=BOUND,
        summary=f"Rank {rank} holds the others up: its own step takes {found.alone_ns[place] / 1e6:.1f} ms,"
        f" theirs {usual / 1e6:.1f} ms.",
        action=f"Look at rank {rank}: its input, its host (other processes, cores, NUMA node), its device's clocks. It spends "
        f"{more / 1e6:.1f} ms a step more than the others {PART_WORDS[part]}",
        evidence=(
            f"{values[place] / 1e6:.1f} ms a step {PART_WORDS[part]} there, {found.others(values, place) / 1e6:.1f} ms elsewhere",
            *seen,
        ),
        ranks=(rank,),
        change=change,
    )
