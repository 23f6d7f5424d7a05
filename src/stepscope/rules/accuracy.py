"""How far promised gains were from real ones, and the range that a promise is printed with.

The replay leaves open what it knows it does not know: a host's pace, a fix that may give less. What
it does not know of is measured: `benchmarks/board.py` compares promises with what each change gave
on real jobs. A range is what the replay leaves open, widened by that error. It is to hold four of
five changes; docs/accuracy.md says how many it held, on jobs that were seen when the figures below
were chosen and on jobs that were not. The range of a fix that brings work of its own (casts, other
kernels, a compiler) may begin below 1: it may slow the step. That of any other begins at 1.
"""

from __future__ import annotations

import math

from msgspec import Struct

from stepscope.core.run import RankMetadata, RunFacts


class Policy(Struct, frozen=True, kw_only=True):
    """The error of a promise, as the logarithm of what was got over what was promised."""

    least: float = 0.12
    """The log-error floor, of a fix that gives 2 % or less. With this and what follows 256 of 274
    gains lie in their ranges (102 recordings of an H200, seen when these were chosen), and of 123
    of the four sets that were not 110."""
    per_gain: float = 0.12
    """More with the logarithm of the gain: more of the step is as the replay thinks."""
    largest_gain: float = 1.5
    """The logarithm from which on it grows no more: 4.5 times as fast."""

    sweeping: float = 0.7
    """Share of the replay's uncertainty about a change of the whole model that is added to its
    range, beside an error that is as likely to be on its other side: its parts (the host, fusing,
    layouts) are not all at their worst at once. By their errors when they were first scored, 59 of
    67 gains of compiling lie in their ranges so, which are a third narrower than where all of it is
    added."""
    timed: float = 0.5
    """Less of it where all that the fix changes was timed on the device: of 33 gains of TF32 and 16
    bits, partly timed on an H200, 31 lie in their ranges then, and all 7 of a set not seen."""

    least_held_up: float = 0.05
    """Share of the time in which the main thread had no core, from which a range is wider: on a
    machine of its own it is 1 % or 2 %."""
    most_held_up: float = 0.5
    """Largest such share that counts: beyond it others that are not of the run take more than they
    leave. A range grows no wider: what is in the way of a step is in the way of the faster one,
    too."""
    least_other_cores: float = 0.25
    """Cores in use by processes that are not of the run from which they are in its way."""


POLICY = Policy()


def widened(
    low: float,
    high: float,
    gain: float,
    held_up_share: float | None = None,
    timed_share: float = 0.0,
    *,
    is_sweeping: bool = False,
    hopes_for_other: bool = False,
) -> tuple[float, float]:
    """The range of a gain, from what the replay leaves open. `gain` is what it says of the step;
    `is_sweeping`: the fix changes the whole model; `hopes_for_other`: its upper end is of another
    way to make it, which is there or not.

    A host that could have run and did not for `held_up_share` of the time may take that much less
    of a step when nobody is in its way, and as much more of the next one.
    """
    size = min(abs(math.log(gain)), POLICY.largest_gain)
    unsure = 1 - POLICY.timed * timed_share
    error = math.exp(unsure * (POLICY.least + POLICY.per_gain * size))
    if is_sweeping:
        above = 1.0 if hopes_for_other else POLICY.sweeping
        low, high = _not_all_at_once(low, high, gain, math.log(error), above)
        error = 1.0
    if held_up_share is not None and held_up_share >= POLICY.least_held_up:
        error /= 1.0 - min(held_up_share, POLICY.most_held_up)
    return low / error, high * error


def _not_all_at_once(
    low: float, high: float, gain: float, error: float, share_above: float
) -> tuple[float, float]:
    """Range of a gain whose open part and own error do not depend on one another."""
    below, above = (math.log(max(step, 1.0)) for step in (gain / low, high / gain))
    return (
        gain / math.exp(math.hypot(POLICY.sweeping * below, error)),
        gain * math.exp(math.hypot(share_above * above, error)),
    )


def is_crowded(run: RunFacts) -> bool:
    """Whether other processes were so much in the run's way that no small gain can be told from
    what they did. What a run does to itself, or what its quota does to it, is its own."""
    return is_rank_crowded(run.most_held_up)


def is_rank_crowded(rank: RankMetadata | None) -> bool:
    """The same of one rank."""
    return (
        rank is not None
        and (rank.queued_share or 0.0) >= POLICY.most_held_up
        and (rank.other_cores or 0.0) >= POLICY.least_other_cores
    )
