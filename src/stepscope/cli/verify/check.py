"""What the two sides of `stepscope verify` compute, compared with each other, and what a gain is
worth by that."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from stepscope.core.experiments.experiment import Measured, NumericsCheck, Verified
from stepscope.core.experiments.trials import Trial
from stepscope.experiments.verify.numerics_check import DIFFERS, TOLERANCE, UNKNOWN, check_numerics


def check_of(runs: Sequence[Measured], tolerance: float | None) -> NumericsCheck:
    """The candidate's numbers against those of two runs of the baseline; not comparable where their
    steps see other data."""
    first, again, candidate = (run.trial for run in runs)
    check = check_numerics(
        first.numerics,
        again.numerics,
        candidate.numerics,
        TOLERANCE if tolerance is None else tolerance,
    )
    if first.setup.samples != candidate.setup.samples:
        return replace(
            check,
            verdict=UNKNOWN,
            because="a step of the two sides has a different number of samples",
        )
    if first.setup.data == again.setup.data != candidate.setup.data:
        return replace(check, verdict=UNKNOWN, because=_other_data(first, candidate))
    return check


def _other_data(first: Trial, candidate: Trial) -> str:
    """Why the first batches are others, as far as that is known."""
    words = "the two sides were fed other data"
    if first.setup.batch_size != candidate.setup.batch_size:
        return (
            f"{words}: batches of another size, of which it is not known whether they make up the "
            "same steps"
        )
    if first.change.knobs.get("num_workers") != candidate.change.knobs.get("num_workers"):
        return f"{words}: worker processes draw random numbers of their own"
    return words


def numbers_notes(verified: Verified) -> list[str]:
    """What a gain is worth whose numbers are not known to be the baseline's."""
    if verified.check is None:
        compares = "--check compares losses, gradients and parameters"
        return [f"whether the two compute the same was not looked at: {compares}"]
    if verified.check.verdict != DIFFERS:
        return []
    none = "a gain that computes something else is not taken for one (exit code 1)"
    return [f"{none}; where that is meant, say --allow numerics"]
