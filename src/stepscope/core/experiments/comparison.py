"""Comparison: two runs of a job, how much faster the second is, and where the difference lies.

A field is None when it was not measured. Times are whole nanoseconds of a step, so that rows sum to
their total to the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import asdict, force_setattr

from stepscope.core.codec import AboveZero, Contract, Count, Gain, keys_of, one_of
from stepscope.core.gate import Gate

OVERLAP = "overlap"
"""Name of overlap in an account of the device: what ran beside other work is in the sums of
durations twice, and in the busy time once."""

HOWS = ("came", "went", "replaced", "launcher", "precision", "shape", "count", "kernels", "time")
"""How work changed. launcher: the same kernels, with an operator on one side and a graph on the
other; count: called more or less often; kernels: other kernels for the same operator; time: nothing
but its time."""
PAIRED_BY = ("name", "operator", "kernel", "place", "origin", "module", "optimizer", "none")
"""Ways in which work of the two runs is paired: operator and shapes, operator, kernel, standing
between the same neighbours, the forward operator it belongs to, the module, or being the
optimizer's."""
VERDICTS = ("faster", "slower", "no difference seen", "not told")


class ComparedRun(Struct, frozen=True, kw_only=True):
    """One of the two runs."""

    label: str
    kind: Annotated[str, one_of("run", "traces", "diagnosis")]
    step_ms: float | None
    """Mean of the compared steps without the longest and shortest twentieth, or their median; else
    the one figure known."""
    is_mean: bool = field(default=False, name="mean")
    """Whether `step_ms` is the steps' mean, as that of steps with no profiler and a kept figure
    are, and not their median."""
    num_steps: Count
    source: Annotated[str, one_of("unprofiled", "given", "kept", "recorded")]
    """kept: a diagnosis' figure; recorded: while profiled."""
    bound: str
    num_ranks: Count
    world_size: int | None
    device_name: str | None
    samples: float | None
    """Samples a step, on all ranks."""
    flops: float | None
    """The model's, a step, on all ranks read."""
    peak_bytes: float | None
    """The most that torch held on one rank's devices."""


class Speedup(Struct, frozen=True, kw_only=True, rename={"smallest": "smallest_shown"}):
    """Ratio before / after: more than 1 is faster."""

    value: AboveZero | None
    """Ratio before / after; null where the steps cannot be compared."""
    low: AboveZero | None = None
    high: AboveZero | None = None
    """The interval over steps; null where it was not measured."""
    level: float = 0.95
    """How often such an interval holds."""
    smallest: Gain | None = None
    """The smallest ratio above 1 that these samples could have shown, four times in five."""
    verdict: Annotated[str, one_of(*VERDICTS)]
    why: str | None = None
    """Why there is no interval, or no ratio."""


class Throughput(Speedup, frozen=True, kw_only=True):
    """Work done in a second, after / before: where the two do not do the same work a step."""

    unit: Annotated[str, one_of("samples", "FLOPs")]


class Row(Struct, frozen=True, kw_only=True):
    """One line of an account."""

    name: str
    before_ns: int | None
    """Nanoseconds a step; null where that run has none of it."""
    after_ns: int | None
    change_ns: int = 0
    """Time after less before: negative is less time."""

    def __post_init__(self) -> None:
        force_setattr(self, "change_ns", (self.after_ns or 0) - (self.before_ns or 0))


