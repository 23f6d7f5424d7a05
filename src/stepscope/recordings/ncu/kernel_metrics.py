"""Metrics of single kernels: how near to a peak, which share of the step, the name in a trace.

The bounds are those of the rules that come with Nsight Compute (its `sections` folder): below 60 %
of every peak a kernel waits rather than works, above 80 % it is near what the device can do
(SpeedOfLight.py); a stall is worth mentioning when it takes 30 % of the warps' time while the
schedulers issue in less than 80 % of the cycles (CPIStall.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.kernels import NAME_CHARS, KernelMetrics

MAX_EVIDENCE = 10


class Policy(Struct, frozen=True, kw_only=True):
    busy: float = 0.6
    """Share of a unit's peak from which the kernel works rather than waits. SpeedOfLight.py:
    latency_bound_threshold = 60."""
    issuing: float = 0.8
    """Share of the cycles from which the schedulers are as good as full. CPIStall.py: issueActive <
    0.8."""
    stalled: float = 0.3
    """Share of the warps' time in one stall from which it is mentioned. CPIStall.py: 0.3."""
    filled: float = 0.5
    """Share of the warps that the device can hold up to which a grid of less than a wave is small:
    what else is measured then follows from that. A kernel that stays on its multiprocessors has one
    wave or a little less, and is not small."""
    least_share: float = 0.01
    """Share of the step, or of what was measured, below which nothing is reported."""


POLICY = Policy()


class Fault(Struct, frozen=True, kw_only=True):
    """What a rule saw in a launch."""

    kernel: KernelMetrics
    cause: str
    """One advice is given for all faults of a cause."""
    words: str


class Wording(Struct, frozen=True, kw_only=True):
    summary: str
    action: str


def is_busy(kernel: KernelMetrics) -> bool | None:
    """Whether some unit is near its peak; None where too little was recorded to tell."""
    roof = kernel.roof
    if kernel.compute_throughput is None or kernel.dram_throughput is None or roof is None:
        return None
    return roof[1] >= POLICY.busy


def is_waiting(kernel: KernelMetrics) -> bool:
    """Whether nothing is near its peak, and the schedulers have cycles to spare."""
    return is_busy(kernel) is False and (kernel.issue is None or kernel.issue < POLICY.issuing)


def fills_device(kernel: KernelMetrics) -> bool:
    """Whether the grid has blocks enough; what a launch allows is taken for all where it was not
    recorded."""
    if kernel.waves is None or kernel.waves >= 1:
        return True
    allowed = kernel.theoretical_occupancy
    return kernel.waves * (1.0 if allowed is None else allowed) > POLICY.filled


def advice_by_cause(
    auxiliary: Auxiliary,
    code: str,
    bound: str,
    judge: Callable[[KernelMetrics], Fault | None],
    wordings: Mapping[str, Wording],
) -> tuple[Advice, ...]:
    """An advice for each cause, with the kernels it is about, the weightiest first."""
    report = auxiliary.kernels
    faults = []
    if report is not None:
        faults = [fault for kernel in report.kernels if (fault := judge(kernel)) is not None]
    weigh = Weights(auxiliary)
    advice = []
    for cause, wording in wordings.items():
        by_cause = [fault for fault in faults if fault.cause == cause]
        weight = weigh.of(by_cause)
        if by_cause and (weight is None or weight >= POLICY.least_share):
            advice.append(_advice(code, bound, wording, by_cause, weigh, weight))
    return tuple(advice)


def _advice(
    code: str,
    bound: str,
    wording: Wording,
    faults: Sequence[Fault],
    weigh: Weights,
    weight: float | None,
) -> Advice:
    by_name: dict[str, list[Fault]] = {}
    for fault in faults:
        by_name.setdefault(fault.kernel.name, []).append(fault)
    order = sorted(by_name, key=lambda name: -(weigh.of(by_name[name]) or 0.0))
    lines = [_line(by_name[name], weigh) for name in order[:MAX_EVIDENCE]]
    if len(order) > MAX_EVIDENCE:
        lines.append(f"and {len(order) - MAX_EVIDENCE} more kernels")
    return Advice(
        code=code,
        bound=bound,
        summary=wording.summary.format(
            kernels="one kernel" if len(order) == 1 else f"{len(order)} kernels"
        ),
        action=wording.action,
        evidence=tuple(lines),
        weight=weight,
        weight_of=weigh.whole if weight is not None else "",
        kernels=tuple(dict.fromkeys(traced for name in order for traced in weigh.names(name))),
    )


