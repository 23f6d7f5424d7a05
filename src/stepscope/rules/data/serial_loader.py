"""Batches are made in the training process, and the device waits for them.

What it sees: the loader's `__next__` of a single-process DataLoader iterator on the thread that
drives the device, with the time the device stood idle meanwhile. A run recorded by `stepscope run`
shows as much of an `IterableDataset` that the training loop iterates without a DataLoader, where
its `__iter__` is a generator. A loop that makes its batches with no DataLoader is seen where a
function or a range is named for it: `next_batch`, `get_batch`, `load_batch`, `data_loading`.

Why it costs: while the process loads, decodes and collates the next batch it launches nothing; the
device finishes what it has and stands still. Nothing of that work needs to happen between two
steps. With w workers a batch is ready every 1/w of the time it takes to make one; only where that
is longer than the step does part of the wait stay. Workers that compute need a core each; those
that wait for a disk or a network share them. Handing a batch over costs both sides: a fixed time
for it and for each tensor in it, and the worker more with its bytes. A batch of hundreds of small
tensors may cost more to fetch than to make.

Where the process keeps many cores busy while it makes a batch, that may be work for which a worker
has one thread alone: then workers bring little. Threads of PyTorch's operators spin between two of
them, though, and look as busy with nothing to do. How much of it is work, no recording says: with
operators in the loader the prediction lies between both, and its range holds both.

Evidence it needs: `enumerate(DataLoader)` marks, which the profiler records by itself. A run
recorded by `stepscope run` tells the cores, how much of the loading computes, and the tensors of a
batch. Python's stacks (`--stacks`) name the function that makes a batch, and say whether it reads
files, waits for threads or computes.

What to do: give the DataLoader the `num_workers` that keep up with the step, up to the cores there
are for each rank, with `pin_memory=True` and `persistent_workers=True`. Each worker holds
`prefetch_factor` batches in host memory. A loader that takes less than a fetch from another process
does is best left where it is.

Example: 40 random-sort transforms per sample in the main process took 34 of a 65 ms step; 12
workers made it 31 ms.
"""

from __future__ import annotations

import math

from msgspec import Struct

from stepscope.analyses.grouping import median
from stepscope.analyses.host.loader import FETCH_NS, SERIAL, next_calls
from stepscope.analyses.intervals import lengths_in, union
from stepscope.core.diagnosis import Abstention
from stepscope.core.run import RankMetadata
from stepscope.core.trace import Kind
from stepscope.replay.simulate import play
from stepscope.rules.accuracy import is_rank_crowded
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.batch_making import making_of, own_calls
from stepscope.rules.shared.loading import (
    Workers,
    cores_words,
    handover,
    input_per_step,
    loaded_every,
    loading_frames,
    memory_words,
    sharding_words,
    with_input,
)

CODE = "serial-loader"
BOUND = "data"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.005
    """Share of the step spent in the loader below which nothing is reported."""
    workers: int = 8
    """Tried by the fix where the rank's cores are not known: the loading that one step needs is
    divided by it."""
    cautious_workers: int = 4
    """What eight give where cores are shared, or where the loading used several threads already."""
    hopeful_workers: int = 16
    worth: float = 1.02
    """What workers that the free cores allow must give; else all the rank's cores count."""


POLICY = Policy()
WORKER_SLOWER = 1.15
"""Times what the training process computes for a batch: workers share caches, memory and the
threads of a core with one another (1.07 to 1.2 over what a single process took, 1 to 8 workers on
an H200's host)."""
MANY_THREADS = 1.5
"""Cores in use from which more than one thread makes a batch."""


