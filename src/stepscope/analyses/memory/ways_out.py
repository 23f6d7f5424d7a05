"""Out of memory: the ways out, with what each frees and costs, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct, convert
from msgspec.structs import replace

from stepscope.analyses.memory.step_needs import (
    HEAD_COPIES,
    LOSS_CHUNKS,
    Moment,
    failed_moment,
    is_of_loss,
    moments_of,
)
from stepscope.core.memory import OutOfMemoryReport, RecordedFailure, WayOut
from stepscope.core.numbers import size_words
from stepscope.core.recordings.allocator_message import FAILED, failure_figures
from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.job_output import OutOfMemory
from stepscope.core.recordings.memory import (
    ACTIVATIONS,
    GRADIENTS,
    OPTIMIZER,
    TEMPORARY,
    UNKNOWN,
    WEIGHTS,
    MemoryRecord,
)
from stepscope.core.run import RunFacts

MAX_WAYS = 3
FORWARD_SHARE = 1 / 3
"""Share of forward in forward and backward, in FLOPs: a product is done once forward and twice
backward."""
CHECKPOINTED, SURELY_CHECKPOINTED = 0.85, 0.7
"""Share of a block's activations that checkpointing frees, and the share that it frees of any,
where it is not known what blocks are given, which stays. Measured on an H200: 0.84 to 0.87 of
transformers in bf16 autocast, 0.68 to 0.71 of residual convolutions in fp32."""
MIN_HEAD = 0.05
"""Share of the highest moment that the loss must hold for another loss to be worth it."""
USUAL_BLOCKS = 10
"""Where their number is not known."""
MAX_OTHERS = 0.1
"""Share of a device, held by other processes, up to which they are not what fills it."""
SPARE = 0.1
"""Share of the room that stays free in pieces: tensors filled 82 % to 97 % of it, 91 % in the
median, in the largest batches that fit (eleven jobs on an H200)."""
SPLITS = (2, 4, 8, 16)
SHARDED = (WEIGHTS, GRADIENTS, OPTIMIZER)
UNSURE = 0.05
"""Share of a step that more and smaller micro-batches are taken to cost where they are compared
with other ways: nothing where kernels still fill the device."""


class _Shortage(Struct, frozen=True, kw_only=True):
    """What must fit at once, each in what there is; the highest first."""

    moments: tuple[Moment, ...]
    room_bytes: int
    is_whole_step: bool
    """False: of one moment alone, and what comes after it may ask for more."""

    def way(
        self,
        action: str,
        frees: Callable[[Moment], int],
        cost: str,
        longer: float | None,
        *,
        surely: Callable[[Moment], int] | None = None,
        changes_numerics: bool = False,
    ) -> WayOut:
        """`surely`: what it frees at least, where that is less."""
        return WayOut(
            action=action,
            frees_bytes=frees(self.moments[0]),
            peak_bytes=self.peak_bytes(frees) if self.is_whole_step else None,
            is_enough=self.is_enough(surely or frees),
            cost=cost,
            step_longer=longer,
            changes_numerics=changes_numerics,
        )

    def is_enough(self, frees: Callable[[Moment], int], spare: float = SPARE) -> bool | None:
        """None where what comes after the failed moment may ask for more."""
        if not self.is_met(frees, spare):
            return False
        return True if self.is_whole_step else None

    def is_met(self, frees: Callable[[Moment], int], spare: float = SPARE) -> bool:
        return self.peak_bytes(frees) <= (1 - spare) * self.room_bytes

    def peak_bytes(self, frees: Callable[[Moment], int]) -> int:
        return max(moment.size_bytes - frees(moment) for moment in self.moments)


def out_of_memory(
    run: RunFacts | None, auxiliary: Auxiliary | None, num_ranks: int = 1
) -> tuple[OutOfMemoryReport, ...]:
    """Every failure that was recorded: by the capture, in snapshots, in logs. What one recording
    says beyond another is not joined: they may be of different ranks."""
    num_ranks = max(len(run.ranks) if run else 0, num_ranks)
    reports = [*_of_run(run), *((report, None) for report in _of_others(auxiliary))]
    return tuple(_with_ways(report, moments, num_ranks) for report, moments in reports)


def _with_ways(
    report: OutOfMemoryReport, moments: tuple[Moment, ...] | None, num_ranks: int
) -> OutOfMemoryReport:
    if moments is not None:
        highest = max(moments, key=lambda moment: moment.size_bytes)
        report = replace(report, needs=highest.kinds)
    return replace(report, ways=ways_out(report, num_ranks, moments))


def ways_out(
    report: OutOfMemoryReport, num_ranks: int = 1, moments: tuple[Moment, ...] | None = None
) -> tuple[WayOut, ...]:
    """Three at most."""
    return every_way(report, num_ranks, moments)[:MAX_WAYS]


def every_way(
    report: OutOfMemoryReport, num_ranks: int = 1, moments: tuple[Moment, ...] | None = None
) -> tuple[WayOut, ...]:
    """Ways out: those that are enough by themselves before those that are not, then by what they
    cost.

    `moments` are those of the whole step, where they are known; else what was held and asked for
    is taken."""
    shortage = _shortage(report, moments)
    ways = [*_without_cost(report, shortage), *_by_kind(report, shortage, num_ranks)]
    if not report.kinds:
        ways += _in_general()

    def order(way: WayOut) -> tuple[bool, float]:
        return way.is_enough is False, UNSURE if way.step_longer is None else way.step_longer

    return tuple(sorted(ways, key=order))


def _shortage(report: OutOfMemoryReport, moments: tuple[Moment, ...] | None) -> _Shortage | None:
    if report.missing_bytes is None:
        return None
    kinds, asked = report.kinds or {}, report.asked_bytes or 0
    now = failed_moment(kinds, asked, report.phase)
    if is_of_loss(report.where):
        now = replace(now, head_bytes=HEAD_COPIES * asked)
    # By what was missing then: kinds may lack what nothing is known of.
    room = now.size_bytes - report.missing_bytes
    if report.missing_bytes == 0:
        room = report.room_bytes or room
    highest = sorted(moments or (now,), key=lambda moment: -moment.size_bytes)
    return _Shortage(
        moments=tuple(highest),
        room_bytes=room,
        is_whole_step=moments is not None or report.phase != "forward",
    )


def _without_cost(report: OutOfMemoryReport, shortage: _Shortage | None) -> Iterator[WayOut]:
    missing, others = report.missing_bytes, report.others_bytes
    if report.cache_bytes and missing == 0:
        is_enough = None if shortage is None else shortage.is_enough(_nothing, spare=0.0)
        cost = "nothing: enough was free, in pieces that were too small"
        if is_enough is False:
            cost += ", but the rest of the step needs more"
        yield WayOut(
            action="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            frees_bytes=report.cache_bytes,
            is_enough=is_enough,
            cost=cost,
            step_longer=0.0,
        )
    if others and report.capacity_bytes and others >= MAX_OTHERS * report.capacity_bytes:
        yield WayOut(
            action="end the other processes on the device (nvidia-smi names them)",
            frees_bytes=others,
            is_enough=None if shortage is None else shortage.is_enough(lambda _: others),
            cost="nothing",
            step_longer=0.0,
        )


def _nothing(_: Moment) -> int:
    return 0


def _by_kind(
    report: OutOfMemoryReport, shortage: _Shortage | None, num_ranks: int
) -> Iterator[WayOut]:
    """Ways out by what holds the memory, where that is known."""
    if not report.kinds or shortage is None:
        return
    highest = shortage.moments[0].kinds
    if highest.get(TEMPORARY) and shortage.moments[0].is_update:
        yield shortage.way(
            "the optimizer with fused=True",
            lambda moment: moment.kinds.get(TEMPORARY, 0) if moment.is_update else 0,
            "no time: its update makes no copies",
            0.0,
        )
    if highest.get(OPTIMIZER):
        yield shortage.way(
            "optimizer states in 8 bits (bitsandbytes.optim.AdamW8bit, torchao's AdamW8bit)",
            _in_eight_bits,
            "no time; the update is rounded, so compare the loss",
            0.0,
            changes_numerics=True,
        )
    if shortage.moments[0].head_bytes >= MIN_HEAD * shortage.moments[0].size_bytes:
        yield shortage.way(
            f"a loss that never holds all logits: linear and cross entropy in {LOSS_CHUNKS} chunks "
            "or fused (torch 2.13's linear_cross_entropy, Liger's FusedLinearCrossEntropy)",
            lambda moment: (HEAD_COPIES - 1) * moment.head_bytes // HEAD_COPIES,
            _chunks_cost(shortage.moments[0]),
            shortage.moments[0].chunks_longer,
        )
    yield from _checkpoint(shortage, report.num_blocks or USUAL_BLOCKS)
    yield from _smaller(shortage)
    if num_ranks > 1 and any(highest.get(kind) for kind in SHARDED):
        yield shortage.way(
            f"shard weights, gradients and states over the {num_ranks} ranks (fully_shard)",
            lambda moment: (
                sum(moment.kinds.get(kind, 0) for kind in SHARDED) * (num_ranks - 1) // num_ranks
            ),
            "weights are gathered in each forward and backward: what the link takes for them",
            None,
        )


def _chunks_cost(moment: Moment) -> str:
    cost = "in chunks the output layer's product once more, and its gradient summed for each"
    if moment.chunks_longer is None:
        return cost
    return f"{cost}: at most {moment.chunks_longer:.0%} of the step"


def _in_eight_bits(moment: Moment) -> int:
    """Three quarters of the states; and such an update makes no copies."""
    copies = moment.kinds.get(TEMPORARY, 0) if moment.is_update else 0
    return 3 * moment.kinds.get(OPTIMIZER, 0) // 4 + copies


def _checkpoint(shortage: _Shortage, num_blocks: int) -> Iterator[WayOut]:
    """Ways out that checkpoint as few blocks as it takes."""
    if not shortage.moments[0].kinds.get(ACTIVATIONS) or shortage.moments[0].is_update:
        return
    for number in range(1, num_blocks + 1):
        frees = partial(_checkpointed, number, num_blocks, CHECKPOINTED)
        surely = partial(_checkpointed, number, num_blocks, SURELY_CHECKPOINTED)
        if number == num_blocks or shortage.is_met(surely):
            longer = FORWARD_SHARE * number / num_blocks
            which = "every block"
            if number < num_blocks:
                which = f"{number} of {num_blocks} blocks"
            yield shortage.way(
                f"checkpoint {which} (torch.utils.checkpoint, use_reentrant=False)",
                frees,
                f"their forward once more: about {longer:.0%} of the step",
                longer,
                surely=surely,
            )
            return


def _checkpointed(number: int, num_blocks: int, share: float, moment: Moment) -> int:
    """While the loss is computed, all but what these blocks were given, or `share` of them where
    that is not known. Later of all but the one that backward makes again, when what the loss held
    is free."""
    if moment.is_update:
        return 0
    held = moment.kinds.get(ACTIVATIONS, 0)
    freed = share * held if moment.inputs_bytes is None else held - moment.inputs_bytes
    of_loss = max(moment.kinds.get(TEMPORARY, 0) - moment.backward_bytes, 0)
    later = freed * min(number, num_blocks - 1) / num_blocks + of_loss
    return round(min(freed * number / num_blocks, later))


def _smaller(shortage: _Shortage) -> Iterator[WayOut]:
    """A micro-batch of a part of the samples: what it asks for is smaller too."""
    if not shortage.moments[0].growing_bytes:
        return
    for split in SPLITS:
        frees = partial(_split, split, _gradient_bytes(shortage))
        if split == SPLITS[-1] or shortage.is_met(frees):
            yield shortage.way(
                f"micro-batches a {_part(split)} as large, {split} accumulated to a step",
                frees,
                "nothing where kernels still fill the device; else up to the host's time "
                f"{split} times",
                None,
            )
            return


def _split(split: int, gradient_bytes: int, moment: Moment) -> int:
    """Gradients of the micro-batches before stay while the next one is computed."""
    if moment.is_update:
        return 0
    more = max(gradient_bytes - moment.kinds.get(GRADIENTS, 0), 0)
    return max(moment.growing_bytes * (split - 1) // split - more, 0)


def _gradient_bytes(shortage: _Shortage) -> int:
    """Bytes of the gradients of all that is trained; as large as the weights where the update is
    not known."""
    for moment in shortage.moments:
        if moment.is_update:
            return moment.kinds.get(GRADIENTS, 0)
    return shortage.moments[0].kinds.get(WEIGHTS, 0)


def _part(split: int) -> str:
    return {2: "half", 4: "quarter", 8: "eighth", 16: "sixteenth"}[split]


def _in_general() -> Iterator[WayOut]:
    """Where nothing says what holds the memory."""
    unknown = "what it frees is not known: a memory snapshot says what holds the memory"
    for action, cost, longer in (
        ("a smaller micro-batch, accumulated", unknown, None),
        ("checkpoint blocks (torch.utils.checkpoint)", unknown, FORWARD_SHARE),
        ("optimizer states in 8 bits, or sharded over the ranks", unknown, None),
    ):
        yield WayOut(action=action, frees_bytes=None, is_enough=None, cost=cost, step_longer=longer)


def _of_run(
    run: RunFacts | None,
) -> Iterator[tuple[OutOfMemoryReport, tuple[Moment, ...] | None]]:
    for failure in () if run is None else run.failures:
        yield explained(failure, run.path if run else "")


def explained(
    failure: RecordedFailure, label: str
) -> tuple[OutOfMemoryReport, tuple[Moment, ...] | None]:
    """What the capture wrote, and the moments of the whole step where they are known."""
    report = _recorded(failure, label)
    if not report.kinds or report.asked_bytes is None:
        return report, None
    return report, moments_of(failure, report.kinds, report.asked_bytes)


def _of_others(auxiliary: Auxiliary | None) -> Iterator[OutOfMemoryReport]:
    if auxiliary is not None:
        yield from _of_snapshots(auxiliary)
        yield from _of_logs(auxiliary)


def _recorded(failure: RecordedFailure, label: str) -> OutOfMemoryReport:
    """Report as torch's message has it, of the moment of the failure: by the time that the
    exception was seen, what the failed pass held was free again. What the process told then is for
    what the message does not say."""
    said = None
    if (match := FAILED.search(failure.message)) is not None:
        said = convert(
            {"line": 0, "num": 1, **failure_figures(failure.message, match)}, OutOfMemory
        )
    capacity, held, cache, free = failure.capacity_bytes, failure.held_bytes, None, None
    if held is not None and failure.reserved_bytes is not None:
        cache = max(failure.reserved_bytes - held, 0)
        free = None if capacity is None else max(capacity - failure.reserved_bytes, 0)
    if said is not None:
        capacity = said.allowed_bytes or capacity or said.total_bytes
        if said.allocated_bytes is not None:
            held, cache = said.allocated_bytes, said.idle_bytes
        if said.room_bytes is not None:
            free = said.room_bytes
    known = sum(failure.sizes.values())
    kinds = {kind: size for kind, size in failure.sizes.items() if size}
    if held is not None and held > known:
        rest = ACTIVATIONS if failure.phase in ("forward", "backward") else UNKNOWN
        kinds[rest] = kinds.get(rest, 0) + held - known
    return OutOfMemoryReport(
        source="run",
        label=label,
        rank=failure.rank,
        asked_bytes=None if said is None else said.tried_bytes,
        where=failure.where,
        operator=failure.operator,
        phase=failure.phase,
        num_blocks=failure.num_blocks,
        step=failure.step,
        capacity_bytes=capacity,
        held_bytes=held,
        cache_bytes=cache,
        free_bytes=free,
        others_bytes=None if said is None else _others_bytes(said),
        kinds=kinds if failure.sizes else None,
    )


def _of_snapshots(auxiliary: Auxiliary) -> Iterator[OutOfMemoryReport]:
    for record in () if auxiliary.memory is None else auxiliary.memory.records:
        if record.num_ooms and record.oom_bytes is not None:
            yield _snapshot(record)


def _snapshot(record: MemoryRecord) -> OutOfMemoryReport:
    held = record.oom_held
    size = None if held is None else sum(held.values())
    capacity, cache = record.capacity_bytes, record.oom_free_bytes
    free = None
    if capacity is not None and size is not None:
        free = max(capacity - size - (cache or 0), 0)
        if free >= (record.oom_bytes or 0):
            # The driver had it, and the process may not: it limits itself, to little more.
            capacity, free = size + (cache or 0), 0
    return OutOfMemoryReport(
        source="memory-snapshot",
        label=record.label,
        device=record.device,
        asked_bytes=record.oom_bytes,
        where=record.oom_frame,
        phase=record.oom_phase,
        capacity_bytes=capacity,
        held_bytes=size,
        cache_bytes=cache,
        free_bytes=free,
        kinds=held,
        holders=tuple(
            f"{holder.frame}: {size_words(holder.size_bytes)} of {holder.category} in "
            f"{holder.num_tensors} tensors"
            for holder in record.holders[:MAX_WAYS]
        ),
    )


def _of_logs(auxiliary: Auxiliary) -> Iterator[OutOfMemoryReport]:
    for output in () if auxiliary.training is None else auxiliary.training.outputs:
        for failure in output.failures:
            yield _logged(f"{output.path}:{failure.line}", failure)


def _logged(label: str, failure: OutOfMemory) -> OutOfMemoryReport:
    return OutOfMemoryReport(
        source="job-log",
        label=label,
        rank=failure.ranks[0] if len(failure.ranks) == 1 else None,
        device=failure.device,
        asked_bytes=failure.tried_bytes,
        where=failure.frame,
        phase=failure.phase,
        capacity_bytes=failure.allowed_bytes or failure.total_bytes,
        held_bytes=failure.allocated_bytes,
        cache_bytes=failure.idle_bytes,
        free_bytes=failure.room_bytes,
        others_bytes=_others_bytes(failure),
    )


def _others_bytes(said: OutOfMemory) -> int | None:
    """None where the process may not have more, whoever else is there."""
    return None if said.allowed_bytes is not None else said.others_bytes
