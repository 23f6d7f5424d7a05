"""The ranks' work shared out evenly: kernels between the same two collectives, and the bytes of uneven exchanges."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyses.collectives.link_fit import cost_of
from stepscope.core.trace import NONE, Bool, CollectiveArgs, Float64, Int64
from stepscope.protocol.untrusted import parse_json
from stepscope.replay.job import with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase
from stepscope.rules.shared.messages import messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One rank's side of an all-to-all, in rows; what it keeps for itself does not travel."""

    total: int
    sent: int
    received: int
    num_ranks: int


def evened(job: JobCase, job_graph: JobGraph) -> JobGraph:
    """Every rank has the average of the ranks' kernels between any two collectives, and exchanges carry equal shares.

    Stretch by stretch and not step by step: a rank that lacks the work of the experts has all the rest, as large as anyone's, and
    its optimizer does not grow with the tokens that it would be sent.
    """
    busy = [_busy(job, place) for place in range(len(job.cases))]
    number, stretch = np.unique(np.concatenate([stretches(job, place) for place in range(len(job.cases))]), return_inverse=True)
    bounds = np.cumsum([len(part.graph) for part in job_graph.parts])[:-1]
    mine = np.split(stretch.reshape(-1), bounds)
    sums = np.array(
        [
            np.bincount(at[mask], part.graph.task_ns[mask], minlength=len(number))
            for part, at, mask in zip(job_graph.parts, mine, busy, strict=True)
        ]
    )
    average = sums.mean(axis=0)
    graphs = []
    for part, at, mask, own in zip(job_graph.parts, mine, busy, sums, strict=True):
        factor = np.where(own > 0, average / np.maximum(own, 1.0), 1.0)
        graphs.append(replace(part.graph, task_ns=np.where(mask, part.graph.task_ns * factor[at], part.graph.task_ns)))
    return _balanced(job, with_graphs(job_graph, graphs))


def _balanced(job: JobCase, job_graph: JobGraph) -> JobGraph:
    """Of what an uneven exchange's bytes take by the job's own line, the share is left that even splits would have."""
    share, size = balanced_shares(job), np.zeros(len(job_graph.moving_ns))
    for place in range(len(job.cases)):
        sent = messages(job, place, lambda kind: kind.op == "all_to_all")
        tied = (sent.number != NONE) & ~np.isnan(sent.bytes)
        np.maximum.at(size, sent.number[tied], sent.bytes[tied])
    cost = cost_of(size, job_graph.moving_ns)
    if cost is None:
        return job_graph
    less = np.minimum((1 - share) * size / cost.beta_bytes_per_ns, (1 - share) * job_graph.moving_ns)
    return replace(job_graph, moving_ns=job_graph.moving_ns - less)


def _busy(job: JobCase, place: int) -> Bool:
    kinds = job.cases[place].kinds
    assert kinds is not None
    mask: Bool = kinds.arithmetic | kinds.memory
    return mask


def stretches(job: JobCase, place: int) -> Int64:
    """Per task of a rank, a number for its step and the collective launched last before it, the same on all ranks. Sends and
    receives do not count: what stands between them is another stage's on every rank."""
    part = job.job_graph.parts[place]
    between = np.zeros(len(part.graph), np.bool_)
    between[messages(job, place, lambda kind: kind.op in ("send", "recv", "sendrecv")).task] = True
    return numbered(np.where(between, NONE, part.shared), part.graph.task_step, len(job.job_graph.moving_ns) + 1)


def numbered(shared: Int64, step: Int64, num: int) -> Int64:
    """One number for the step and the last collective before; `num` is more than any collective's.

    shared     .  3  .  .  7  .
    step       0  0  0  1  1  1
    number     0  4  4  a  b  b     a = 4 + num, b = 8 + num
    """
    if not len(shared):
        return shared
    at = np.maximum.accumulate(np.where(shared != NONE, np.arange(len(shared)), -1))
    last: Int64 = np.where(at >= 0, shared[np.maximum(at, 0)] + 1, 0)
    found: Int64 = last + np.maximum(step, 0) * num
    return found


def balanced_shares(job: JobCase) -> Float64:
    """Per collective, the rows that travel at the busiest rank when every rank sends to all alike, over those that do now; 1
    where the splits are not recorded for all its ranks."""
    sides: dict[int, list[Exchange]] = {}
    for place in range(len(job.cases)):
        trace, graph = job.cases[place].context.trace, job.job_graph.parts[place].graph
        sent = messages(job, place, lambda kind: kind.op == "all_to_all")
        for task, number, kind in zip(sent.task.tolist(), sent.number.tolist(), sent.kind, strict=True):
            said = trace.collective[graph.task_event[task]]
            if number == NONE or said == NONE or job.ranks[place] not in kind.group_ranks:
                continue
            if side := exchange_of(trace.collectives[said], kind.group_ranks.index(job.ranks[place])):
                sides.setdefault(number, []).append(side)
    share = np.ones(len(job.job_graph.moving_ns))
    for number, mine in sides.items():
        num = mine[0].num_ranks
        busiest = max(max(side.sent, side.received) for side in mine)
        if len(mine) == num and busiest:
            share[number] = min(1.0, sum(side.total for side in mine) / num * (num - 1) / num / busiest)
    return share


def exchange_of(args: CollectiveArgs, own: int) -> Exchange | None:
    """What a rank sends and receives, by its recorded splits; None where they are not told."""
    sent, received = _sizes(args.in_split), _sizes(args.out_split)
    if not sent or len(sent) != len(received) or own >= len(sent):
        return None
    return Exchange(total=sum(sent), sent=sum(sent) - sent[own], received=sum(received) - received[own], num_ranks=len(sent))


def _sizes(split: str | None) -> list[int]:
    try:
        found = parse_json(split or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) and all(isinstance(n, int) and n >= 0 for n in found) else []