def propose(case: Case) -> Proposal | Abstention | None:
    """Take the loading off the step's path, if it is the training process that does it."""
    trace, host = case.context.trace, case.context.host
    serial = next_calls(trace, host, SERIAL)
    calls = serial if len(serial) else own_calls(case)
    if len(calls) == 0:
        return None
    per_step = input_per_step(case.graph)
    loading_ns = median(per_step) if len(per_step) else 0.0
    if loading_ns < POLICY.least_share * case.step_interval_ns:
        return None
    events, events_ns = loading_frames(case, calls)
    making, name = making_of(case, calls), str(trace.names[trace.name[calls[0]]])
    workers, sure = workers_of(case, loading_ns), workers_of(case, loading_ns, sure=True)
    num = POLICY.workers
    few, many = POLICY.cautious_workers, POLICY.hopeful_workers
    if case.metadata is not None and workers.cores is not None:
        # Who waits for its data needs no core of its own.
        limit = sure if workers.computes else workers
        most = workers.most(case.metadata)
        num = workers.fewest(min(most, limit.most(case.metadata)))
        if workers.step_ns(num) * POLICY.worth > case.step_interval_ns:
            # Too few to gain anything; who has the other cores may be gone by then.
            num = workers.fewest(most)
        many = num
        few = min(num, few)
    fetch_ns = handover(case).fetch_ns
    pinned = "" if case.graph.on_host else ", pin_memory=True"
    remedy = f"; {making.remedy}" if making is not None and making.remedy else ""
    held = memory_words(case.metadata, num)
    return Proposal(
        summary=f"The training process makes its own batches: {loading_ns / 1e6:.1f} ms a step in "
        f"which it {'trains' if case.graph.on_host else 'launches'} nothing"
        f"{'' if making is None else f', {making.words}'}.",
        action=f"DataLoader({_given(case.metadata, is_own=not len(serial))}num_workers={num}, "
        f"persistent_workers=True{pinned}){sharding_words(case.metadata, num)}; "
        f"{_least(workers, num)}{f'; {held}' if held else ''}{remedy}",
        evidence=(
            f"{len(calls)} calls of {name}",
            f"the longest took {int(trace.dur_ns[calls].max()) / 1e6:.1f} ms",
            *_settings(case, loading_ns, workers, num),
        ),
        events=events,
        events_ns=events_ns,
        change=lambda graph: loaded_every(graph, workers.interval_ns(num), fetch_ns),
        cautious=lambda graph: loaded_every(graph, _sure_ns(case, sure, few), fetch_ns),
        hopeful=lambda graph: loaded_every(graph, loading_ns / many, FETCH_NS),
    )


def _given(metadata: RankMetadata | None, *, is_own: bool) -> str:
    """What a loader needs to be given where there is none yet: the dataset gives whole batches."""
    loader = None if metadata is None else metadata.loader
    if is_own and loader is None:
        return "a Dataset whose __getitem__ makes one, batch_size=None, "
    return "dataset, batch_size=None, " if loader is not None and loader.is_bare else ""


def workers_of(case: Case, loading_ns: float, *, sure: bool = False) -> Workers:
    """What workers would take for what the training process loads in `loading_ns` a step.

    Work that several threads did in the training process is one thread's in a worker; to be sure,
    none of them only spun, and processes that are not of the run keep the cores they had, but for
    those that had nearly all: they are not there for good.
    """
    cost, metadata = handover(case), case.metadata
    rest_ns = play(with_input(case.graph, 0.0, cost.fetch_ns)).step_interval_ns
    if metadata is None or metadata.own_cores is None:
        batch_ns = loading_ns * WORKER_SLOWER + cost.send_ns
        return Workers(
            batch_ns=batch_ns, cpu_ns=batch_ns, rest_ns=rest_ns, rest_cpu_ns=0.0, cores=None
        )
    busy = _threads(metadata, loading_ns / case.step_interval_ns)
    threads = busy if sure else busy ** (1 - _operator_share(case) / 2)
    computing_ns = loading_ns * _computing_share(case, loading_ns)
    used_ns = (metadata.cores_used or 1.0) * case.step_interval_ns
    worker_ns = computing_ns * threads * WORKER_SLOWER + cost.send_ns
    return Workers(
        batch_ns=(loading_ns - computing_ns) * threads + worker_ns,
        cpu_ns=worker_ns,
        rest_ns=rest_ns,
        rest_cpu_ns=max(used_ns - computing_ns * busy, 0.0) + cost.fetch_ns,
        cores=metadata.free_cores if sure and not is_rank_crowded(metadata) else metadata.own_cores,
    )


