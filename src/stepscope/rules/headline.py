"""The verdict in a sentence, which agrees with the parts of the step and with the first finding, or
says where it does not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stepscope.core.diagnosis import Finding
from stepscope.core.facts import RankFacts
from stepscope.core.numbers import gain_words
from stepscope.rules.judge import SWEEPING_DISCOUNT

BOUND_OF_PART = {
    "compute": "compute", "comms_wait": "imbalance", "comms_transfer": "comms",
    "transfer": "transfer", "idle_input": "data", "idle_sync": "host", "idle_launch": "host",
    "idle_allocator": "host", "idle_compile": "host", "idle_io": "host", "idle_other": "host",
}  # fmt: skip
WORDS = {
    "compute": "arithmetic in kernels",
    "memory": "kernels that wait for device memory",
    "comms": "communication between ranks",
    "imbalance": "waiting for one another",
    "transfer": "copies between host and device",
    "data": "waiting for input",
    "host": "waiting for the host",
}
ON_HOST_WORDS = {"compute": "operators on the CPU", "host": "time outside operators"}
"""Words where there is no device: the host's operators are the work."""
UNSEEN = "idle time whose cause was not seen"
PART_WORDS = {"compute": "kernels computing", "imbalance": "waiting for other ranks"}
"""What a part of the step is called where it is only measured."""
NAMES = {
    "compute": "Compute-bound", "memory": "Bound by device memory",
    "comms": "Bound by communication", "imbalance": "Bound by imbalance",
    "transfer": "Bound by copies", "data": "Input-bound", "host": "Host-bound",
}  # fmt: skip
ON_HOST_NAMES = {"compute": "CPU-bound"}
SHORT = {"comms": "communication", "memory": "device memory", "transfer": "copies", "data": "input"}
HOST_WORDS = {
    "idle_sync": "it blocks on the device and then launches too late",
    "idle_launch": "it launches work more slowly than the device does it",
    "idle_allocator": "it is allocating or freeing device memory",
    "idle_compile": "it is compiling",
    "idle_io": "it is saving or loading",
    "idle_other": "what it does meanwhile was not recorded",
}
KERNELS = ("compute", "memory")
"""Both are the part `compute` of a step."""
NEAR = 0.8
"""Fraction of the largest share from which another share cannot be told from it: replays err by as
much."""
FEWER_WAITS = 0.1
"""Share of the step by which the recorded steps may fall short of what the verdict says of them."""
WEAK = 0.1
"""Share of the step below which a resource that holds it up does not stand alone for what limits
it."""


def names_of(rank: RankFacts) -> Mapping[str, str]:
    """How a run is called that is bound by each resource."""
    return NAMES if rank.steps.where == "device" else NAMES | ON_HOST_NAMES


def words_of(rank: RankFacts) -> Mapping[str, str]:
    """What each resource is called; without a device there are no kernels."""
    return WORDS if rank.steps.where == "device" else WORDS | ON_HOST_WORDS


def part_words_of(rank: RankFacts) -> Mapping[str, str]:
    """What the parts of a step are called."""
    words = WORDS | PART_WORDS
    return words if rank.steps.where == "device" else words | ON_HOST_WORDS


def by_bound(parts: Mapping[str, float]) -> dict[str, float]:
    """The parts of a step, added up by what they would make the bound."""
    shares: dict[str, float] = {}
    for part, share in parts.items():
        shares[BOUND_OF_PART[part]] = shares.get(BOUND_OF_PART[part], 0.0) + share
    return shares


def largest_part(parts: Mapping[str, float]) -> str:
    """The bound that most of the step is of."""
    shares = by_bound(parts)
    return max(shares, key=lambda bound: shares[bound])


def is_unseen(parts: Mapping[str, float], bound: str) -> bool:
    """Whether most of what counts as this bound is idle time whose cause was not recorded."""
    unseen = parts["idle_other"]
    return BOUND_OF_PART["idle_other"] == bound and unseen > by_bound(parts)[bound] / 2


def second_of(bound: str, shares: Mapping[str, float], parts: Mapping[str, float]) -> str | None:
    """The resource beside which the bound does not stand alone: one that holds the step up nearly
    as much, or the largest part of a step that nothing alone holds up much. None where there is
    none."""
    others = {name: share for name, share in shares.items() if name != bound}
    second = max(others, key=lambda name: others[name], default=bound)
    if second != bound and others[second] >= NEAR * shares[bound]:
        return second
    largest = largest_part(parts)
    if shares[bound] < WEAK and largest in others and not same_part(largest, bound):
        return largest
    return None


def same_part(first_side: str, other: str) -> bool:
    """Whether time bound by either is of one part of the step."""
    return first_side == other or (first_side in KERNELS and other in KERNELS)


def of_parts(
    rank: RankFacts, parts: Mapping[str, float], named: Sequence[str], *, is_alone: bool
) -> str:
    """The largest part of the recorded step, where it is of none of the bounds named."""
    largest = largest_part(parts)
    if same_part(largest, named[0]) or largest in named[1:]:
        return ""
    share = by_bound(parts)[largest]
    whose = "the recorded step" if is_alone else f"rank {rank.rank}'s recorded step"
    because = ""
    if largest == "host" and named[0] in KERNELS and rank.steps.where == "device":
        because = ", which the profiler lengthens"
    return f"; {share:.0%} of {whose} is {part_words_of(rank)[largest]}{because}"


def of_findings(findings: Sequence[Finding], named: Sequence[str]) -> str:
    """The rank that holds the others up, the first finding where it is of none of the bounds named,
    and a larger batch that gives far more than it."""
    if not findings:
        return ""
    first = findings[0]
    words = ""
    late = next((f for f in findings if f.bound == "imbalance" and len(f.ranks) == 1), None)
    if late is not None and "imbalance" in named:
        words = f"; rank {late.ranks[0]} holds the others up"
    if first.bound not in named:
        resource = SHORT.get(first.bound, first.bound)
        words += f"; the first fix is of {resource}: {first.code}, {_gain_of(first)}"
    return words + _of_batch(findings)


def first_gain(finding: Finding) -> str:
    """Gain of the first thing to do about the bound, which a reader wants first."""
    return f"{_gain_of(finding)} by fixing {finding.code}"


def _gain_of(finding: Finding) -> str:
    """Less its range, which stands with the finding."""
    gain = gain_words(finding.predicted_speedup, finding.predicted_low, finding.predicted_high)
    return gain.partition(" (")[0]


def _of_batch(findings: Sequence[Finding]) -> str:
    """A larger batch, which is listed last, where it gives far more than what stands first."""
    first, *others = findings
    larger = next((finding for finding in others if finding.samples_times > 1), None)
    if larger is None:
        return ""
    gain, of_first = larger.predicted_speedup, max(first.predicted_speedup, 1.0)
    if SWEEPING_DISCOUNT * math.log(gain) <= math.log(of_first):
        return ""
    times = f"{larger.samples_times:g} times as large"
    return f"; a batch {times} gives {gain:.2f}x, as another training ({larger.code})"
