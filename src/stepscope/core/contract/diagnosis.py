"""`stepscope.diagnosis/1`: what `stepscope diagnose --format json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from msgspec import UNSET, Struct, UnsetType

from stepscope.core.comms_facts import CommsFacts
from stepscope.core.constraints import AtLeastZero, Count, Gain
from stepscope.core.contract.codec import Contract, decode
from stepscope.core.contract.nccl import Nccl
from stepscope.core.diagnosis import Abstention, Finding, ReplayCheck, StepTime, Verdict
from stepscope.core.facts import DeviceTotals
from stepscope.core.gate import Gate
from stepscope.core.memory import MemoryUse
from stepscope.core.out_of_memory import OutOfMemoryReport
from stepscope.core.peak import PeakWaterfall
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.recordings.flight import Hang
from stepscope.core.run import RunFacts, WholeRun
from stepscope.errors import FormatError, InputError
from stepscope.protocol.untrusted import read_regular

MAX_BYTES = 256 << 20
TOO_LARGE = 1e12
"""Milliseconds of no step: 31 years."""


class Partition(Struct, frozen=True, kw_only=True):
    """Milliseconds of each part."""

    compute: AtLeastZero
    """A kernel computes."""
    comms_wait: AtLeastZero | None
    """Exposed, waiting for a later rank; null when collectives were exposed and the other ranks'
    arrivals are not known, and then comms_transfer holds both."""
    comms_transfer: AtLeastZero
    """Exposed, moving bytes."""
    transfer: AtLeastZero
    """Exposed copies."""
    idle_input: AtLeastZero
    """Idle while the host waits for input."""
    idle_sync: AtLeastZero
    """Idle after the host blocked on the device."""
    idle_launch: AtLeastZero
    """Idle while the host gets to launching."""
    idle_allocator: AtLeastZero
    """Idle while device memory is allocated or freed."""
    idle_compile: AtLeastZero
    """Idle while the host compiles."""
    idle_io: AtLeastZero
    """Idle while the host saves or loads."""
    idle_other: AtLeastZero
    """Idle with no cause recorded."""


class Rank(Struct, frozen=True, kw_only=True):
    """What was measured on one rank."""

    rank: Count
    partition_ms: Partition | None
    """The rank's median step, while profiled, split; the parts sum to it. null when no whole step
    was recorded."""
    gpu_busy_ms: AtLeastZero | None
    """Of that step, with any work on the device; null without a device or a whole step."""
    mfu: AtLeastZero | None = None
    """Model FLOPs utilisation of the run's step; null when the device's peak or the work is not
    known."""
    peak_waterfall: PeakWaterfall | None = None
    """Where the device's peak goes, in the same step as partition_ms; null without a device or a
    whole step."""
    device_ns: DeviceTotals


class RecordingLine(Struct, frozen=True, kw_only=True):
    """A word and what it is."""

    name: str
    value: str


class RecordingTable(Struct, frozen=True, kw_only=True):
    """Rows for a person."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Recording(Struct, frozen=True, kw_only=True):
    """What another tool recorded, in words."""

    format: str
    """As `stepscope formats` names it."""
    paths: tuple[str, ...]
    lines: tuple[RecordingLine, ...]
    tables: tuple[RecordingTable, ...]
    notes: tuple[str, ...]


