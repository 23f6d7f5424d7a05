"""Large shares of the step that no finding answers, each with the reason in a line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from stepscope.analyses.host.loader import SERIAL
from stepscope.analyses.steps.windows import WHOLE_TRACE
from stepscope.core.diagnosis import SHARE, Abstention
from stepscope.core.facts import KernelRow, RankFacts
from stepscope.core.kernel_names import MATRIX_CATEGORIES
from stepscope.core.recorders import Recorder
from stepscope.rules.judge import MIN_SPEEDUP, Judgement
from stepscope.rules.registry import rule_of

LARGE = 0.15
"""Share of the step from which a part wants an answer or a reason."""
MAX_LEFT = 0.5
"""Fraction of a share that the fixes may leave of it and still answer it."""
MAX_NAMED = 2
SMALL_NS = 20_000
"""Nanoseconds of an operator on the host below which it is small: Python and the dispatcher take
some microseconds of it, whatever it computes."""
FEWER = "a device, or fewer of them"
LARGER = "fewer, larger ones: batch what a loop calls one at a time"
DECORATION = re.compile(r"^void |\(anonymous namespace\)::|at::native::|[<(][^:]*$|<.*$")
"""Parts of a kernel's name that say nothing to a reader: namespaces, types and arguments."""

NEEDS_REPLAY = "two whole steps, with ProfilerActivity.CPU and the device's"
ON_HOST_NEEDS = "two whole steps"
IDLE_WORDS = {
    "idle_sync": "most of it after the host blocked on the device",
    "idle_launch": "most of it while the host gets to launching",
    "idle_allocator": "most of it in the allocator",
    "idle_compile": "most of it compiling",
    "idle_io": "most of it saving or loading",
    "idle_other": "most of it with no call recorded",
}

Reason = tuple[str, str]
"""Why not, and what to record or to give."""


def unanswered(
    rank: RankFacts,
    shares: Mapping[str, float],
    judgement: Judgement,
    lacking: str | None,
    recorder: Recorder,
) -> tuple[Abstention, ...]:
    """Reasons why nothing answers each large share; `lacking` says why nothing was replayed, where
    nothing was."""
    left = 1.0 / max(judgement.ladder, default=1.0)
    answered = {
        share
        for finding in judgement.findings
        if finding.best_speedup >= MIN_SPEEDUP
        for share in _answers(finding.code) or (finding.bound,)
    }
    # However the fixes divide what they save, no share is longer than the step that they leave.
    answered |= {bound for bound, share in shares.items() if left <= MAX_LEFT * share}
    return tuple(
        _abstention(rank, bound, share, judgement, lacking, recorder)
        for bound, share in sorted(shares.items(), key=lambda item: -item[1])
        if share > LARGE and bound not in answered
    )


def _abstention(
    rank: RankFacts,
    bound: str,
    share: float,
    judgement: Judgement,
    lacking: str | None,
    recorder: Recorder,
) -> Abstention:
    if lacking is not None:
        needs = NEEDS_REPLAY if rank.uses_device else ON_HOST_NEEDS
        reason = f"nothing could be replayed: {lacking}"
    else:
        reason, needs = _of_rules(judgement, bound) or REASONS[bound](rank, bound, recorder)
        tried = [finding.code for finding in judgement.findings if bound in _answers(finding.code)]
        if tried:
            reason += f"; {' and '.join(tried[:MAX_NAMED])} would give less than 2 %"
    whole = "the step" if rank.steps.source != WHOLE_TRACE else "what was recorded"
    return Abstention(
        code=f"{bound}{SHARE}", reason=f"{share:.0%} of {whole}, {reason}", needs=needs
    )


def _answers(code: str) -> tuple[str, ...]:
    """The shares that this rule's fix is for."""
    rule = rule_of(code)
    return () if rule is None else (rule.bound, *rule.answers)


def _of_rules(judgement: Judgement, bound: str) -> Reason | None:
    """What a rule about the input says of it, which knows the workers."""
    said = (
        (each.reason, each.needs)
        for each in judgement.abstentions
        if bound == "data" and bound in _answers(each.code)
    )
    return next(said, None)


