"""A made-up job of several ranks: all do the same unless told otherwise; a collective waits for the
last. Microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from stepscope.analyses.collectives.matching import match
from stepscope.analyses.collectives.records import collective_records_of
from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import CollectiveArgs, Launch, Trace
from stepscope.rules.case import case_of
from stepscope.rules.job_case import JobCase, JobProposal, job_case_of
from tests.tracing import Event, call, kernel, mark, op, trace_of

US = 1_000
KERNELS = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "all_gather": "ncclDevKernel_AllGather_RING_LL",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL",
    "sendrecv": "ncclDevKernel_SendRecv",
    "all_to_all": "ncclDevKernel_SendRecv",
}
NODE = "autograd::engine::evaluate_function: {}"
ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass
class Rank:
    now: int = 0
    compute_free: int = 0
    comms_free: int = 0
    number: int = 0
    events: list[Event] = field(default_factory=list)

    def launched(
        self,
        name: str,
        host_us: float,
        inside: Sequence[str],
        collective: CollectiveArgs | None = None,
    ) -> int:
        """The host's ranges around one launch; the time from which the work may begin."""
        self.number += 1
        start, end = self.now, self.now + int(host_us * US)
        for deep, outer in enumerate(inside):
            self.events.append(op(outer, start + deep, end - deep))
        deep = len(inside)
        self.events.append(op(name, start + deep, end - deep, collective=collective))
        self.events.append(call("cudaLaunchKernel", start + 100, end - 100, self.number))
        self.now = end
        return start + 5 * US


