"""Gradients are exchanged after so little compute that the exchange is most of the step.

What it sees: gradient all-reduces or reduce-scatters of a step that the step waits for, once for
each batch.

Why it costs: an exchange moves as many bytes for a small batch as for a large one. Four batches for
each exchange pay for it once in four.

Evidence it needs: NCCL / RCCL kernels or gloo's collectives with their sizes, which c10d records by
itself, and backward's ranges (`ProfilerActivity.CPU`).

What to do: gradient accumulation over 4 batches, with `model.no_sync()` around forward and backward
of the first three (FSDP2: model.set_requires_gradient_sync(False)); or, where memory allows,
batches 4 times as large. Each update then sees 4 times the samples: the learning rate and its
schedule follow. The gain is in samples per second: three steps without the exchange and one with
it, replayed.

Example: four batches took 490 ms with an exchange for each, 158 ms with one for all four.
"""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from stepscope.replay.simulate import bisect
from stepscope.replay.simulate_job import JobGraph, play_job
from stepscope.rules.comms.sync_every_microbatch import unneeded_exchanges
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.messages import Messages, gradient_messages, times_ns, with_times_ns

CODE = "exchange-each-batch"
BOUND = "comms"


class Policy(Struct, frozen=True, kw_only=True):
    batches: int = 4
    """Batches for each exchange. More gives little more: three quarters of the cost are gone."""
    cautious_batches: int = 2
    least_share: float = 0.05
    """Share of the step in gradients' messages from which so large a change is proposed."""
    num_rounds: int = 8
    """Rounds of bisection: they find the messages' time to 0.4 %."""


POLICY = Policy()


def propose_job(job: JobCase) -> JobProposal | None:
    """One exchange for every few batches. One rank alone cannot tell moving from waiting."""
    if len(job.cases) < 2:
        return None
    sent = [gradient_messages(job, index) for index in range(len(job.cases))]
    steps = max(job.job_graph.parts[0].graph.num_steps, 1)
    took = float(times_ns(job.job_graph, 0, sent[0]).sum()) / steps
    if not all(len(own) for own in sent) or took < POLICY.least_share * job.step_interval_ns:
        return None
    if unneeded_exchanges(job, 0) is not None:
        # Batches are accumulated already, and exchanged all the same.
        return None
    num, size = len(sent[0]) / steps, float(sent[0].bytes.sum()) / steps / 1e6
    return JobProposal(
        summary=f"Every batch pays {took / 1e6:.1f} ms of gradient messages.",
        action=f"accumulate {POLICY.batches} batches for each exchange: with model.no_sync(): "
        "around all but the last (samples per second; each update sees as many times the samples)",
        evidence=(f"{num:.0f} gradient messages a step, {size:.0f} MB, whatever the batch",),
        change=partial(_less_often, sent=sent, batches=POLICY.batches),
        cautious=partial(_less_often, sent=sent, batches=POLICY.cautious_batches),
        changes_numerics=True,
        changes_training=True,
        alternative_to=("fp32-exchange", "exposed-collectives", "slow-link"),
    )


def _less_often(job_graph: JobGraph, sent: list[Messages], batches: int) -> JobGraph:
    """The mean of `batches` steps of which one has the exchange, as a graph whose every step has a
    shorter one: found by replay, for half the messages' time may cost none of the step."""
    with_ns = play_job(job_graph).step_interval_ns
    without_ns = play_job(_shorter(job_graph, sent, 0.0)).step_interval_ns
    mean_ns = without_ns + (with_ns - without_ns) / batches

    def is_too_low(share: float) -> bool:
        return play_job(_shorter(job_graph, sent, share)).step_interval_ns < mean_ns

    _, share = bisect(is_too_low, 0.0, 1.0, POLICY.num_rounds)
    return _shorter(job_graph, sent, share)


def _shorter(job_graph: JobGraph, sent: list[Messages], share: float) -> JobGraph:
    return with_times_ns(job_graph, sent, lambda _, now_ns: now_ns * share)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose_job=propose_job)
