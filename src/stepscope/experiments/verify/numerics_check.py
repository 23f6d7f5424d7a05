"""Whether a change left alone what is computed: losses, gradients and parameters of two runs, step
by step.

Two runs of the baseline say how far it differs from itself: a difference within that is not the
candidate's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from operator import attrgetter

from stepscope.core.experiments.experiment import Gap, NumericsCheck
from stepscope.core.experiments.trials import NumericRow

IDENTICAL = "bit-identical"
ROUNDING = "equal within rounding"
NOISE = "within the baseline's own noise"
DIFFERS = "differs"
UNKNOWN = "not comparable"

TOLERANCE = 1e-4
"""Relative, of a loss. Sums in float32 taken in another order part by 1e-7 and grow over tens of
steps; TF32 and bfloat16 part by 1e-3 and more at once."""
GRADIENT_TOLERANCE = 10.0
"""Times the loss's: a norm of gradients follows the parameters' drift more closely."""
NOISE_FACTOR = 3.0
"""Times the baseline's distance from itself: one pair of runs tells it only roughly."""

MAX_NOISE = 0.01
"""Distance of the baseline from itself beyond which it is not rounding that grew, but another run:
no seed."""

Rows = Sequence[NumericRow]
Read = Callable[[NumericRow], "float | None"]


def check_numerics(
    baseline: Rows, again: Rows, candidate: Rows, tolerance: float = TOLERANCE
) -> NumericsCheck:
    """The candidate against the baseline; `again` is a second run of the baseline, empty where
    there was none."""
    loose = tolerance * GRADIENT_TOLERANCE
    loss = _Quantity("loss", baseline, again, candidate, attrgetter("loss"), tolerance)
    norm = _Quantity("gradient norm", baseline, again, candidate, attrgetter("grad_norm"), loose)
    size = _Quantity(
        "parameters' norm", baseline, again, candidate, attrgetter("parameter_norm"), tolerance
    )
    equal, compared = _digests(baseline, candidate)
    verdict, because = _verdict((loss, norm, size), equal == compared, compared)
    return NumericsCheck(
        verdict=verdict,
        because=because,
        tolerance=tolerance,
        loss=loss.gap,
        grad_norm=norm.gap,
        parameter_norm=size.gap,
        loss_floor=loss.floor,
        grad_norm_floor=norm.floor,
        parameter_norm_floor=size.floor,
        is_deterministic=_is_repeated(baseline, again, loss.floor, norm.floor),
        num_parameters_equal=equal if compared else None,
        num_parameters_compared=compared,
    )


class _Quantity:
    """One of the things compared: the candidate's distance from the baseline, and the baseline's
    from itself."""

    def __init__(
        self, words: str, baseline: Rows, again: Rows, candidate: Rows, read: Read, tolerance: float
    ) -> None:
        self.words = words
        self.gap = _gap(baseline, candidate, read, tolerance)
        self.floor = _gap(baseline, again, read, tolerance)
        first = next((row.step for row in baseline if read(row) is not None), None)
        self.starts_apart = self.floor.first_step is not None and self.floor.first_step == first
        """Whether two runs of the baseline are other runs from the first step on, before rounding
        could have grown: how far they are apart then says nothing of how far a third is."""


def _verdict(quantities: Sequence[_Quantity], same_bits: bool, compared: int) -> tuple[str, str]:
    seen = [quantity for quantity in quantities if quantity.gap.largest is not None]
    if not seen and not compared:
        return UNKNOWN, "neither losses nor gradients nor parameters of a common step were seen"
    if all(quantity.gap.largest == 0 for quantity in seen) and same_bits:
        return IDENTICAL, _same_words(seen, compared)
    beyond = [quantity for quantity in seen if quantity.gap.first_step is not None]
    if not beyond:
        if not seen:
            unknown = "neither losses nor norms were seen that say by how much"
            return DIFFERS, f"the parameters' bits differ, and {unknown}"
        return ROUNDING, _furthest([quantity.gap for quantity in seen])
    worse = [quantity for quantity in beyond if not _is_noise(quantity)]
    loose = [
        quantity
        for quantity in beyond
        if quantity.starts_apart or (quantity.floor.largest or 0.0) > MAX_NOISE
    ]
    if not worse and loose:
        apart = f"two runs of the baseline are {_apart(loose[0].floor)} themselves"
        why = f"{apart} in the {loose[0].words}: the job is not seeded, and nothing can be told"
        return UNKNOWN, why
    if not worse:
        noisy = beyond[0]
        why = f"the {noisy.words} is {_apart(noisy.gap)}"
        return NOISE, f"{why}; two runs of the baseline are {_apart(noisy.floor)}"
    first = min(worse, key=lambda quantity: quantity.gap.first_step or 0)
    why = f"the {first.words} differs from step {first.gap.first_step} on: {_apart(first.gap)}"
    if first.floor.largest is not None:
        why += f"; two runs of the baseline are {_apart(first.floor)}"
    return DIFFERS, why


