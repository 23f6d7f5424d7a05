"""Worker processes make the batches, and the training process still waits for them.

What it sees: `__next__` of a multi-process DataLoader iterator that takes far longer than fetching
a ready batch, in most steps.

Why it costs: the workers together make fewer batches than the device can use. The step then lasts
as long as one batch takes the loader, so k times the workers bring it down to 1/k of that, or to
what the rest of the step needs, whichever is longer.

Evidence it needs: `enumerate(DataLoader)` marks, which the profiler records by itself. The number
of workers and of cores is not in a trace: that is why the range is wide. A profiler slows the step,
and a loader that is nearly enough then all but keeps up: given the unprofiled step (`--step-ms`),
one recorded wait will do where the rest of the step, without what recording cost, is too short for
it. Where none waits, a rest that is too short may as well be a host that was slower in the run: the
gain is weighted by how likely it is that the loader is what the step waits for, its range begins at
no gain, and other gains lie between what a loader that limits the run leaves and what they give
without, by the same weight; else it says that it does not know. A run recorded by `stepscope run`
shows what its unprofiled steps wait, how many cores the workers use, and what more of them would
bring.

What to do: look at the cores first. If the workers and other jobs leave some idle, raise
`num_workers` to the cores per rank. If they are all busy, make a batch cheaper: decode smaller,
cache, move transforms to the GPU. If neither (workers wait for storage): shards in place of many
small files, a local copy, more `prefetch_factor`.

Example: (for illustration, not measured) two workers at 60 ms a batch feed a 12 ms step: it takes
30; eight make it 15.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct, structs

from stepscope.analyses.host.loader import FETCH_NS, WORKERS, next_calls, waiting_fetches
from stepscope.core.diagnosis import Abstention
from stepscope.core.run import RankMetadata
from stepscope.replay.changes import with_part_ns
from stepscope.replay.graph import Graph
from stepscope.replay.profiler_cost import usual_cost_ns, without_cost
from stepscope.replay.simulate import play
from stepscope.rules.case import SLOWED, Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.loading import (
    Workers,
    cores_words,
    free_words,
    input_per_step,
    loaded_every,
    memory_words,
    more_in_memory,
    sharding_words,
    with_input,
)

CODE = "starved-loader"
BOUND = "data"


class Policy(Struct, frozen=True, kw_only=True):
    more_workers: int = 4
    """Times the workers there are, as the fix tries: from the usual 2 to 4 up to the cores of a
    rank's share of a machine."""
    prefetch_factor: int = 4
    """Batches that each worker keeps ready, at least: twice PyTorch's own."""
    cautious_left: float = 0.5
    """Share of the wait that stays when storage or busy cores hold the workers up."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """More workers, if the run waits for those there are."""
    if not case.paced_by_loader:
        return _nearly_enough(case)
    trace, host = case.context.trace, case.context.host
    fetches, waiting = trace.dur_ns[next_calls(trace, host, WORKERS)], waiting_fetches(trace, host)
    per_step = input_per_step(case.graph)
    waited_ms = float(np.mean(per_step)) / 1e6 if len(per_step) else 0.0
    # A batch that was ready tells what fetching one takes.
    fetch_ns = float(fetches[~waiting].min(initial=FETCH_NS))
    workers, now = workers_of(case, fetch_ns), _num_workers(case.metadata)
    interval_ns, more = case.step_interval_ns / POLICY.more_workers, None
    if case.metadata is not None and workers is not None and now:
        more = max(now, workers.fewest(max(now, workers.most(case.metadata, now))))
        interval_ns = workers.interval_ns(more)
        if more == now:
            return _full(case.metadata, now, waited_ms)
    return Proposal(
        summary=f"The loader's workers do not keep up: the training process waits {waited_ms:.1f} "
        "ms a step for its batch.",
        action=_action(case.metadata, more, _times(case.step_interval_ns, waited_ms * 1e6)),
        evidence=(
            (
                f"{int(waiting.sum())} of {len(fetches)} fetches waited, "
                f"{float(np.mean(fetches)) / 1e6:.1f} ms on average"
            ),
            *_settings(case, workers, more),
        ),
        change=lambda graph: loaded_every(graph, interval_ns, fetch_ns),
        cautious=lambda graph: with_input(graph, POLICY.cautious_left, fetch_ns),
        hopeful=lambda graph: with_input(graph, 0.0, fetch_ns),
    )


def _full(metadata: RankMetadata, now: int, waited_ms: float) -> Abstention:
    """More workers would bring nothing: what a batch costs must go down, by how much is open."""
    full = "1 worker fills" if now == 1 else f"{now} workers fill"
    if more_in_memory(metadata) == 0:
        full += " the machine's memory"
    elif metadata.own_cores is not None:
        full += f" {free_words(metadata)}"
    else:
        full = f"{now} workers are as many as are ever advised"
    return Abstention(
        code=CODE,
        reason=f"waiting for workers that do not keep up, {waited_ms:.1f} ms a step: {full}",
        needs="cheaper transforms, faster storage, or cores that nobody uses",
    )


def _nearly_enough(case: Case) -> Proposal | Abstention | None:
    """Whether the workers keep up with the run is not in a recording that it was slowed by."""
    num_fetches = len(next_calls(case.context.trace, case.context.host, WORKERS))
    recorded_ns = case.facts.steps.step_interval_ns
    is_timed = case.metadata is not None and case.metadata.steps is not None
    if not num_fetches or is_timed or recorded_ns is None:
        return None
    if case.step_interval_ns > SLOWED * recorded_ns:
        return None
    if case.wait_probability:
        return _may_fall_short(case, recorded_ns, num_fetches)
    return Abstention(
        code=CODE,
        reason=f"while recorded, a step takes {recorded_ns / 1e6:.1f} ms and waits for no batch; "
        f"whether its workers bring one every {case.step_interval_ns / 1e6:.1f} ms or faster, as "
        "gains suppose, is not known",
        needs="a run recorded by stepscope run, which times it",
    )


def _may_fall_short(case: Case, recorded_ns: float, num_fetches: int) -> Proposal:
    """What the step takes longer than the recording says is the workers' doing or the host's, which
    was slower in the run: the gain is weighted by how likely the one is."""
    step_ms, recorded_ms = case.step_interval_ns / 1e6, recorded_ns / 1e6
    rest_ms = play(_without_wait(case, case.graph, 1.0)).step_interval_ns / 1e6
    return Proposal(
        summary=f"The loader's workers may fall short: a step takes {step_ms:.1f} ms, where about "
        f"{rest_ms:.1f} were recorded beside the profiler's usual cost.",
        action=_action(case.metadata, None, _times(step_ms, step_ms - rest_ms)),
        evidence=(
            f"{num_fetches} fetches found their batch ready, at {recorded_ms:.1f} ms a step",
            (
                f"that they fall short is {case.wait_probability:.0%} likely, else the host was "
                "slower in the run; stepscope run times the wait"
            ),
        ),
        change=lambda graph: _without_wait(case, graph, case.wait_probability),
        cautious=lambda graph: graph,
        hopeful=lambda graph: _without_wait(case, graph, 1.0),
    )


def _without_wait(case: Case, graph: Graph, share: float) -> Graph:
    """The host's time is what was recorded less the usual cost of that, for what was fitted to the
    whole step; as far towards it as that share of its logarithm."""
    recorded = case.recorded
    assert recorded is not None
    usual = without_cost(recorded, usual_cost_ns(recorded)).call_parts["work"]
    fitted = np.maximum(case.graph.call_parts["work"], 1.0)
    shorter = graph.call_parts["work"] * np.minimum(usual / fitted, 1.0) ** share
    return with_part_ns(with_input(graph, 1.0), "work", shorter)


def workers_of(case: Case, fetch_ns: float) -> Workers | None:
    """What the workers there are take: they bring a batch a step, and none of them rests."""
    metadata, now = case.metadata, _num_workers(case.metadata)
    if metadata is None or not now:
        return None
    step_ns = case.step_interval_ns
    busy = metadata.children_cores
    if busy is None:
        busy = now * (metadata.busiest_worker_cores or 1.0)
    used = metadata.cores_used or busy
    workers = Workers(
        batch_ns=now * step_ns,
        cpu_ns=min(busy, now) * step_ns,
        rest_ns=play(with_input(case.graph, 0.0, fetch_ns)).step_interval_ns,
        rest_cpu_ns=max(used - busy, 0.0) * step_ns,
        cores=metadata.own_cores,
    )
    # Who waits for its data needs no core of its own.
    return structs.replace(workers, cores=metadata.free_cores) if workers.computes else workers


def _num_workers(metadata: RankMetadata | None) -> int:
    return 0 if metadata is None or metadata.loader is None else metadata.loader.num_workers or 0


def _action(metadata: RankMetadata | None, more: int | None, times: int) -> str:
    """More workers, and more batches of each kept ready."""
    loader = None if metadata is None else metadata.loader
    depth = max(
        POLICY.prefetch_factor, 2 * ((None if loader is None else loader.prefetch_factor) or 0)
    )
    busy = "if the cores are busy already (top), cheaper transforms or faster storage"
    if more is None or metadata is None:
        return (
            f"DataLoader(prefetch_factor={depth}), and num_workers {times} times what it is now (a "
            f"trace does not hold it), at most the cores per rank; {busy}"
        )
    sharded = sharding_words(metadata, more)
    held = memory_words(metadata, more)
    told = f"{held}; {busy}" if held else busy
    return f"DataLoader(num_workers={more}, prefetch_factor={depth}){sharded}; {told}"


def _settings(case: Case, workers: Workers | None, more: int | None) -> tuple[str, ...]:
    metadata = case.metadata
    if metadata is None or workers is None or more is None:
        return ("the number of workers and idle cores is not in the trace",)
    busy = ""
    if metadata.busiest_worker_cores is not None:
        busy = f", the busiest uses {metadata.busiest_worker_cores:.0%} of a core"
    cores = "" if metadata.own_cores is None else f"; {cores_words(metadata)}"
    now = _num_workers(metadata)
    return f"num_workers={now}{busy}{cores}", workers.rates(metadata, now, more)


def _times(step_interval_ns: float, waited_ns: float) -> int:
    """How many times the workers there are it takes to bring a batch in the step without its wait;
    they are busy all the time."""
    return min(
        max(math.ceil(step_interval_ns / max(step_interval_ns - waited_ns, 1.0)), 2),
        POLICY.more_workers,
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
