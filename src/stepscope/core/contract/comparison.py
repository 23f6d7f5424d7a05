"""`stepscope.comparison/1`: what `stepscope compare --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from stepscope.core.constraints import AboveZero, Count, Gain, keys_of, one_of
from stepscope.core.contract.codec import Contract
from stepscope.core.contract.gate import Gate
from stepscope.core.experiments.comparison import (
    VERDICTS,
    Changed,
    Held,
    Knob,
    RanksChange,
    Row,
)

Verdict = Annotated[str, one_of(*VERDICTS)]


class Run(Struct, frozen=True, kw_only=True):
    """One of the two runs."""

    label: str
    kind: Annotated[str, one_of("run", "traces", "diagnosis")]
    step_ms: float | None
    """The median of the steps compared, or the one figure known."""
    num_steps: Count
    source: Annotated[str, one_of("unprofiled", "given", "kept", "recorded")]
    bound: str
    num_ranks: Count
    world_size: int | None
    device_name: str | None
    samples: float | None
    """Samples a step, on all ranks."""
    flops: float | None
    """The model's, a step, on all ranks read."""
    peak_bytes: float | None


class Speedup(Struct, frozen=True, kw_only=True):
    """Before / after: more than 1 is faster."""

    value: AboveZero | None
    """Before / after; null where the steps cannot be compared."""
    low: AboveZero | None
    high: AboveZero | None
    """The interval over steps; null where it was not measured."""
    level: float
    """How often such an interval holds."""
    smallest_shown: Gain | None
    """The smallest ratio above 1 that these samples could have shown, four times in five."""
    verdict: Verdict
    why: str | None
    """Why there is no interval, or no ratio."""


class Throughput(Struct, frozen=True, kw_only=True):
    """Work done in a second, after / before: where the two do not do the same work a step."""

    unit: Annotated[str, one_of("samples", "FLOPs")]
    value: AboveZero | None
    """After / before; null where the work cannot be compared."""
    low: AboveZero | None
    high: AboveZero | None
    """The interval over steps; null where it was not measured."""
    level: float
    """How often such an interval holds."""
    smallest_shown: Gain | None
    """The smallest ratio above 1 that these samples could have shown, four times in five."""
    verdict: Verdict
    why: str | None
    """Why there is no interval, or no ratio."""


class Account(Struct, frozen=True, kw_only=True):
    """One way to split a time: the rows and the rest sum to the totals, exactly."""

    before_ns: int
    after_ns: int
    change_ns: int
    rows: tuple[Row, ...]
    rest: Row
    num_left_out: Count
    """Rows that are in the rest."""


class Device(Struct, frozen=True, kw_only=True):
    """The device's busy time of a step, or the host's operators where nothing ran on a device."""

    where: Annotated[str, one_of("device", "host")]
    ranks: tuple[int, ...]
    """Whose mean it is."""
    before_ns: int
    after_ns: int
    change_ns: int
    rest: Row
    overlap: Row


class RankMemory(Struct, frozen=True, kw_only=True):
    """The most that torch held on one rank's devices."""

    rank: int
    before_bytes: float | None
    after_bytes: float | None


class Compared(Struct, frozen=True, kw_only=True):
    """One run against the first."""

    before: Run
    after: Run
    speedup: Speedup
    throughput: Throughput | None
    same_work: bool
    """false where the two are known not to do the same work a step; `unequal` says why."""
    unequal: tuple[str, ...]
    changed: tuple[Changed, ...]
    """Work that differs, what changed most first. With `device.rest` and `device.overlap` it sums
    to `device`, exactly."""
    device: Device | None
    accounts: Annotated[
        Mapping[str, Account],
        keys_of("part", "phase", "category", "kernel", "module", "collective"),
    ]
    """Splits of the step (part), of the device's busy time (phase, category, kernel, module) and of
    the collectives' time. Rows and rest sum to the totals, exactly."""
    ranks: RanksChange | None
    memory: tuple[RankMemory, ...]
    """The most that torch held on each rank's devices."""
    predicted: tuple[Held, ...]
    """The findings of the first run, compared with the second, and those that are new."""
    predicted_together: float | None
    """What all the findings that are gone would give at once; null for one, or where that was not
    replayed."""
    knobs: tuple[Knob, ...]
    """Settings that differ."""
    notes: tuple[str, ...]


class ComparisonContract(
    Contract,
    Compared,
    frozen=True,
    kw_only=True,
    tag="stepscope.comparison/1",
):
    """What `stepscope compare --format json` prints. null is 'not measured', 0 is 'measured to be
    zero'. Times are nanoseconds of one step. docs/compare.md says what each field means."""

    others: tuple[Compared, ...]
    """Further runs, each against the first."""
    gate: Gate | UnsetType = UNSET
    """There only with --fail-if or --budget: as in stepscope.diagnosis/1."""
