"""What PyTorch said in a job's output, as advice of the rules whose faults those are.

PyTorch says that something is so, never what it costs: such advice has no weight, but for memory,
of which it gives the figures. Beside a trace that shows the same fault, its lines become the
finding's evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from stepscope.api import Advice, Auxiliary
from stepscope.core.numbers import number_ranges
from stepscope.core.recordings.job_output import Hang, JobOutput, OutOfMemory, Said
from stepscope.recordings.job_log.lines import WARNINGS


class Policy(Struct, frozen=True, kw_only=True):
    most_others: float = 0.1
    """Share of a device held by other processes up to which they are not what fills it: a desktop
    and a second context take less."""
    most_evidence: int = 8
    """Lines of one kind that are shown."""


POLICY = Policy()
FRAGMENTATION = "fragmentation"
NO_EXPANSION = "no expandable segments"
FAILED_JOB = "failed-job"
"""Advised of by its own rule."""
BOUNDS = {
    "data-parallel-module": "comms", "debug-mode": "host", "failed-job": "host",
    "fp32-matmul": "compute", "fragmentation": "memory", "late-rank": "imbalance",
    "launch-overhead": "host",
    "memory-pressure": "memory", "serial-loader": "data", "tf32-off": "compute",
    "thread-oversubscription": "host",
    "unfused-attention": "memory", "untuned-convolution": "compute",
    "unused-parameter-scan": "comms",
}  # fmt: skip
"""Bounds of the findings that are advised of here."""
ADVICE = {warned.kind: warned.advice for warned in WARNINGS if warned.advice is not None}


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    """One for each kind of warning, for memory that ran out, and for collectives that hung."""
    outputs = () if auxiliary.training is None else auxiliary.training.outputs
    codes = BOUNDS.keys() - {FAILED_JOB}
    return [*warned(outputs, codes), *_out_of_memory(outputs), *_hangs(outputs)]


def warned(outputs: Sequence[JobOutput], codes: Collection[str]) -> Iterator[Advice]:
    """What lines of the job's output say of the findings with these codes."""
    for kind, (code, summary, action) in ADVICE.items():
        if code not in codes:
            continue
        warnings = [
            (output.path, warning)
            for output in outputs
            for warning in output.said
            if warning.kind == kind
        ]
        if not warnings:
            continue
        # Of several, the one with the largest numbers: 64 workers, not 9.
        worst = max((warning for _, warning in warnings), key=lambda warning: warning.numbers)
        yield Advice(
            code=code,
            bound=BOUNDS[code],
            summary=summary.format(*worst.numbers),
            action=action.format(*worst.numbers),
            evidence=tuple(line for path, warning in warnings for line in _lines(path, warning))[
                : POLICY.most_evidence
            ],
        )


def _lines(path: str, warning: Said) -> Iterator[str]:
    yield f"{path}:{warning.line}: {warning.text}{_by(warning.num, warning.ranks)}"
    yield from warning.details


def _out_of_memory(outputs: Sequence[JobOutput]) -> Iterator[Advice]:
    """Advise on memory that is in pieces, or not enough: by the failure with the largest request of
    each."""
    failures = [(output.path, failure) for output in outputs for failure in output.failures]
    in_pieces = [pair for pair in failures if pair[1].is_in_pieces]
    too_much = [pair for pair in failures if not pair[1].is_in_pieces]
    can_expand = not any(
        warning.kind == NO_EXPANSION for output in outputs for warning in output.said
    )
    for code, pairs in ((FRAGMENTATION, in_pieces), ("memory-pressure", too_much)):
        if not pairs:
            continue
        worst = max((failure for _, failure in pairs), key=lambda failure: failure.tried_bytes)
        share, of = _share(worst, is_in_pieces=code == FRAGMENTATION)
        yield Advice(
            code=code,
            bound=BOUNDS[code],
            summary=_failed(worst),
            action=_apart(can_expand) if code == FRAGMENTATION else _smaller(worst),
            evidence=tuple(
                f"{path}:{failure.line}: {_figures(failure)}"
                for path, failure in pairs[: POLICY.most_evidence]
            ),
            weight=share,
            weight_of=of,
        )


def _failed(failure: OutOfMemory) -> str:
    tried = f"Memory ran out: {_gb(failure.tried_bytes)} could not be had"
    if failure.is_in_pieces:
        assert failure.idle_bytes is not None
        return (
            f"{tried}, with {_gb(failure.idle_bytes)} held by the allocator in pieces that were "
            "too small."
        )
    if failure.allocated_bytes is None or failure.total_bytes is None:
        return f"{tried}."
    return f"{tried}, with {_gb(failure.allocated_bytes)} of {_gb(failure.total_bytes)} in tensors."