class Account(Struct, frozen=True, kw_only=True):
    """One way to split a time: the rows and the rest sum to the totals exactly."""

    before_ns: int
    after_ns: int
    change_ns: int = 0
    rows: tuple[Row, ...]
    """What changed most first."""
    rest: Row
    """All that has no row of its own."""
    num_left_out: Count = 0
    """Rows that are in the rest."""

    def __post_init__(self) -> None:
        force_setattr(self, "change_ns", self.after_ns - self.before_ns)

    def self_check(self, by: str) -> None:
        for side in ("before_ns", "after_ns"):
            total = sum(getattr(row, side) or 0 for row in (*self.rows, self.rest))
            assert total == getattr(self, side), f"{by}: the rows sum to {total} {side}"


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
    """The device's busy time of a step, or the host's operators where nothing ran on a device:
    split over pairs of work."""

    where: Annotated[str, one_of("device", "host")]
    ranks: tuple[int, ...]
    """Ranks that it is the mean of."""
    before_ns: int
    after_ns: int
    change_ns: int = 0
    rest: Row
    """Sum of what has no entry of its own."""
    overlap: Row

    def __post_init__(self) -> None:
        force_setattr(self, "change_ns", self.after_ns - self.before_ns)

    def self_check(self, changed: Sequence[Changed]) -> None:
        """Assert that the work that changed, the rest and the overlap sum to it."""
        rows = (*changed, self.rest, self.overlap)
        for side in ("before_ns", "after_ns"):
            total = sum(getattr(row, side) for row in rows)
            assert total == getattr(self, side), f"the device's rows sum to {total} {side}"


class PredictionOutcome(Struct, frozen=True, kw_only=True):
    """A finding of the first run, compared with what the second one gave."""

    code: str
    status: Annotated[str, one_of("gone", "still there", "not judged", "new")]
    """Not judged: in the second run."""
    predicted: float
    predicted_low: float
    predicted_high: float
    measured: float | None
    """Speedup of all changes together; None where the finding is not gone."""
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
    """Time of the rank's own work."""
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


class RankMemory(Struct, frozen=True, kw_only=True):
    """The most that torch held on one rank's devices."""

    rank: int
    before_bytes: float | None
    after_bytes: float | None


class Comparison(Struct, frozen=True, kw_only=True, rename={"held": "predicted"}):
    """One run against the first."""

    before: ComparedRun
    after: ComparedRun
    speedup: Speedup
    throughput: Throughput | None
    """Throughput of work done in a second; null where both do the same work a step, or that is not
    known."""
    same_work: bool
    """false where the two are known not to do the same work a step; `unequal` says why."""
    unequal: tuple[str, ...]
    changed: tuple[Changed, ...]
    """Work that differs, what changed most first. With `device.rest` and `device.overlap` it sums
    to `device`, exactly."""
    device: DeviceChange | None
    accounts: Annotated[
        Mapping[str, Account],
        keys_of("part", "phase", "category", "kernel", "module", "collective"),
    ]
    """Splits of the step (part), of the device's busy time (phase, category, kernel, module) and of
    the collectives' time. Rows and rest sum to the totals, exactly."""
    ranks: RanksChange | None
    memory: tuple[RankMemory, ...]
    """The most that torch held on each rank's devices."""
    held: tuple[PredictionOutcome, ...]
    """The findings of the first run, compared with the second, and those that are new."""
    predicted_together: float | None
    """What all the findings that are gone would give at once; null for one, or where that was not
    replayed."""
    knobs: tuple[Knob, ...]
    """Settings that differ."""
    notes: tuple[str, ...]

    def self_check(self) -> None:
        for by, account in self.accounts.items():
            account.self_check(by)
        if self.device is not None:
            self.device.self_check(self.changed)


class Comparisons(Contract, Comparison, frozen=True, kw_only=True, tag="stepscope.comparison/1"):
    """What `stepscope compare --format json` prints. null is 'not measured', 0 is 'measured to be
    zero'. Times are nanoseconds of one step. docs/compare.md says what each field means."""

    others: tuple[Comparison, ...] = ()
    """Further runs, each against the first."""
    gate: Gate | UnsetType = UNSET
    """Present only with --fail-if or --budget: as in stepscope.diagnosis/1."""


def as_document(comparisons: Sequence[Comparison], gate: Gate | None = None) -> Comparisons:
    """The second run against the first; further runs, each against the first, are under
    `others`."""
    first, *others = comparisons
    return Comparisons(**asdict(first), others=tuple(others), gate=UNSET if gate is None else gate)
