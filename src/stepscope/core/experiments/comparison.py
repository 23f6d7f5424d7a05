"""Comparison: two runs of a job, how much faster the second is, and where the difference lies.

A field is None when it was not measured. Times are whole nanoseconds of a step, so that rows sum to
their total to the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from stepscope.core.constraints import one_of

OVERLAP = "overlap"
"""In an account of the device: what ran beside other work is in the sums of durations twice, and in
the busy time once."""

HOWS = ("came", "went", "replaced", "launcher", "precision", "shape", "count", "kernels", "time")
"""How work changed. launcher: the same kernels, with an operator on one side and a graph on the
other; count: called more or less often; kernels: other kernels for the same operator; time: nothing
but its time."""
PAIRED_BY = ("name", "operator", "kernel", "place", "origin", "module", "optimizer", "none")
"""By what work of the two runs is paired: operator and shapes, operator, kernel,
standing between the same neighbours, the forward operator it belongs to, the module, or being the
optimizer's."""
VERDICTS = ("faster", "slower", "no difference seen", "not told")


class ComparedRun(Struct, frozen=True, kw_only=True):
    """One of the two, as it is named in the report."""

    label: str
    kind: str
    """run, traces or diagnosis."""
    step_ns: float | None
    """The mean of the steps that are compared, the median where they were recorded, or the one
    figure that is known."""
    num_steps: int
    source: str
    """unprofiled, given, kept (a diagnosis' figure) or recorded (while profiled)."""
    bound: str
    num_ranks: int
    world_size: int | None
    device_name: str | None
    samples: float | None
    """Samples a step, on all ranks."""
    flops: float | None
    """The model's, a step, on all ranks that were read."""
    peak_bytes: float | None
    """The most that torch held on one rank's devices."""
    is_mean: bool = False
    """Whether `step_ns` is the steps' mean, as that of steps with no profiler and a kept figure
    are, and not their median."""


class Speedup(Struct, frozen=True, kw_only=True):
    """Before / after: more than 1 is faster."""

    value: float | None
    low: float | None
    high: float | None
    level: float
    smallest: float | None
    """The smallest ratio above 1 that these samples could have shown; None without an interval."""
    verdict: str
    why: str
    """Why there is no interval, or no ratio; "" where there is one."""


class Row(Struct, frozen=True, kw_only=True):
    """One line of an account."""

    name: str
    before_ns: int | None
    """Nanoseconds a step; null where that run has none of it."""
    after_ns: int | None
    change_ns: int = 0
    """After less before: negative is less time."""

    def __post_init__(self) -> None:
        force_setattr(self, "change_ns", (self.after_ns or 0) - (self.before_ns or 0))


class Account(Struct, frozen=True, kw_only=True):
    """One way to split a time: the rows and the rest sum to the totals exactly."""

    by: str
    """part, phase, category, kernel, module or collective."""
    before_ns: int
    after_ns: int
    rows: tuple[Row, ...]
    """What changed most first."""
    rest: Row
    """All that has no row of its own."""
    num_left_out: int = 0

    @property
    def change_ns(self) -> int:
        return self.after_ns - self.before_ns

    def self_check(self) -> None:
        rows = (*self.rows, self.rest)
        assert sum(row.before_ns or 0 for row in rows) == self.before_ns, (
            f"{self.by}: the rows do not sum to the total before"
        )
        assert sum(row.after_ns or 0 for row in rows) == self.after_ns, (
            f"{self.by}: the rows do not sum to the total after"
        )


class Work(Struct, frozen=True, kw_only=True):
    """What one side of a changed row did, a step."""

    ops: tuple[str, ...]
    """Most costly first."""
    kernels: tuple[str, ...]
    shapes: tuple[str, ...]
    precisions: tuple[str, ...]
    count: float
    """Calls a step: of operators, or of kernels where they were launched by none."""
    ns: int