class DiagnosisContract(Contract, frozen=True, kw_only=True, tag="stepscope.diagnosis/1"):
    """What `stepscope diagnose --format json` prints. null is 'not measured', 0 is 'measured to be
    zero'. Findings are sorted by predicted_speedup, the largest first; a larger batch that fits by
    inference alone stands last of those worth naming. docs/diagnosis.md says what each field
    means."""

    AGAIN: ClassVar[str] = "Diagnose its traces again"

    verdict: Verdict
    step: StepTime
    replay: ReplayCheck | None
    """How well the replayed step agrees with the known one; null when nothing could be replayed."""
    ranks: tuple[Rank, ...]
    peak_waterfall: PeakWaterfall | UnsetType = UNSET
    """Where the peak goes on all ranks together; of a log where no step was recorded. There only
    where it was measured."""
    findings: tuple[Finding, ...]
    ladder: tuple[Gain, ...] = ()
    """The speedup of the first finding's fix, of the first two findings' at once, and so on to all
    worth naming; one that an earlier one excludes adds nothing. Empty when nothing is worth naming,
    or nothing could be replayed."""
    abstentions: tuple[Abstention, ...] | UnsetType = UNSET
    """Findings that could not be judged. Absent in diagnoses of before it was there."""
    notes: tuple[str, ...]
    """What could not be judged, and why."""
    unknown_events: Count = 0
    """Events of kinds that stepscope does not know, counted and left out."""
    run: RunFacts | UnsetType = UNSET
    """There only for a run folder."""
    whole_run: WholeRun | UnsetType = UNSET
    """There only for a run folder with enough timed steps."""
    memory: tuple[MemoryUse, ...] | UnsetType = UNSET
    """Where the peak of device memory goes: of each rank whose trace has the allocator's events,
    then of each recording of memory. There only when there are such."""
    out_of_memory: tuple[OutOfMemoryReport, ...] | UnsetType = UNSET
    """Every time memory ran out: who asked, what held the memory, the cheapest ways out. There
    only when it did."""
    nccl: Nccl | UnsetType = UNSET
    """There only when a log of NCCL or RCCL was given."""
    comms: CommsFacts | UnsetType = UNSET
    """There only when collectives were recorded."""
    advice: tuple[Advice, ...] | UnsetType = UNSET
    """What recordings beside the traces show and no finding does, the weightiest first. There only
    when such were given."""
    recordings: tuple[Recording, ...] | UnsetType = UNSET
    """What other tools recorded, in words. There only when such were given."""
    hang: Hang | UnsetType = UNSET
    """Why the job stands still. There only when flight recorders' dumps show it."""
    gate: Gate | UnsetType = UNSET
    """There only with --fail-if or --budget."""


def read_diagnosis(path: Path, option: str) -> DiagnosisContract:
    """The diagnosis in a file that `option` names."""
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        how = "Make one: stepscope diagnose ... --format json > FILE"
        raise InputError(f"{option}: there is no {path}. {how}") from None
    except OSError as problem:
        raise InputError(f"{option}: cannot read {path}: {problem.strerror or problem}") from None
    return decode(data, DiagnosisContract, f"{option} {path}")


def refuse_impossible(diagnosis: DiagnosisContract, where: str) -> None:
    """FormatError where a time or a gain is beyond all that could be drawn, or compared."""
    numbers = [diagnosis.step.ms, diagnosis.step.profiled_ms, *diagnosis.ladder]
    numbers += [ms for rank in diagnosis.ranks for ms in parts_ms(rank).values()]
    for finding in diagnosis.findings:
        numbers += [finding.predicted_high, finding.predicted_step_ms]
    if any(number is not None and number >= TOO_LARGE for number in numbers):
        raise FormatError(f"{where} holds a time or a gain that is none. {diagnosis.AGAIN}")


def parts_ms(rank: Rank) -> dict[str, float | None]:
    """The parts of the rank's step by name; empty where no whole step was recorded."""
    parts = rank.partition_ms
    return {} if parts is None else {part: getattr(parts, part) for part in parts.__struct_fields__}


def step_ms(rank: Rank) -> float | None:
    """The rank's step while profiled; None where no whole step was recorded."""
    parts = parts_ms(rank)
    return sum(ms for ms in parts.values() if ms is not None) if parts else None


def median_rank(ranks: Sequence[Rank]) -> Rank | None:
    """The rank that the report is about: that with the median step, the lower of two; one without
    steps only if none has any."""
    steps = [(index, step_ms(rank)) for index, rank in enumerate(ranks)]
    timed = [(round(ms, 9), index) for index, ms in steps if ms is not None]
    if timed:
        return ranks[sorted(timed)[(len(timed) - 1) // 2][1]]
    return ranks[0] if ranks else None