class Fleet:
    """`fleet.compute(...)`, `fleet.collective(...)`, `fleet.step()` at the end of each step, then
    `fleet.job()`."""

    def __init__(self, num_ranks: int = 2) -> None:
        self.ranks = [Rank() for _ in range(num_ranks)]
        self.began = [0] * num_ranks
        self.num_steps = 0
        self.sequence = 0

    def _each(self, value: float | Sequence[float]) -> list[float]:
        return (
            [float(v) for v in value]
            if isinstance(value, Sequence)
            else [float(value)] * len(self.ranks)
        )

    def compute(
        self,
        us: float | Sequence[float],
        *,
        backward: bool = False,
        host_us: float | Sequence[float] = 10,
        name: str = "sm90_gemm",
        grid: Sequence[int] | None = None,
    ) -> None:
        """A kernel on every rank; `us`, `host_us` and `grid` may be given by rank. None takes place
        where `us` is 0."""
        inside = [NODE.format("MmBackward0"), "MmBackward0"] if backward else []
        for at, (rank, length, host) in enumerate(
            zip(self.ranks, self._each(us), self._each(host_us), strict=True)
        ):
            if not length:
                continue
            begin = max(rank.launched("aten::mm", host, inside), rank.compute_free + US)
            rank.compute_free = begin + int(length * US)
            detail = Launch(
                grid=(1 if grid is None else grid[at], 1, 1),
                block=(128, 1, 1),
                registers=32,
                shared_bytes=0,
                occupancy_pct=None,
            )
            rank.events.append(kernel(name, begin, rank.compute_free, rank.number, detail=detail))

    def host(self, us: float | Sequence[float]) -> None:
        for rank, spent in zip(self.ranks, self._each(us), strict=True):
            rank.now += int(spent * US)

    def collective(
        self,
        kind: str,
        size: int,
        us: float,
        *,
        inside: Sequence[str] = (),
        needed: bool = True,
        dtype: str = "Float",
        told: bool = True,
        held_us: float | Sequence[float] = 0,
        splits: Sequence[tuple[Sequence[int], Sequence[int]]] | None = None,
    ) -> None:
        """All ranks take part; `needed`: compute launched later waits for it; `held_us`: by rank,
        how long its kernel stands outside when it could begin; `splits`: by rank, rows sent to and
        received from each."""
        self.sequence += 1
        item = {"Float": 4, "Int": 4, "BFloat16": 2}[dtype]
        args = CollectiveArgs(
            name=kind,
            group="0",
            description=None,
            ranks=str(list(range(len(self.ranks)))),
            group_size=len(self.ranks),
            dtype=dtype,
            in_elements=size // item,
            out_elements=size // item,
            in_split=None,
            out_split=None,
            sequence=self.sequence,
        )
        said = [
            None
            if not told
            else args
            if splits is None
            else replace(args, in_split=str(list(rows[0])), out_split=str(list(rows[1])))
            for rows in splits or [((), ())] * len(self.ranks)
        ]
        begins = [
            max(
                rank.launched("record_param_comms", 10, inside, mine),
                rank.comms_free + US,
                rank.compute_free + 5 * US,
            )
            + int(held * US)
            for rank, mine, held in zip(self.ranks, said, self._each(held_us), strict=True)
        ]
        end = max(begins) + int(us * US)
        for rank, begin, mine in zip(self.ranks, begins, said, strict=True):
            rank.events.append(
                kernel(KERNELS[kind], begin, end, rank.number, stream=20, collective=mine)
            )
            rank.comms_free = end
            rank.compute_free = end + 2 * US if needed else rank.compute_free

    def settle(self) -> None:
        """Compute goes on when all collectives are done, as before an optimizer step."""
        for rank in self.ranks:
            rank.compute_free = max(rank.compute_free, rank.comms_free + 2 * US)

    def span(self, name: str, starts: Sequence[int]) -> None:
        """A range on every rank from these times until now."""
        for rank, start in zip(self.ranks, starts, strict=True):
            rank.events.append(op(name, start - 1, rank.now + 1))
            rank.now += 2

    @property
    def now(self) -> list[int]:
        for rank in self.ranks:
            rank.now += 2
        return [rank.now for rank in self.ranks]

    def step(self) -> None:
        for rank, began in zip(self.ranks, self.began, strict=True):
            rank.events.append(mark(f"ProfilerStep#{self.num_steps}", began, rank.now + 1))
            rank.now += 10
        self.began = [rank.now for rank in self.ranks]
        self.num_steps += 1

    def traces(self) -> list[Trace]:
        return [trace_of(*rank.events) for rank in self.ranks]

    def job(self, traces: Sequence[Trace] | None = None, step_ns: int | None = None) -> JobCase:
        cases = [
            case_of(build_context(trace, None), at, None)
            for at, trace in enumerate(traces or self.traces())
        ]
        rank_records = [collective_records_of(case.context, at) for at, case in enumerate(cases)]
        job = job_case_of(cases, rank_records, rank_records, match(rank_records), step_ns)
        assert job is not None
        return job


def gain(job: JobCase, said: JobProposal | None) -> float:
    """What the proposal gives; 1 when the rule said nothing."""
    return 1.0 if said is None else job.speedup(said.change(job.job_graph))


def ddp(
    steps: int = 4,
    *,
    buckets: Sequence[tuple[int, float]] = ((25_000_000, 400.0),),
    dtype: str = "Float",
    **compute: Any,
) -> Fleet:
    """A plain data-parallel run on two ranks: ten kernels forward, ten backward, the exchanges
    beside them, the update."""
    fleet = Fleet()
    for _ in range(steps):
        for _ in range(10):
            fleet.compute(
                compute.get("us", 100), host_us=compute.get("host_us", 10), grid=compute.get("grid")
            )
        for at in range(10):
            fleet.compute(compute.get("us", 100), backward=True, grid=compute.get("grid"))
            for size, us in buckets[at * len(buckets) // 10 : (at + 1) * len(buckets) // 10]:
                fleet.collective(
                    "all_reduce",
                    size,
                    us,
                    inside=[NODE.format(ACCUMULATE), ACCUMULATE],
                    needed=False,
                    dtype=dtype,
                )
        fleet.settle()
        fleet.compute(50, name="multi_tensor_apply_kernel")
        fleet.step()
    return fleet