def _share(failure: OutOfMemory, *, is_in_pieces: bool) -> tuple[float | None, str]:
    part = failure.idle_bytes if is_in_pieces else failure.allocated_bytes
    if part is None or not failure.total_bytes:
        return None, ""
    return part / failure.total_bytes, "the device's memory"


def _smaller(failure: OutOfMemory) -> str:
    others = failure.others_bytes
    if (
        others is not None
        and failure.total_bytes
        and others >= POLICY.most_others * failure.total_bytes
    ):
        return (
            f"{_gb(others)} of the device are other processes': end them, or take another device "
            "(nvidia-smi names them)"
        )
    return (
        "a smaller batch, activation checkpointing or sharding; a memory snapshot given to "
        "stepscope says what holds it"
    )


def _apart(can_expand: bool) -> str:
    action = "pad or bucket shapes so that sizes repeat, and keep empty_cache() out of the loop"
    if can_expand:
        action = f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; {action}"
    return action


def _figures(failure: OutOfMemory) -> str:
    figures = (
        (failure.tried_bytes, "asked for"),
        (failure.total_bytes, "on the device"),
        (failure.allocated_bytes, "in tensors"),
        (failure.idle_bytes, "idle in the allocator"),
        (failure.free_bytes, "free"),
        (failure.others_bytes, "of other processes"),
    )
    words = ", ".join(f"{_gb(size)} {what}" for size, what in figures if size is not None)
    return f"{words}{_by(failure.num, failure.ranks)}"


def _hangs(outputs: Sequence[JobOutput]) -> Iterator[Advice]:
    """The hang that names a rank that did not come, else the one that most ranks waited in."""
    hangs = [(output.path, hang) for output in outputs for hang in output.hangs]
    if not hangs:
        return
    worst = max(
        (hang for _, hang in hangs), key=lambda hang: (bool(hang.behind), len(hang.waiting))
    )
    what = f"{worst.op} number {worst.sequence}"
    if worst.behind:
        ranks = number_ranges(worst.behind)
        summary = (
            f"Rank {ranks} did not come to {what}: the others waited {worst.timeout_s:,.0f} s and "
            "gave up."
        )
        action = (
            f"look at what rank {ranks} did then (py-spy dump, its own output): its input, its "
            "device, another branch"
        )
    elif others := _in_another(worst, [hang for _, hang in hangs]):
        here = "; ".join(
            f"rank {number_ranges(hang.waiting)} in {hang.op} number {hang.sequence}"
            for hang in sorted((worst, *others), key=lambda hang: hang.sequence)
        )
        summary = f"Ranks wait in different collectives: {here}."
        action = (
            "find the collective that not every rank calls: under `if rank == 0`, in a branch that "
            "data decides, with another number of batches; TORCH_DISTRIBUTED_DEBUG=DETAIL names "
            "the first that differs"
        )
    else:
        summary = (
            f"{what} hung for {worst.timeout_s:,.0f} s, and no line says which rank did not come."
        )
        action = (
            "keep every rank's output (torchrun --tee 3), and the flight recorder's: "
            "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1; `stepscope diagnose` reads "
            "its dumps"
        )
    yield Advice(
        code="late-rank",
        bound=BOUNDS["late-rank"],
        summary=summary,
        action=action,
        evidence=tuple(
            f"{path}:{hang.line}: {_hung(hang)}" for path, hang in hangs[: POLICY.most_evidence]
        ),
    )


def _in_another(worst: Hang, hangs: Sequence[Hang]) -> list[Hang]:
    """Where other ranks of its group hung; a line may not say which group it is of."""
    return [
        hang
        for hang in hangs
        if (hang.group == worst.group or None in (hang.group, worst.group))
        and (hang.sequence, hang.op) != (worst.sequence, worst.op)
        and hang.waiting
        and worst.waiting
        and not {*hang.waiting} & {*worst.waiting}
    ]


def _hung(hang: Hang) -> str:
    waited = f"rank {number_ranges(hang.waiting)}" if hang.waiting else "a rank that is not named"
    behind = f"; rank {number_ranges(hang.behind)} had not enqueued it" if hang.behind else ""
    return f"{waited} waited {hang.timeout_s:,.0f} s in {hang.op} number {hang.sequence}{behind}"


def _by(num: int, ranks: Sequence[int]) -> str:
    parts = []
    if num > 1:
        parts.append(f"{num} times")
    if ranks:
        parts.append(f"rank {number_ranges(ranks)}")
    return f" ({', '.join(parts)})" if parts else ""


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
