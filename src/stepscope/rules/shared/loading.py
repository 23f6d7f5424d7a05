"""The input loader: its calls, the time per step in them, and what more workers leave of it.

What a loader's worker processes bring, by how many there are.

One worker takes `batch_ns` for what a step needs, so n bring it every 1/n of that; all of them
together, and the training process, have the rank's cores. Time in which a worker waits for a disk
or a network needs no core.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from stepscope.analyses.host.loader import FETCH_NS, MESSAGE_NS, TENSOR_NS
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.core.run import RankMetadata
from stepscope.core.trace import NONE, Float64, Int64
from stepscope.replay.changes import with_part_ns
from stepscope.replay.graph import Graph
from stepscope.replay.simulate import play
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.pcie_copies import TO_DEVICE, copy_tasks, per_step, sizes

SEND_NS_PER_BYTE = 0.4
"""Nanoseconds a byte that the worker spends sending: each page of shared memory is new to it (0.5
to 0.7 ms a megabyte of collated batches on that ARM core, at most 0.3 on the x86 host: one worker
of a board's mnasnet_serial)."""
TAKE_NS_PER_BYTE = 0.1
"""Nanoseconds a byte that the training process spends taking, where no thread that pins does it."""
BISECTIONS = 8


class Handover(Struct, frozen=True, kw_only=True):
    """What batches of a step cost that come from other processes, beside making them."""

    fetch_ns: float
    """Time of the training process to fetch a step's batches."""
    send_ns: float
    """Time of the workers to send a step's batches."""


@once_a_case
def handover(case: Case) -> Handover:
    """Handover by the tensors of a batch and their bytes: as a run recorded them, else what is
    copied to the device in a step."""
    loader = None if case.metadata is None else case.metadata.loader
    steps = None if case.metadata is None else case.metadata.steps
    num_batches = (None if steps is None else steps.num_batches) or 1.0
    if loader is None or loader.batch_tensors is None or loader.batch_bytes is None:
        return Handover(fetch_ns=FETCH_NS, send_ns=SEND_NS_PER_BYTE * _copied_bytes(case))
    each_ns = MESSAGE_NS + TENSOR_NS * loader.batch_tensors
    taken_ns = TAKE_NS_PER_BYTE * loader.batch_bytes if case.graph.on_host else 0.0
    return Handover(
        fetch_ns=num_batches * (each_ns + taken_ns),
        send_ns=num_batches * (each_ns + SEND_NS_PER_BYTE * loader.batch_bytes),
    )


def _copied_bytes(case: Case) -> float:
    if case.graph.on_host:
        return 0.0
    copied = sizes(case)[copy_tasks(case, TO_DEVICE)]
    return per_step(case.graph, float(np.nansum(copied)))


def loading_frames(case: Case, calls: Int64) -> tuple[Int64, Float64]:
    """What the user's code does in the loader's calls: its outermost frames there, and the calls
    with what time is left."""
    trace, parent, stacks = case.context.trace, case.context.links.parent, case.stacks
    own = trace.dur_ns.astype(np.float64)
    if stacks is None or len(calls) == 0:
        return calls, own[calls]
    called = np.zeros(len(trace), np.bool_)
    called[calls] = True
    frames = np.flatnonzero(stacks.user)
    inside = ancestor_with(parent, frames, called)
    outermost = ancestor_with(parent, parent[frames], stacks.user | called) == inside
    frames, inside = frames[(inside != NONE) & outermost], inside[(inside != NONE) & outermost]
    np.subtract.at(own, inside, trace.dur_ns[frames])
    events = np.concatenate([frames, calls])
    return events, np.maximum(own[events], 0.0)


def input_per_step(graph: Graph) -> Float64:
    """The host's time in the loader, per step that has any.

    A batch is fetched after the last call of the step before, and the first fetch may lie before
    the first call: a step at either end of the recording can be without.
    """
    inside = graph.call_step >= 0
    totals = np.bincount(
        graph.call_step[inside], graph.call_parts["input"][inside], minlength=graph.num_steps
    )
    return totals[totals > 0].astype(np.float64)


def with_input(graph: Graph, factor: float, least_ns: float = 0.0) -> Graph:
    """The loader's calls take `factor` of their time, and `least_ns` (or what they take now, if
    that is less) at least."""
    part = graph.call_parts["input"]
    return with_part_ns(graph, "input", np.maximum(part * factor, np.minimum(part, least_ns)))


def loaded_every(graph: Graph, batch_ns: float, fetch_ns: float = FETCH_NS) -> Graph:
    """Batches come from beside the step, one every `batch_ns`: the step waits only if it is done
    before that."""
    free = with_input(graph, 0.0, fetch_ns)
    if play(free).step_interval_ns >= batch_ns:
        return free
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if play(with_input(graph, middle, fetch_ns)).step_interval_ns > batch_ns:
            high = middle
        else:
            low = middle
    return with_input(graph, high, fetch_ns)


class Policy(Struct, frozen=True, kw_only=True):
    most: int = 64
    """Workers that are ever advised."""
    close: float = 1.03
    """Times the shortest step that any number of workers gives: so near it, fewer are better."""
    memory_share: float = 0.5
    """Share of the machine's free memory that more workers may take."""
    told_share: float = 0.1
    """Share of the machine's free memory from which what workers take is mentioned."""
    least_cores: float = 0.05
    """Share of a core that a worker is reckoned to need at least."""
    computing_cores: float = 0.5
    """Share of a core below which a worker waits more than it computes."""
    least_taken: float = 0.25
    """Share of a rank's cores, taken by processes that are not of the run, from which it is
    mentioned."""


POLICY = Policy()


class Workers(Struct, frozen=True, kw_only=True):
    """What making batches in other processes costs, a step."""

    batch_ns: float
    """Time of one worker for the batches that a step takes."""
    cpu_ns: float
    """Time of that on a core."""
    rest_ns: float
    """The step that finds its batch ready."""
    rest_cpu_ns: float
    """Time on cores of all else that the rank does in a step."""
    cores: float | None
    """Cores that the rank has, or others leave to it; None: not known."""

    def interval_ns(self, num: int) -> float:
        """How often so many bring what a step takes."""
        alone = self.batch_ns / num
        if self.cores is None:
            return alone
        return max(alone, (self.cpu_ns + self.rest_cpu_ns) / self.cores)

    def step_ns(self, num: int) -> float:
        return max(self.rest_ns, self.interval_ns(num))

    @property
    def cores_each(self) -> float:
        """Share of a core that one worker keeps busy."""
        return min(1.0, max(self.cpu_ns / max(self.batch_ns, 1.0), POLICY.least_cores))

    @property
    def computes(self) -> bool:
        """Whether a worker needs a core for most of its time."""
        return self.cores_each >= POLICY.computing_cores

    def most(self, metadata: RankMetadata, now: int = 0) -> int:
        """How many fit: into the cores, and beyond those there are now into the memory."""
        most = POLICY.most
        if self.cores is not None:
            most = min(most, max(1, round(self.cores / self.cores_each)))
        more = more_in_memory(metadata)
        return most if more is None else min(most, now + more)

    def fewest(self, most: int) -> int:
        """The smallest number that gives about what the best up to `most` gives."""
        best = min(self.step_ns(num) for num in range(1, most + 1))
        return next(n for n in range(1, most + 1) if self.step_ns(n) <= POLICY.close * best)

    def rates(self, metadata: RankMetadata, *chosen: int) -> str:
        """Samples a second by the number of workers, where a batch's size is known."""
        size = None if metadata.loader is None else metadata.loader.batch_size
        num = None if metadata.steps is None else metadata.steps.num_batches
        samples, word = (1.0, "steps") if size is None else (size * (num or 1.0), "samples")
        tried = sorted({1, 2, 4, 8, 16, 32, *chosen})
        shown = [n for n in tried if 1 <= n <= 2 * max(chosen)]
        rates = ", ".join(f"{n}: {_rounded(samples * 1e9 / self.step_ns(n))}" for n in shown)
        return f"{word} a second by num_workers, reckoned: {rates}"


def more_in_memory(metadata: RankMetadata) -> int | None:
    """How many workers more the machine's free memory has room for; None where that is not
    known."""
    each = _each_bytes(metadata)
    if not each or metadata.memory_available_bytes is None:
        return None
    free = metadata.memory_available_bytes / max(metadata.local_ranks or 1, 1)
    return math.floor(POLICY.memory_share * free / each)


def _each_bytes(metadata: RankMetadata) -> float | None:
    """What a worker holds: as one was seen to, else as the process it is forked from, whose Python
    objects are copied as they are touched."""
    return metadata.worker_bytes or metadata.own_bytes


def memory_words(metadata: RankMetadata | None, num: int) -> str:
    """What so many workers may take of the free memory; empty where that is little, or not
    known."""
    if metadata is None or metadata.memory_available_bytes is None:
        return ""
    each, free = _each_bytes(metadata), metadata.memory_available_bytes
    if not each or num * each * max(metadata.local_ranks or 1, 1) < POLICY.told_share * free:
        return ""
    how = "was seen to hold" if metadata.worker_bytes else "may come to hold, as the process does,"
    return (
        f"a worker {how} {each / 1e9:.1f} GB: {num} of them {num * each / 1e9:.1f} of the "
        f"{free / 1e9:.1f} GB that are free"
    )


def cores_words(metadata: RankMetadata) -> str:
    """`the rank has 16 cores`, and how many of them others leave where they take some."""
    words = f"the rank has {metadata.own_cores:g} cores"
    if _are_shared(metadata):
        words += f", of which processes that are not of the run leave {metadata.free_cores:.1f}"
    return words


def free_words(metadata: RankMetadata) -> str:
    """The cores that a rank's workers can have."""
    if _are_shared(metadata):
        return f"the {metadata.free_cores:.1f} cores that other processes leave to the rank"
    return f"the {metadata.own_cores:g} cores of the rank"


def sharding_words(metadata: RankMetadata | None, num: int) -> str:
    """What several workers need of a dataset that each of them iterates by itself."""
    loader = None if metadata is None else metadata.loader
    if loader is None or not loader.is_iterable or loader.splits_itself or num < 2:
        return ""
    return (
        ", once __iter__ of the IterableDataset splits it by torch.utils.data.get_worker_info(): "
        "else every sample comes once a worker"
    )


def _are_shared(metadata: RankMetadata) -> bool:
    own, free = metadata.own_cores, metadata.free_cores
    return own is not None and free is not None and own - free >= POLICY.least_taken


def _rounded(rate: float) -> str:
    return f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}"