def _line(faults: Sequence[Fault], weigh: Weights) -> str:
    """Line about the longest launch of a name."""
    worst = max(faults, key=lambda fault: fault.kernel.duration_ns or 0.0)
    weight = weigh.of(faults)
    share = ""
    if weight is not None:
        share = f" ({weight:.0%})" if weight >= 0.005 else " (<1%)"
    return f"{short_name(worst.kernel.name)}{share}: {worst.words}"


class Weights:
    """What kernels weigh: of the step where a trace has them, else of the time of all that was
    measured."""

    def __init__(self, auxiliary: Auxiliary) -> None:
        self._shares = auxiliary.kernel_shares
        self._measured: dict[str, float] = {}
        self._traced: dict[str, list[str]] = {}
        for name in auxiliary.kernel_shares:
            self._traced.setdefault(plain_name(name), []).append(name)
        for kernel in () if auxiliary.kernels is None else auxiliary.kernels.kernels:
            self._measured[kernel.name] = self._measured.get(kernel.name, 0.0) + (
                kernel.total_ns or 0.0
            )
        self._total = sum(self._measured.values())
        self._is_traced = any(plain_name(name) in self._traced for name in self._measured)
        self.whole = "the step" if self._is_traced else "the kernels that were measured"

    def names(self, name: str) -> tuple[str, ...]:
        """Names as the trace has them; as it stands where no trace has it."""
        return tuple(self._traced.get(plain_name(name), ())) or (name,)

    def of(self, faults: Iterable[Fault]) -> float | None:
        """None where no times were recorded. A name's launches without the fault do not count."""
        faulty: dict[str, float] = {}
        for fault in faults:
            faulty[fault.kernel.name] = faulty.get(fault.kernel.name, 0.0) + (
                fault.kernel.total_ns or 0.0
            )
        if not self._total:
            return None
        if not self._is_traced:
            return sum(faulty.values()) / self._total
        return sum(
            self._step_share(name) * ns / self._measured[name] for name, ns in faulty.items() if ns
        )

    def _step_share(self, name: str) -> float:
        return sum(self._shares[traced] for traced in self._traced.get(plain_name(name), ()))


NOISE = (
    (re.compile(r"\bvoid\s+"), ""),
    (re.compile(r"\s+"), ""),
    (re.compile(r"\[lambda\([^\[\]]{0,500}?\)\(instance(\d{1,6})\)\]"), r"{lambda#\1}"),
    (re.compile(r"\{lambda\([^{}]{0,500}?\)#(\d{1,6})\}"), r"{lambda#\1}"),
    (re.compile(r"<unnamed>::|\(anonymousnamespace\)::|\bnative::|\bat::"), ""),
    (re.compile(r"(?<![\w.])(\d{1,20})(?:ull|ul|u|l)\b", re.IGNORECASE), r"\1"),
    (re.compile(r"\btrue\b"), "1"),
    (re.compile(r"\bfalse\b"), "0"),
)
MAX_NAME_CHARS = 4096


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """One spelling for a kernel that two tools name: demanglers differ in spaces, lambdas,
    namespaces and numbers.

    void at::<unnamed>::f<float, 32, 0>(const T1 *)
    void at::native::(anonymous namespace)::f<float, 32u, false>(float const*)    both:
    f<float,32,0>
    """
    text = name[:MAX_NAME_CHARS].removesuffix("[clone .kd]")
    for pattern, by in NOISE:
        text = pattern.sub(by, text)
    return _without_parameters(text)


def _without_parameters(text: str) -> str:
    """Text without parentheses and what is in them: a demangler writes T1 where another writes the
    type."""
    depth, kept = 0, []
    for letter in text:
        depth += letter == "("
        if depth == 0:
            kept.append(letter)
        depth = max(depth - (letter == ")"), 0)
    return "".join(kept)


def short_name(name: str) -> str:
    """Name for a line of text: without the namespaces that every kernel of torch has."""
    text = name.removeprefix("void ").removeprefix("at::native::").removeprefix("at::")
    return text if len(text) <= NAME_CHARS else f"{text[: NAME_CHARS - 3]}..."
