"""One rank keeps all the others waiting.

What it sees: with the ranks replayed together, one whose own step is longer than the others', and
collectives at which it arrives last, step after step. Clocks are aligned on the ends of collectives
first: a clock that is off makes nobody late.

Why it costs: a collective moves its bytes when the last rank has arrived. The late rank's own
collectives are the shortest, so it looks the healthiest of all; the others spend the difference
waiting.

Evidence it needs: traces of all ranks, or of several at least; launches (`ProfilerActivity.CPU`) to
tell a slow host.

What to do: look at that rank's input (one slow shard or disk), its host (another process, a
debugger, fewer cores, a different NUMA node), its device (clocks, power: see throttled-gpu). The
evidence says what it does more of than the others.

Example: one of two ranks slept 60 ms before each backward pass: 188 ms a step, 133 ms without.
"""

from __future__ import annotations

from msgspec import Struct

from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.shared.rank_speed import PART_WORDS, at_speed, excess, rank_speeds

CODE = "late-rank"
BOUND = "imbalance"
NEEDS_DEVICE = False


class Policy(Struct, frozen=True, kw_only=True):
    least_excess: float = 0.03
    """Of the step, by which a rank's own step must be longer than the others'."""
    hidden: float = 0.1
    """Of the excess that is seen as lateness, below which the recording hides it."""
    least_ratio: float = 1.5
    """Of what it does more of, to what the others do: hosts of one machine differ by a quarter for
    no reason of the run's."""
    most_compute: float = 0.5
    """Of that excess in kernels, from which it is more work, not lateness: uneven-work."""


POLICY = Policy()


def propose_job(job: JobCase) -> JobProposal | None:
    """That rank as fast as the others."""
    if len(job.cases) < 2:
        return None
    speeds = rank_speeds(job)
    index = speeds.slowest
    usual = speeds.others(speeds.alone_ns, index)
    over = speeds.alone_ns[index] - usual
    part, more = excess(speeds, index)
    if (
        over < POLICY.least_excess * job.step_interval_ns
        or part == "compute"
        or more < POLICY.most_compute * over
    ):
        return None
    values = tuple(host[part] for host in speeds.host_ns)
    usual_part = speeds.others(values, index)
    if values[index] < POLICY.least_ratio * usual_part:
        return None
    rank = job.ranks[index]
    late = next((lateness for lateness in job.lateness if lateness.rank == rank), None)
    if late is None:
        arrival = []
    elif late.median_ns > POLICY.hidden * over:
        arrival = [
            f"it arrives {late.median_ns / 1e6:.1f} ms after the median rank in the recording"
        ]
    else:
        arrival = [
            (
                "the few recorded steps hide it: the hosts run ahead of the device there, which a "
                "longer run cannot"
            )
        ]

    def change(job_graph: JobGraph) -> JobGraph:
        return at_speed(job, job_graph, index, usual)

    return JobProposal(
        code=CODE,
        bound=BOUND,
        summary=f"Rank {rank} holds the others up: its own step takes "
        f"{speeds.alone_ns[index] / 1e6:.1f} ms,"
        f" theirs {usual / 1e6:.1f} ms.",
        action=f"Look at rank {rank}: its input, its host (other processes, cores, NUMA node), its "
        "device's clocks. It spends "
        f"{more / 1e6:.1f} ms a step more than the others {PART_WORDS[part]}",
        evidence=(
            (
                f"{values[index] / 1e6:.1f} ms a step {PART_WORDS[part]} there, "
                f"{usual_part / 1e6:.1f} ms elsewhere"
            ),
            *arrival,
        ),
        ranks=(rank,),
        change=change,
    )