def _by_kernels(rank: RankFacts, bound: str, _: Recorder) -> Reason:
    """How near their roofs the kernels are, and which are the longest."""
    rows = [
        row for row in rank.kernels if (row.category in MATRIX_CATEGORIES) == (bound == "compute")
    ]
    whole = sum(rank.steps.step_intervals)
    if not rank.uses_device:
        return _by_host_operators(rank)
    if not rows or not whole:
        return "in kernels that no rule knows a faster way for", "an ncu report of them"
    named = " and ".join(f"{name} {took / whole:.0%}" for name, took in _longest(rows)[:MAX_NAMED])
    reached = _reached(rows)
    if rank.roofline.device is None:
        return f"most in {named}; this device's peaks are not known", "--hardware FILE, calibrated"
    if reached is None and rank.launches is not None and rank.launches.num_in_graphs:
        why = "the work inside CUDA graphs is not recorded with its shapes"
        return f"most in {named}; {why}", "an ncu report of them, given with the trace"
    if reached is None:
        return f"most in {named}; what they must do is not known", "record_shapes=True"
    how = f"at {reached:.0%} of the device's roofs" if reached <= 1 else "at the device's roofs"
    return f"most in {named}, {how}", "an ncu report of them, given with the trace"


def _by_host_operators(rank: RankFacts) -> Reason:
    """Reason by the longest operators, or that each is too short to be worth its call."""
    timed = [(row.name, row.count, row.host_ns) for row in rank.ops if row.host_ns is not None]
    num, took = sum(count for _, count, _ in timed), sum(ns for _, _, ns in timed)
    if not took or not rank.steps.windows:
        return "in the host's own operators", FEWER
    if took < SMALL_NS * num:
        per_step = f"{num / len(rank.steps.windows):,.0f}".replace(",", " ")
        each = f"{took / num / 1e3:.1f} us each while profiled"
        return f"in {per_step} small operators on the host, {each}", LARGER
    longest = sorted(timed, key=lambda row: -row[2])[:MAX_NAMED]
    named = " and ".join(
        f"{name.removeprefix('aten::')} {ns / took:.0%}" for name, _, ns in longest
    )
    return f"in the host's own operators, of which {named}", FEWER


def _longest(rows: Sequence[KernelRow]) -> list[tuple[str, int]]:
    """The operators, or the kernels where none launched them, with their time."""
    took: Counter[str] = Counter()
    for row in rows:
        took[row.op or DECORATION.sub("", row.name)] += row.total_ns
    return took.most_common()


def _reached(rows: Sequence[KernelRow]) -> float | None:
    """The least time that the kernels' work needs over what they take, where that is known."""
    known = [row for row in rows if row.floor_ns is not None]
    took = sum(row.total_ns for row in known)
    return sum(row.floor_ns or 0.0 for row in known) / took if took else None


def _by_host(rank: RankFacts, _: str, recorder: Recorder) -> Reason:
    """What the host does meanwhile, as far as it was recorded."""
    parts = rank.typical_parts_ns or {}
    idle = {part: parts.get(part, 0.0) for part in IDLE_WORDS}
    most = max(idle, key=lambda part: idle[part])
    what = IDLE_WORDS[most] if idle[most] > 0 else "of the host's own work"
    return (
        f"{what}, and no known pattern in it",
        f"{recorder.stacks}, or py-spy: the lines it is in",
    )


def _by_loader(rank: RankFacts, _: str, recorder: Recorder) -> Reason:
    if any(SERIAL.search(row.name) for row in rank.host.loader):
        lines = f"{recorder.stacks}, or py-spy: the lines that make them"
        return (
            "making batches in the training process",
            f"cheaper ones, or cores for workers; {lines}",
        )
    return (
        "waiting for batches whose making was not recorded",
        f"{recorder.stacks}, or py-spy: the lines that make them",
    )


def _by_copies(_rank: RankFacts, _: str, recorder: Recorder) -> Reason:
    return (
        "copies that are neither pageable, nor many and small, nor in the way of compute",
        f"{recorder.stacks}: the lines that copy",
    )


def _by_waits(_rank: RankFacts, _: str, _recorder: Recorder) -> Reason:
    return "waiting that no rank causes step after step", "more steps, and the traces of all ranks"


def _by_collectives(rank: RankFacts, _: str, _recorder: Recorder) -> Reason:
    is_split = rank.partition is not None and rank.partition.waits_split
    if is_split:
        return "collectives that no rule knows a way to shorten", "their sizes and types (c10d)"
    return "moving bytes or waiting: one rank cannot tell", "the traces of all ranks"


REASONS: Mapping[str, Callable[[RankFacts, str, Recorder], Reason]] = {
    "compute": _by_kernels, "memory": _by_kernels, "host": _by_host, "comms": _by_collectives,
    "data": _by_loader, "transfer": _by_copies, "imbalance": _by_waits,
}  # fmt: skip
