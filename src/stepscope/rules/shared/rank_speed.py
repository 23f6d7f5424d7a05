"""Each rank's own step time, and what the slowest rank does more of than the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.core.trace import Bool
from stepscope.replay.graph import HOST_PARTS, Graph
from stepscope.replay.job import alone
from stepscope.replay.simulate_job import JobGraph, play_job
from stepscope.rules.job_case import JobCase, with_rank

BISECTIONS = 8
PART_WORDS = {
    "input": "in its loader", "allocator": "in the allocator", "compile": "compiling",
    "io": "saving or loading", "gc": "collecting garbage", "transfer": "feeding copies",
    "comms": "in collectives of the host", "operators": "in its operators",
    "work": "in its own host work",
}  # fmt: skip


class RankSpeeds(Struct, frozen=True, kw_only=True):
    """Steps of the ranks of a job if none ever had to wait for another, and what they are made of.
    Nanoseconds a step."""

    alone_ns: tuple[float, ...]
    host_ns: tuple[dict[str, float], ...]
    compute_ns: tuple[float, ...]

    @property
    def slowest(self) -> int:
        return int(np.argmax(self.alone_ns))

    def others(self, values: tuple[float, ...], index: int) -> float:
        """The median of the other ranks'."""
        rest = [value for other, value in enumerate(values) if other != index]
        return float(np.median(rest)) if rest else values[index]


def rank_speeds(job: JobCase) -> RankSpeeds:
    """Play each rank alone and add up what it does."""
    host, compute = [], []
    for index, part in enumerate(job.job_graph.parts):
        steps = max(part.graph.num_steps, 1)
        host.append({name: _per_step(part.graph, name) for name in HOST_PARTS})
        busy = job.compute_tasks(index)
        compute.append(float(part.graph.task_ns[busy].sum()) / steps)
    return RankSpeeds(
        alone_ns=tuple(alone(job.job_graph)), host_ns=tuple(host), compute_ns=tuple(compute)
    )


def _per_step(graph: Graph, name: str) -> float:
    """A part of the host's time a step: of the middle step, since what is cut off at the end of a
    recording is in one step alone; batches may come in bursts, so of the loader all steps count
    that have a fetch: that of the first may lie before the recording."""
    inside = graph.call_step >= 0
    totals = np.bincount(
        graph.call_step[inside], graph.call_parts[name][inside], minlength=max(graph.num_steps, 1)
    )
    if name == "input":
        fetched = totals[totals > 0]
        return float(fetched.mean()) if len(fetched) else 0.0
    return float(np.median(totals))


def at_speed(job: JobCase, job_graph: JobGraph, index: int, target_ns: float) -> JobGraph:
    """One rank as quick as `target_ns` a step: its host's time, and its kernels' where that is not
    enough, cut down alike."""
    busy = job.compute_tasks(index)
    graph = job_graph.parts[index].graph
    for cut in (_host_cut, _whole_cut):
        if _alone(job_graph, index, cut(graph, busy, 0.0)) > target_ns:
            continue
        low, high = 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if _alone(job_graph, index, cut(graph, busy, middle)) > target_ns:
                high = middle
            else:
                low = middle
        return with_rank(job_graph, index, cut(graph, busy, low))
    return with_rank(job_graph, index, _whole_cut(graph, busy, 0.0))


def _alone(job_graph: JobGraph, index: int, graph: Graph) -> float:
    part = replace(job_graph.parts[index], graph=graph)
    return play_job(
        replace(job_graph, parts=(part,), members=np.ones_like(job_graph.members))
    ).step_interval_ns


def _host_cut(graph: Graph, _busy: Bool, factor: float) -> Graph:
    return replace(
        graph, call_parts={name: part * factor for name, part in graph.call_parts.items()}
    )


def _whole_cut(graph: Graph, busy: Bool, factor: float) -> Graph:
    return replace(
        _host_cut(graph, busy, factor),
        task_ns=np.where(busy, graph.task_ns * factor, graph.task_ns),
    )


def excess(speeds: RankSpeeds, index: int) -> tuple[str, float]:
    """What a rank does most more of than the others: a part of HOST_PARTS or `compute`, and how
    much."""
    more = {"compute": speeds.compute_ns[index] - speeds.others(speeds.compute_ns, index)}
    for name in HOST_PARTS:
        values = tuple(host[name] for host in speeds.host_ns)
        more[name] = values[index] - speeds.others(values, index)
    most = max(more, key=lambda name: more[name])
    return most, more[most]