def _same_words(quantities: Sequence[_Quantity], compared: int) -> str:
    """Parameters' bits are looked at after fewer steps than losses are."""
    named = " and ".join(f"every {quantity.words}" for quantity in quantities)
    num = max((quantity.gap.num for quantity in quantities), default=0)
    steps = "the one step" if num == 1 else f"each of the {num} steps"
    bits = f"every parameter's bits after {'one' if compared == 1 else compared}"
    if not named:
        return f"{bits} {'step' if compared == 1 else 'steps'} are the same"
    agreement = f"{named} agree at {steps} compared"
    return f"{agreement}, and {bits} of them" if compared else agreement


def _is_noise(quantity: _Quantity) -> bool:
    gap, floor = quantity.gap.largest, quantity.floor.largest
    if floor is None or gap is None or not math.isfinite(gap):
        return False
    return quantity.starts_apart or gap <= NOISE_FACTOR * floor


def _furthest(gaps: Sequence[Gap]) -> str:
    largest = max(gaps, key=lambda gap: gap.largest or 0.0)
    if not largest.largest:
        return (
            "every loss and norm compared is the same to the last bit, some parameters' bits are "
            "not"
        )
    return f"{_apart(largest)} at most"


def _apart(gap: Gap) -> str:
    if gap.largest is None:
        return "not compared"
    if not math.isfinite(gap.largest):
        return f"one of the two is not a number at step {gap.at_step}"
    return f"{gap.largest:.1e} apart (relative)" if gap.largest else "not apart at all"


def _gap(first: Rows, second: Rows, read: Read, tolerance: float) -> Gap:
    """Gap over the steps that both have."""
    others = {row.step: value for row in second if (value := read(row)) is not None}
    pairs = [
        (row.step, value, others[row.step])
        for row in first
        if (value := read(row)) is not None and row.step in others
    ]
    # A loss near zero is no measure of itself: the usual size of it is.
    least = tolerance * statistics.median(
        [abs(a) for _, a, _ in pairs if math.isfinite(a)] or [0.0]
    )
    apart = [(step, _relative(a, b, least)) for step, a, b in pairs]
    if not apart:
        return Gap(num=0, largest=None, at_step=None, first_step=None)
    at_step, largest = max(apart, key=lambda pair: pair[1])
    first_step = next((step for step, distance in apart if distance > tolerance), None)
    return Gap(
        num=len(apart),
        largest=largest,
        is_number=math.isfinite(largest),
        at_step=at_step,
        first_step=first_step,
    )


def _relative(a: float, b: float, least: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), least)


def _digests(first: Rows, second: Rows) -> tuple[int, int]:
    """Number of steps after which the parameters had the same bits, and how many were compared."""
    others = {row.step: row.parameters for row in second if row.parameters is not None}
    pairs = [
        (row.parameters, others[row.step])
        for row in first
        if row.parameters is not None and row.step in others
    ]
    return sum(a == b for a, b in pairs), len(pairs)


def _is_repeated(baseline: Rows, again: Rows, loss: Gap, norm: Gap) -> bool | None:
    equal, compared = _digests(baseline, again)
    distances = [gap.largest for gap in (loss, norm) if gap.largest is not None]
    if not distances and not compared:
        return None
    return equal == compared and all(largest == 0 for largest in distances)
