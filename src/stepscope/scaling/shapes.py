"""What runs of several widths lose against the narrowest."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stepscope.core.scaling import SCALING_PARTS, WidthRun

KINDS = ("weak", "strong")


class Loss(Struct, frozen=True, kw_only=True):
    """What one run loses against the ideal: the base run's step, divided by the growth in width
    where scaling is strong."""

    ideal_ns: int
    lost_ns: int
    """The step less the ideal; negative where the run is better than that."""
    parts_ns: Mapping[str, int | None] | None
    """Time by SCALING_PARTS, summing to `lost_ns`."""
    worst: str | None
    """The part that lost most; None where nothing is lost or the parts are not known."""

    def self_check(self) -> None:
        if self.parts_ns is not None:
            assert set(self.parts_ns) == set(SCALING_PARTS)
            assert sum(ns or 0 for ns in self.parts_ns.values()) == self.lost_ns


class Gain(Struct, frozen=True, kw_only=True):
    """How one run compares with the base run."""

    ideal_speedup: float
    speedup: float
    """Ratio of the work done in a second."""
    efficiency: float
    """Speedup over ideal speedup."""
    efficiency_low: float | None
    efficiency_high: float | None
    """At least 95 % confidence; None where either run has no interval."""
    karp_flatt: float | None
    """The serial share of the base run's step that would explain the speedup; None where scaling is
    weak."""
    loss: Loss | None
    """None of rates: no step is known."""


class Amdahl(Struct, frozen=True, kw_only=True):
    """T(n) = T(1) * (serial + (1 - serial) / n), fitted over all widths."""

    serial_fraction: float
    worst: float
    """The greatest relative misfit."""
    num_widths: int


class Scaling(Struct, frozen=True, kw_only=True):
    """The runs by width, the narrowest first: it is the base of all comparisons."""

    kind: str | None
    """weak, strong, or None where it is neither measured nor given: there are step times alone
    then."""
    kind_source: str
    """given, measured, mixed (measured, and neither), rates or not measured."""
    because: str
    runs: tuple[WidthRun, ...]
    gains: tuple[Gain | None, ...]
    """One for each run, None for the base and wherever it is not known."""
    amdahl: Amdahl | None
    notes: tuple[str, ...]

    def self_check(self) -> None:
        assert len(self.gains) == len(self.runs)
        assert all(a.width < b.width for a, b in zip(self.runs, self.runs[1:], strict=False))
        for run in self.runs:
            run.self_check()
        for gain in self.gains:
            if gain is not None and gain.loss is not None:
                gain.loss.self_check()
