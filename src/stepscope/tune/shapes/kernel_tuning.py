"""What `tune kernel` found: every configuration checked against a reference, the right ones timed,
one winner for each case.

A field is None when it was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from msgspec import Struct
from msgspec.structs import force_setattr

from stepscope.core.codec import Contract
from stepscope.core.experiments.trials import Value

Shapes = tuple[tuple[int, ...], ...]
"""One shape for each tensor, or a single one that the inputs are made from."""

RIGHT, WRONG, FAILED, NOT_TRIED = "right", "wrong", "failed", "not tried"
"""What became of a configuration. Failed: it raised, died or took too long. Not tried: the budget
was spent before."""


class Case(Struct, frozen=True, kw_only=True, rename={"is_timed": "timed"}):
    """One call: shapes and precision of its inputs."""

    shapes: Shapes
    dtype: str
    is_timed: bool
    """An edge case is checked alone."""

    @property
    def words(self) -> str:
        return f"{shape_words(self.shapes)} {self.dtype}"


def shape_words(shapes: Shapes) -> str:
    return ";".join("x".join(map(str, shape)) if shape else "scalar" for shape in shapes)


class Error(Struct, frozen=True, kw_only=True):
    """How far something is from the reference, in the worst of its outputs.

    Both are relative: the worst element over its own size and the output's rms together, and the
    rms of the difference over the rms of the output.
    """

    worst: float
    rms: float


class Deviation(Struct, frozen=True, kw_only=True):
    """One comparison with the reference: what was compared, where, and what would have been
    allowed."""

    case: Case
    output: str
    """output 0, gradient of x, ..."""
    error: float | None
    """None where there is no number: another shape, a NaN where the reference has none, an integer
    that differs."""
    allowed: float | None
    measure: str
    """worst element, rms, or what is wrong in words."""

    @property
    def share(self) -> float:
        """Share of what is allowed; above 1 is wrong."""
        if self.error is None or not self.allowed:
            return float("inf")
        return self.error / self.allowed

    @property
    def may_be_rounding(self) -> bool:
        """Wrong, but with half of the digits right: another order of sums may do that, a wrong mask
        hardly."""
        half = {"float32": 2.0**-12, "float64": 2.0**-26}.get(self.case.dtype, 0.0)
        return self.error is not None and self.share > 1 and self.error < half


class Trying(Struct, frozen=True, kw_only=True):
    settings: Mapping[str, Value]
    """Empty: as the function runs when nothing is said."""
    outcome: str
    why: str | None = None
    """Reason of a failure: what was raised, or what ended it."""
    failed_at: Case | None = None
    worst: Deviation | None = None
    """The comparison nearest to, or farthest over, what is allowed."""
    num_checks: int = 0
    """Outputs and gradients compared, over all cases."""


class Timed(Struct, frozen=True, kw_only=True, rename={"num_samples": "samples"}):
    """One configuration's time in one case: the median of its samples and where the middle four
    fifths of them lie."""

    ns: float
    low_ns: float
    high_ns: float
    num_samples: int


class Gain(Struct, frozen=True, kw_only=True, rename={"num_pairs": "pairs"}):
    """How much faster, baseline / winner, from samples that were not used to choose the winner."""

    value: float
    low: float
    high: float
    num_pairs: int


class Floor(Struct, frozen=True, kw_only=True, rename={"bytes_moved": "bytes"}):
    """What no kernel can go below: inputs and outputs moved once, and the products' arithmetic."""

    bytes_moved: int
    flops: float | None
    """FLOPs of matrix products, convolutions and attention; None where they could not be
    counted."""
    ns: float | None
    """None where the device's roofs are not known."""
    bound: str | None
    """memory or arithmetic."""
    fits_cache: bool
    """Whether all of it fits the device's last cache: with warm caches the floor is then not
    one."""


class CaseResult(Struct, frozen=True, kw_only=True, rename={"gain": "speedup"}):
    """A timed case. Configurations are named by their index in `configs`."""

    case: Case
    floor: Floor
    times: tuple[Timed | None, ...]
    """Times in the order of the configurations; null where it was not timed."""
    reference: Timed | None
    """The reference's own time, where it is another function."""
    baseline: int | None
    winner: int | None
    """null where no configuration was right, or none could be timed."""
    settings: Mapping[str, Value] | None = None
    """The winner's."""
    gain: Gain | None = None
    """Gain of the winner over the baseline; null where the winner is the baseline, or that was
    wrong."""
    share_of_floor: float | None = None
    """Share of the floor's speed that the winner reaches; above 1 where the data never leave the
    cache."""
    ties: tuple[int, ...] = ()
    """Configurations that these samples do not tell from the winner."""

    def __post_init__(self) -> None:
        timed = None if self.winner is None else self.times[self.winner]
        share = None if timed is None or not self.floor.ns else self.floor.ns / timed.ns
        force_setattr(self, "share_of_floor", share)


class Device(Struct, frozen=True, kw_only=True):
    """What it ran on."""

    name: str
    kind: str


class Timing(Struct, frozen=True, kw_only=True):
    """How times were taken."""

    by: str
    """device: on the device alone; call: one call after another, the host's part with it."""
    caches: str
    """warm or cold."""
    gradients: bool
    """Whether the timed calls run backward as well."""


class Check(Struct, frozen=True, kw_only=True):
    """What outputs were compared with."""

    tolerance: float
    allowed: Mapping[str, Error]
    """Distance from the reference that an output may have, by precision."""
    cases: tuple[Case, ...]
    """All of them, the edges as well."""
    gradients: bool


class KernelTuning(
    Contract,
    frozen=True,
    kw_only=True,
    tag="stepscope.kernel_tuning/1",
    rename={"tryings": "configs"},
):
    """What `stepscope tune kernel --format json` prints: the whole sweep. What was not measured is
    null, never 0."""

    what: str
    reference: str
    """What it was checked against, in words."""
    device: Device
    versions: Mapping[str, str]
    measured: Timing
    check: Check
    roofs: str | None
    """Where the floors' rates come from."""
    tryings: tuple[Trying, ...]
    cases: tuple[CaseResult, ...]
    overall: int | None
    """One configuration for all timed cases."""
    wall_s: float
    notes: tuple[str, ...] = ()


def best_overall(tryings: Sequence[Trying], cases: Sequence[CaseResult]) -> int | None:
    """One configuration for all timed cases: the least geometric mean of its time over each case's
    fastest."""
    sums: dict[int, float] = {}
    for index, trying in enumerate(tryings):
        times = [timed for result in cases if (timed := result.times[index]) is not None]
        if trying.outcome == RIGHT and times and len(times) == len(cases):
            sums[index] = sum(log(timed.ns) for timed in times)
    return min(sums, key=lambda index: sums[index]) if sums else None