class Changed(Struct, frozen=True, kw_only=True):
    """Work of the two runs that belongs together."""

    name: str
    phase: Annotated[str, one_of("forward", "backward", "optimizer", "recompute")] | None
    module: str | None
    # The first says most.
    how: Annotated[tuple[Annotated[str, one_of(*HOWS)], ...], Meta(min_length=1)]
    paired_by: Annotated[str, one_of(*PAIRED_BY)]
    before_ns: int = 0
    after_ns: int = 0
    change_ns: int = 0
    before: Work | None
    after: Work | None

    def __post_init__(self) -> None:
        before_ns, after_ns = (0 if work is None else work.ns for work in (self.before, self.after))
        force_setattr(self, "before_ns", before_ns)
        force_setattr(self, "after_ns", after_ns)
        force_setattr(self, "change_ns", after_ns - before_ns)


class DeviceChange(Struct, frozen=True, kw_only=True):
    """The device's busy time of a step, split over pairs of work; the host's operators where
    nothing ran on a device."""

    where: str
    ranks: tuple[int, ...]
    """Whose mean it is."""
    before_ns: int
    after_ns: int
    changed: tuple[Changed, ...]
    """What changed most first."""
    rest: Row
    """What has no entry of its own."""
    overlap: Row

    @property
    def change_ns(self) -> int:
        return self.after_ns - self.before_ns

    def self_check(self) -> None:
        for side in ("before_ns", "after_ns"):
            parts = [getattr(row, side) for row in (*self.changed, self.rest, self.overlap)]
            assert sum(parts) == getattr(self, side), (
                f"{side}: {sum(parts)} is not {getattr(self, side)}"
            )


class Held(Struct, frozen=True, kw_only=True):
    """A finding of the first run, compared with what the second one gave."""

    code: str
    status: Annotated[str, one_of("gone", "still there", "not judged", "new")]
    """Not judged: in the second run."""
    predicted: float
    predicted_low: float
    predicted_high: float
    measured: float | None
    """Of all changes together; None where the finding is not gone."""
    agrees: bool | None
    """Whether the measured ratio lies within the prediction, or their intervals meet."""


class Knob(Struct, frozen=True, kw_only=True):
    """A setting that differs. None where that run did not tell it."""

    name: str
    before: str | None
    after: str | None


class RankChange(Struct, frozen=True, kw_only=True):
    """One rank: its own work a step (all but waiting for the others), and its waiting."""

    rank: int
    before_ns: float | None
    """Its own work."""
    after_ns: float | None
    wait_before_ns: float | None
    wait_after_ns: float | None


class RanksChange(Struct, frozen=True, kw_only=True):
    """The ranks against one another."""

    rows: tuple[RankChange, ...]
    late_before: tuple[int, ...]
    late_after: tuple[int, ...]
    """Ranks that the others wait for."""
    spread_before_ns: float | None
    """The longest own work less the shortest."""
    spread_after_ns: float | None


class Comparison(Struct, frozen=True, kw_only=True):
    """One run against the first."""

    before: ComparedRun
    after: ComparedRun
    speedup: Speedup
    throughput: Speedup | None
    """Of work done in a second; None where both do the same work a step, or that is not known."""
    throughput_unit: str
    """samples or FLOPs."""
    unequal: tuple[str, ...]
    """Why the two are not the same work."""
    accounts: tuple[Account, ...]
    device: DeviceChange | None
    ranks: RanksChange | None
    memory: Mapping[int, tuple[float | None, float | None]]
    """Peak bytes of each rank."""
    held: tuple[Held, ...]
    predicted_together: float | None
    """What all the findings that are gone would give at once; None for one, or where that was not
    replayed."""
    knobs: tuple[Knob, ...]
    notes: tuple[str, ...]

    def account(self, by: str) -> Account | None:
        return next((account for account in self.accounts if account.by == by), None)

    def self_check(self) -> None:
        for account in self.accounts:
            account.self_check()
        if self.device is not None:
            self.device.self_check()