def _computing_share(case: Case, loading_ns: float) -> float:
    """Share of the loading that is spent on a core, or in wait for one that others have. Where that
    was not timed, no more than the whole process used in a step."""
    metadata = case.metadata
    assert metadata is not None
    steps, waited = metadata.steps, metadata.held_up_share or 0.0
    if steps is not None and steps.wait_ns and steps.wait_cpu_ns is not None:
        return min(1.0, steps.wait_cpu_ns / steps.wait_ns + waited)
    if metadata.cores_used is None:
        return 1.0
    computing_ns = (metadata.cores_used + waited) * case.step_interval_ns
    return min(1.0, computing_ns / max(loading_ns, 1.0))


def _sure_ns(case: Case, workers: Workers, num: int) -> float:
    """How often so many bring a batch at least. Without a device the model computes on the same
    cores: where they are too few for both, to be sure the one waits for the other."""
    used = workers.rest_cpu_ns / max(workers.rest_ns, 1.0)
    needed = used + num * workers.cores_each
    if case.graph.on_host and workers.cores is not None and workers.cores < needed:
        return min(workers.interval_ns(num) + workers.rest_ns, case.step_interval_ns)
    return min(workers.interval_ns(num), case.step_interval_ns)


def _threads(metadata: RankMetadata, share: float) -> float:
    """Cores that making a batch keeps busy, at work or spinning: those in use over the step, less
    one for the rest of it."""
    if metadata.cores_used is None or not 0 < share <= 1:
        return 1.0
    return max(1.0, (metadata.cores_used - (1 - share)) / share)


def _operator_share(case: Case) -> float:
    """Share of the loader's time that is spent in PyTorch's operators."""
    trace, host = case.context.trace, case.context.host
    calls = next_calls(trace, host, SERIAL)
    if len(calls) == 0:
        return 0.0
    within = trace.is_kind(Kind.OP) & host.driving
    within[calls] = False
    operators = union(trace.start_ns[within], trace.end_ns[within])
    inside = lengths_in(trace.start_ns[calls], trace.end_ns[calls], operators)
    return float(inside.sum() / max(trace.dur_ns[calls].sum(), 1))


def _settings(case: Case, loading_ns: float, workers: Workers, num: int) -> tuple[str, ...]:
    metadata = case.metadata
    if metadata is None or metadata.loader is None or metadata.own_cores is None:
        return ()
    now = f"num_workers={metadata.loader.num_workers}; {cores_words(metadata)}"
    evidence = [now, workers.rates(metadata, num)]
    if not workers.computes:
        evidence.append(
            f"of the loading {1 - workers.cores_each:.0%} waits for its data, not for a core"
        )
    if case.graph.on_host:
        return tuple(evidence)
    threads = _threads(metadata, loading_ns / case.step_interval_ns)
    if threads < MANY_THREADS:
        return tuple(evidence)
    share = _operator_share(case)
    maybe = ""
    if share:
        maybe = f", {100 * share:.0f} % of the time in operators, whose threads spin between two"
    busy = f"making a batch keeps {threads:.0f} cores busy{maybe}; a worker has one thread"
    return (*evidence, busy)


def _least(workers: Workers, num: int) -> str:
    """How many workers bring a batch as often as the step without its loading needs one."""
    least = math.ceil(workers.batch_ns / max(workers.rest_ns, 1.0))
    if least > num and workers.computes:
        return f"{least} keep up, if the rank has the cores"
    least = min(least, num)
    if workers.cores is not None and num > workers.cores:
        fewest = f"at least {least}; " if least < num else ""
        return (
            f"{fewest}making a batch waits more than it computes, so workers may outnumber the "
            "rank's cores"
        )
    return f"at least {least}, at most the cores per rank"


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
