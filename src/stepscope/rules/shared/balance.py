"""The ranks' work evened out: kernels between two collectives, bytes of uneven exchanges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.collectives.link_fit import cost_of
from stepscope.core.trace import NONE, CollectiveArgs, Float64, Int64
from stepscope.protocol.untrusted import parse_json
from stepscope.replay.job import with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase
from stepscope.rules.shared.messages import messages


class Exchange(Struct, frozen=True, kw_only=True):
    """One rank's side of an all-to-all, in rows; what it keeps for itself does not travel."""

    total: int
    sent: int
    received: int
    num_ranks: int


def with_even_work(job: JobCase, job_graph: JobGraph) -> JobGraph:
    """Every rank has the average of the ranks' kernels between any two collectives, and exchanges
    carry equal shares.

    Between two collectives and not step by step: a rank that lacks the work of the experts has all
    the rest, as large as anyone's, and its optimizer does not grow with the tokens that it would be
    sent.
    """
    busy = [job.compute_tasks(index) for index in range(len(job.cases))]
    number, segment = np.unique(
        np.concatenate([segments(job, index) for index in range(len(job.cases))]),
        return_inverse=True,
    )
    bounds = np.cumsum([len(part.graph) for part in job_graph.parts])[:-1]
    by_rank = np.split(segment.reshape(-1), bounds)
    sums = np.array(
        [
            np.bincount(segment_of[mask], part.graph.task_ns[mask], minlength=len(number))
            for part, segment_of, mask in zip(job_graph.parts, by_rank, busy, strict=True)
        ]
    )
    average = sums.mean(axis=0)
    graphs = []
    for part, segment_of, mask, own in zip(job_graph.parts, by_rank, busy, sums, strict=True):
        factor = np.where(own > 0, average / np.maximum(own, 1.0), 1.0)
        graphs.append(
            replace(
                part.graph,
                task_ns=np.where(mask, part.graph.task_ns * factor[segment_of], part.graph.task_ns),
            )
        )
    return _balanced(job, with_graphs(job_graph, graphs))


def _balanced(job: JobCase, job_graph: JobGraph) -> JobGraph:
    """Leave of what an uneven exchange's bytes take, by the job's own line, the share that even
    splits would have."""
    share, size = balanced_shares(job), np.zeros(len(job_graph.moving_ns))
    for index in range(len(job.cases)):
        sent = messages(job, index, lambda kind: kind.op == "all_to_all")
        tied = (sent.number != NONE) & ~np.isnan(sent.bytes)
        np.maximum.at(size, sent.number[tied], sent.bytes[tied])
    cost = cost_of(size, job_graph.moving_ns)
    if cost is None:
        return job_graph
    less = np.minimum(
        (1 - share) * size / cost.beta_bytes_per_ns, (1 - share) * job_graph.moving_ns
    )
    return replace(job_graph, moving_ns=job_graph.moving_ns - less)


def segments(job: JobCase, index: int) -> Int64:
    """Number for each task of a rank, by its step and the collective launched last before it, the
    same on all ranks. Sends and receives do not count: what stands between them is another stage's
    on every rank."""
    part = job.job_graph.parts[index]
    between = np.zeros(len(part.graph), np.bool_)
    between[messages(job, index, lambda kind: kind.op in ("send", "recv", "sendrecv")).task] = True
    return numbered(
        np.where(between, NONE, part.shared), part.graph.task_step, len(job.job_graph.moving_ns) + 1
    )


def numbered(shared: Int64, step: Int64, num: int) -> Int64:
    """One number for the step and the last collective before; `num` is more than any collective's.

    shared     .  3  .  .  7  .
    step       0  0  0  1  1  1
    number     0  4  4  a  b  b     a = 4 + num, b = 8 + num
    """
    if not len(shared):
        return shared
    position = np.maximum.accumulate(np.where(shared != NONE, np.arange(len(shared)), -1))
    last: Int64 = np.where(position >= 0, shared[np.maximum(position, 0)] + 1, 0)
    numbers: Int64 = last + np.maximum(step, 0) * num
    return numbers


def balanced_shares(job: JobCase) -> Float64:
    """Rows that travel at the busiest rank when every rank sends to all alike, over those that do
    now, per collective; 1 where the splits are not recorded for all its ranks."""
    sides: dict[int, list[Exchange]] = {}
    for index in range(len(job.cases)):
        trace, graph = job.cases[index].context.trace, job.job_graph.parts[index].graph
        sent = messages(job, index, lambda kind: kind.op == "all_to_all")
        for task, number, kind in zip(
            sent.task.tolist(), sent.number.tolist(), sent.kind, strict=True
        ):
            args_index = trace.collective[graph.task_event[task]]
            if number == NONE or args_index == NONE or job.ranks[index] not in kind.group_ranks:
                continue
            if side := exchange_of(
                trace.collectives[args_index], kind.group_ranks.index(job.ranks[index])
            ):
                sides.setdefault(number, []).append(side)
    share = np.ones(len(job.job_graph.moving_ns))
    for number, exchanges in sides.items():
        num_ranks = exchanges[0].num_ranks
        busiest = max(max(side.sent, side.received) for side in exchanges)
        if len(exchanges) == num_ranks and busiest:
            share[number] = min(
                1.0,
                sum(side.total for side in exchanges)
                / num_ranks
                * (num_ranks - 1)
                / num_ranks
                / busiest,
            )
    return share


def exchange_of(args: CollectiveArgs, own: int) -> Exchange | None:
    """What a rank sends and receives, by its recorded splits; None where they are not recorded."""
    sent, received = _sizes(args.in_split), _sizes(args.out_split)
    if not sent or len(sent) != len(received) or own >= len(sent):
        return None
    return Exchange(
        total=sum(sent),
        sent=sum(sent) - sent[own],
        received=sum(received) - received[own],
        num_ranks=len(sent),
    )


def _sizes(split: str | None) -> list[int]:
    try:
        sizes = parse_json(split or "[]")
    except ValueError:
        return []
    is_valid = isinstance(sizes, list) and all(
        isinstance(size, int) and size >= 0 for size in sizes
    )
    return sizes if is_valid else []
