"""Gradients, or sharded parameters, cross the link in 32 bits.

What it sees: all-reduces and reduce-scatters of fp32 gradients in backward; all-gathers of fp32
parameters by FSDP where the products run in 16 bits all the same.

Why it costs: half the bits are half the bytes. A message takes its start and its bytes (T = alpha +
bytes / beta, through this job's own messages): the bytes' part is halved, the start stays.

Evidence it needs: the collectives' sizes and types, which c10d records by itself, and backward's
ranges (`ProfilerActivity.CPU`).

What to do: DDP: model.register_comm_hook(None, default_hooks.bf16_compress_hook) (from
torch.distributed.algorithms.ddp_comm_hooks); FSDP2:
MixedPrecisionPolicy(param_dtype=torch.bfloat16,
reduce_dtype=torch.bfloat16); FSDP1: MixedPrecision with the same two. Gradients are then summed in
bf16: compare the loss. The casts before and after are reckoned with. PowerSGD sends far less, but
what it does to training no trace can price.

Example: 208 MB of fp32 gradients a step took 117 of 125 ms over a socket; in bf16 they are 104 MB.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.core.trace import Float64
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.messages import (
    Cost,
    Messages,
    cost_of,
    gradient_messages,
    least_cost_of,
    parameter_messages,
    times_ns,
    with_times_ns,
)
from stepscope.rules.shared.rates import stream_ns

CODE = "fp32-exchange"
BOUND = "comms"
HALVES = ("bf16", "fp16")


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.02
    """Share of the step in such messages below which nothing is reported."""
    cast_traffic: float = 4.0
    """Bytes of memory traffic per byte of fp32 gradients: cast down, divided, cast up again."""
    slowest_memory: float = 300.0
    """GB/s of a device that is not known: a T4 has 320."""
    least_16_bit: float = 0.5
    """Share of the matrix kernels' time in 16 bits from which parameters need not cross in 32."""


POLICY = Policy()


class _Halved(Struct, frozen=True, kw_only=True):
    """A kind of message, and what its bytes cost."""

    sent: list[Messages]
    """Messages by rank."""
    cost: Cost
    is_cast: bool
    """Whether the device casts the whole message for it, before and after."""

    def per_step(self, job: JobCase) -> tuple[float, float]:
        """Bytes and ns of the first rank's messages a step."""
        steps = max(job.job_graph.parts[0].graph.num_steps, 1)
        times = times_ns(job.job_graph, 0, self.sent[0])
        return float(self.sent[0].bytes.sum()) / steps, float(times.sum()) / steps


def propose_job(job: JobCase) -> JobProposal | None:
    """Half the bytes of each fp32 message, and the casts that this takes."""
    gradients = _halved(job, [gradient_messages(job, at) for at in range(len(job.cases))], True)
    parameters = None
    if _computes_in_16_bits(job):
        gathers = [parameter_messages(job, at) for at in range(len(job.cases))]
        parameters = _halved(job, gathers, False)
    halved = [each for each in (gradients, parameters) if each is not None]
    figures = [each.per_step(job) for each in halved]
    size, took = (sum(column) for column in zip(*figures, strict=True)) if figures else (0.0, 0.0)
    if took < POLICY.least_share * job.step_interval_ns:
        return None
    names = ["gradients"] * (gradients is not None) + ["parameters"] * (parameters is not None)
    action = "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
    if parameters is not None or _is_sharded(gradients):
        action = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)"
    return JobProposal(
        summary=f"{size / 1e6:.0f} MB of {' and '.join(names)} cross in 32 bits in each step.",
        action=f"{action}: half the bytes",
        evidence=(
            f"{took / 1e6:.1f} ms a step of moving {size / 1e6:.0f} MB of fp32",
            *(
                f"a message takes {each.cost.alpha_ns / 1e6:.2f} ms + its bytes / "
                f"{each.cost.beta_bytes_per_ns:.2f} GB/s"
                for each in halved
            ),
        ),
        change=lambda job_graph: _in_16_bits(job, job_graph, halved, 0.5),
        cautious=lambda job_graph: _in_16_bits(job, job_graph, halved, 0.75),
        changes_numerics=True,
    )


def _halved(job: JobCase, sent: list[Messages], is_cast: bool) -> _Halved | None:
    """The fp32 ones among these messages, where every rank has some."""
    wide = [
        own.at(np.flatnonzero(np.array([kind.dtype == "fp32" for kind in own.kind], np.bool_)))
        for own in sent
    ]
    if not all(len(own) for own in wide):
        return None
    sizes = np.concatenate([own.bytes for own in wide])
    took = np.concatenate([times_ns(job.job_graph, at, own) for at, own in enumerate(wide)])
    # One rank's times hold its waiting for the others.
    cost = cost_of(sizes, took) if len(job.cases) > 1 else least_cost_of(sizes, took)
    return None if cost is None else _Halved(sent=wide, cost=cost, is_cast=is_cast)


def _is_sharded(gradients: _Halved | None) -> bool:
    return gradients is not None and any(
        kind.op == "reduce_scatter" for kind in gradients.sent[0].kind
    )


def _computes_in_16_bits(job: JobCase) -> bool:
    """Whether most of the first rank's matrix kernels do."""
    table, graph = job.cases[0].table, job.job_graph.parts[0].graph
    half = np.array([precision in HALVES for precision in table.precision], np.bool_)
    whole = float(graph.task_ns[table.is_matrix].sum())
    return float(graph.task_ns[table.is_matrix & half].sum()) > POLICY.least_16_bit * whole


def _in_16_bits(job: JobCase, job_graph: JobGraph, halved: list[_Halved], left: float) -> JobGraph:
    """Each message's bytes take `left` of their time; casts are added."""
    for each in halved:

        def new_ns(own: Messages, now_ns: Float64, each: _Halved = each) -> Float64:
            cost = each.cost
            bytes_ns = own.bytes / cost.beta_bytes_per_ns
            shorter = (cost.alpha_ns + left * bytes_ns) / (cost.alpha_ns + bytes_ns)
            casts = _casts_ns(job, own.bytes) if each.is_cast else 0.0
            return np.minimum(now_ns, now_ns * shorter + casts)

        job_graph = with_times_ns(job_graph, each.sent, new_ns)
    return job_graph


def _casts_ns(job: JobCase, size: Float64) -> Float64:
    """Time that casting each message takes."""
    roofs = job.cases[0].context.roofs
    traffic = POLICY.cast_traffic * size
    if roofs is None:
        return traffic / POLICY.slowest_memory
    return np.array([stream_ns(roofs, moved) for moved in traffic.tolist()])


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose_job=propose_job)
