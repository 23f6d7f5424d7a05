"""Diagnosis: what stepscope has to say about a run. Every report is drawn from it alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar

from msgspec import UNSET, Struct, UnsetType, convert, field
from msgspec.structs import force_setattr

from stepscope.core.codec import (
    AboveZero,
    AtLeastZero,
    Contract,
    Count,
    Gain,
    Share,
    keys_of,
    like,
    one_of,
)
from stepscope.core.comms import CommsFacts
from stepscope.core.facts import PARTS, DeviceTotals, Facts, RankFacts
from stepscope.core.gate import Gate
from stepscope.core.memory import MemoryUse, OutOfMemoryReport
from stepscope.core.peak import PeakWaterfall
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.recordings.nccl import Hang, NcclLog
from stepscope.core.recordings.recording import RecordingText
from stepscope.core.run import RunFacts, WholeRun

BOUNDS = ("data", "host", "transfer", "comms", "imbalance", "compute", "memory", "unknown")
Bound = Annotated[str, one_of(*BOUNDS)]


class Verdict(Struct, frozen=True, kw_only=True):
    """The one thing that limits the run."""

    bound: Bound
    """The resource without which the step would be shortest; unknown when that could not be
    measured."""
    summary: str
    """The verdict in a sentence."""
    shares: Annotated[Mapping[str, Share], keys_of(*BOUNDS[:-1])]
    """Share of the step by which it would be shorter if the resource were free, for each that could
    be judged; what two of them both account for is counted with the larger. Empty when nothing
    could be judged."""
    second: Bound | None = None
    """Where the bound does not stand alone, the resource beside it: the run is mixed. null where
    one resource stands out."""


class StepTime(Struct, frozen=True, kw_only=True):
    """The run's step time and where it comes from."""

    count: Count
    """Steps seen: recorded, or timed where none was recorded."""
    ms: AtLeastZero | None
    """The step time of the run: without a profiler where that is known."""
    profiled_ms: AtLeastZero | None
    """The same while the profiler was attached, on the rank with the median step."""
    source: Annotated[str, one_of("given", "measured", "log", "trace")]
    """given by --step-ms, measured by `stepscope run`, read in the job's own log, or from the
    trace, which is the profiled one."""


class ReplayCheck(Struct, frozen=True, kw_only=True):
    """How well the replayed step agrees with the measured one."""

    ms: AtLeastZero
    """The step, replayed."""
    error: float
    """Relative error against the known step."""


class SourceLocation(Struct, frozen=True, kw_only=True):
    """Where in the training code a part of a finding's cost comes from."""

    line: str | None
    """`model.py:25 in forward`; None when only modules are known."""
    module: str | None
    """`GPT_0 > Block_* > Linear_*`, from the outermost in; None when it is in none."""
    share: float
    """Share of the finding's cost."""

    @property
    def words(self) -> str:
        if self.line is None:
            return f"module {self.module}"
        return f"{self.line} (module {self.module})" if self.module else self.line


Code = Annotated[str, like("^[a-z0-9]+(-[a-z0-9]+)*$")]


class Alternative(Struct, frozen=True, kw_only=True):
    """Another fix for what a finding costs, to apply in its place."""

    code: Code
    """What `stepscope explain` takes."""
    action: str
    predicted_speedup: AboveZero
    """Speedup of this fix alone, replayed; never part of the combined gain."""
    predicted_low: AboveZero
    predicted_high: AboveZero
    changes_numerics: bool = False


class MemoryChange(Struct, frozen=True, kw_only=True):
    """The peak of a device's memory, before a fix and after it."""

    before_bytes: Count
    after_bytes: Count
    """Predicted."""


class CodeChange(Struct, frozen=True, kw_only=True):
    """Lines of the training code as they are, and as the advice would have them."""

    path: str
    """Seen from the folder that the run was started in."""
    line: Count
    """The first of them, from 1."""
    before: tuple[str, ...]
    after: tuple[str, ...]


class Finding(Struct, frozen=True, kw_only=True):
    """One fault, what it costs and how to fix it."""

    code: Code
    """What `stepscope explain` takes."""
    bound: Bound
    """The resource that it takes time of."""
    summary: str
    action: str
    """The smallest change that fixes it."""
    evidence: tuple[str, ...]
    ranks: tuple[Count, ...]
    """Ranks that have it."""
    predicted_speedup: AboveZero
    """Today's step over the step after the fix, replayed; 1 where the fix gives nothing, less where
    it would slow the step."""
    predicted_low: AboveZero
    predicted_high: AboveZero
    predicted_step_ms: AtLeastZero
    """The step after the fix, for as many samples as today's has."""
    samples_times: AboveZero = 1.0
    """Samples of a step after the fix, over today's: where they are more, the gain is of samples a
    second, and a step takes that many times predicted_step_ms."""
    changes_numerics: bool = False
    """Whether results may change in their last digits or more."""
    changes_training: bool = False
    """Whether the fix makes another training of it, as a larger batch or a narrower precision does.
    Such findings stand after the others, however much they give."""
    source_locations: tuple[SourceLocation, ...] = field(default=(), name="places")
    """Where most of it comes from, most costly first; empty when no stacks were recorded."""
    alternatives: tuple[Alternative, ...] = ()
    """Other fixes for the same cost, the largest gain first."""
    code_change: CodeChange | None = None
    """Where the run knows the line, and it can surely be rewritten; null of all others."""
    memory: MemoryChange | None = None
    """Memory that the fix takes or frees, where that is known; null of all others."""
    excludes: tuple[Code, ...] = ()
    """Findings of this diagnosis whose fixes cannot be applied with this one: their gains are
    never combined."""

    @property
    def best_speedup(self) -> float:
        """Larger speedup: of the fix or of one of its alternatives."""
        others = (each.predicted_speedup for each in self.alternatives)
        return max((self.predicted_speedup, *others))

    def self_check(self) -> None:
        """Assert that the range holds the prediction."""
        assert (
            0.0 < self.predicted_low <= self.predicted_speedup <= self.predicted_high < math.inf
        ), self.code
        assert 0.0 <= self.predicted_step_ms < math.inf, self.code
        assert all(0.0 <= place.share <= 1.0 for place in self.source_locations), self.code
        assert self.code not in self.excludes, self.code
        for each in self.alternatives:
            gains = (0.0, each.predicted_low, each.predicted_speedup, each.predicted_high, math.inf)
            assert all(a <= b for a, b in pairwise(gains)), each.code


class Abstention(Struct, frozen=True, kw_only=True):
    """A finding that could not be judged, or a large share of the step that none answers."""

    code: str
    """Code of the finding; `host share` and the like of a share."""
    reason: str
    """What was not recorded, or is not known; of a share, why no finding answers it."""
    needs: str
    """What to record, or to give, so that it can be."""


SHARE = " share"
"""Ends the code of an abstention that is about a part of the step."""
LITTLE_GAIN = 1.1
"""Gain of all findings together below which the share that none of them is about is named too."""
FIXES = "what fixes would give"
"""The code of an abstention that is about every finding at once."""


def unanswered_share(
    abstentions: Sequence[Abstention], ladder: Sequence[float]
) -> Abstention | None:
    """The largest share of the step that no finding is about, where the findings give little."""
    if max(ladder, default=1.0) >= LITTLE_GAIN:
        return None
    return next((each for each in abstentions if each.code.endswith(SHARE)), None)


def unjudged_fixes(abstentions: Sequence[Abstention]) -> Abstention | None:
    """Why no fix's gain is known; None where they were judged."""
    return next((each for each in abstentions if each.code == FIXES), None)


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
    """Time of that step with any work on the device; null without a device or a whole step."""
    mfu: AtLeastZero | None = None
    """Model FLOPs utilisation of the run's step; null when the device's peak or the work is not
    known."""
    peak_waterfall: PeakWaterfall | None = None
    """Where the device's peak goes, in the same step as partition_ms; null without a device or a
    whole step."""
    device_ns: DeviceTotals

    @property
    def parts_ms(self) -> dict[str, float | None]:
        """The parts of the step by name; empty where no whole step was recorded."""
        split = self.partition_ms
        return {} if split is None else {part: getattr(split, part) for part in PARTS}

    @property
    def step_ms(self) -> float | None:
        """The step while profiled; None where no whole step was recorded."""
        parts = self.parts_ms
        return sum(ms for ms in parts.values() if ms is not None) if parts else None


def rank_of(facts: RankFacts) -> Rank:
    """The rank's figures in a diagnosis."""
    busy = facts.steps.typical(facts.busy_ns) if facts.steps.where == "device" else None
    return Rank(
        rank=facts.rank,
        partition_ms=_partition(facts),
        gpu_busy_ms=None if busy is None else busy / 1e6,
        mfu=facts.roofline.mfu,
        peak_waterfall=facts.peak_waterfall,
        device_ns=facts.device,
    )


def _partition(facts: RankFacts) -> Partition | None:
    parts = facts.typical_parts_ns
    if parts is None or facts.partition is None:
        return None
    parts_ms: dict[str, float | None] = {part: value / 1e6 for part, value in parts.items()}
    if parts["comms_transfer"] > 0 and not facts.partition.waits_split:
        parts_ms["comms_wait"] = None
    return convert(parts_ms, Partition)


def median_rank(ranks: Sequence[Rank]) -> Rank | None:
    """The rank that the report is about: that with the median step, the lower of two; one without
    steps only if none has any."""
    steps = [(index, rank.step_ms) for index, rank in enumerate(ranks)]
    timed = [(round(ms, 9), index) for index, ms in steps if ms is not None]
    if timed:
        return ranks[sorted(timed)[(len(timed) - 1) // 2][1]]
    return ranks[0] if ranks else None


class DiagnosisDocument(Contract, frozen=True, kw_only=True, tag="stepscope.diagnosis/1"):
    """What `stepscope diagnose --format json` prints. null is 'not measured', 0 is 'measured to be
    zero'. Findings are sorted by predicted_speedup, the largest first; a larger batch that fits by
    inference alone stands last of those worth naming. docs/diagnosis.md says what each field
    means."""

    AGAIN: ClassVar[str] = "Diagnose its traces again"

    verdict: Verdict
    step: StepTime
    replay: ReplayCheck | None
    """How well the replayed step agrees with the known one; null when nothing could be replayed."""
    ranks: tuple[Rank, ...] = ()
    peak_waterfall: PeakWaterfall | UnsetType = UNSET
    """Where the peak goes on all ranks together; of a log where no step was recorded. There only
    where it was measured."""
    findings: tuple[Finding, ...]
    ladder: tuple[Gain, ...] = ()
    """The speedup of the first finding's fix, of the first two findings' at once, and so on to all
    worth naming; one that an earlier one excludes adds nothing. Empty when nothing is worth naming,
    or nothing could be replayed."""
    abstentions: tuple[Abstention, ...] = ()
    """Findings that could not be judged."""
    notes: tuple[str, ...]
    """What could not be judged, and why."""
    unknown_events: Count = 0
    """Events of kinds that stepscope does not know, counted and left out."""
    run: RunFacts | UnsetType = UNSET
    """Present only for a run folder."""
    whole_run: WholeRun | UnsetType = UNSET
    """Present only for a run folder with enough timed steps."""
    memory: tuple[MemoryUse, ...] | UnsetType = UNSET
    """Where the peak of device memory goes: of each rank whose trace has the allocator's events,
    then of each recording of memory. There only when there are such."""
    out_of_memory: tuple[OutOfMemoryReport, ...] | UnsetType = UNSET
    """Every time memory ran out: who asked, what held the memory, the cheapest ways out. There
    only when it did."""
    nccl: NcclLog | UnsetType = UNSET
    """Present only when a log of NCCL or RCCL was given."""
    comms: CommsFacts | UnsetType = UNSET
    """Present only when collectives were recorded."""
    advice: tuple[Advice, ...] | UnsetType = UNSET
    """What recordings beside the traces show and no finding does, the weightiest first. There only
    when such were given."""
    recordings: tuple[RecordingText, ...] | UnsetType = UNSET
    """What other tools recorded, in words. There only when such were given."""
    hang: Hang | UnsetType = UNSET
    """Why the job stands still. There only when flight recorders' dumps show it."""
    gate: Gate | UnsetType = UNSET
    """Present only with --fail-if or --budget."""


class Diagnosis(DiagnosisDocument, frozen=True, kw_only=True):
    """The document, and the facts that it was made of."""

    advice: tuple[Advice, ...] = ()
    facts: Facts

    def __post_init__(self) -> None:
        facts = self.facts
        hang = None if facts.auxiliary is None else facts.auxiliary.hang
        measured = {
            "peak_waterfall": facts.peak_waterfall,
            "run": facts.run,
            "whole_run": facts.whole_run,
            "memory": facts.memory or None,
            "out_of_memory": facts.out_of_memory or None,
            "nccl": facts.nccl,
            "comms": facts.comms,
            "hang": hang,
        }
        force_setattr(self, "ranks", tuple(map(rank_of, facts.ranks)))
        for name, value in measured.items():
            force_setattr(self, name, UNSET if value is None else value)

    def self_check(self) -> None:
        """Assert what a report may rely on: shares lie in 0..1, no fix slows the step, and the
        times add up."""
        assert self.verdict.bound in BOUNDS
        assert all(0.0 <= share <= 1.0 for share in self.verdict.shares.values()), (
            self.verdict.shares
        )
        for finding in self.findings:
            finding.self_check()
        assert all(
            a <= b for a, b in zip((1.0, *self.ladder), (*self.ladder, math.inf), strict=True)
        ), self.ladder
        self.facts.self_check()

    @property
    def is_empty(self) -> bool:
        """Whether what was given holds nothing that could be judged: no work, no step, and no
        recording of another tool."""
        facts = self.facts
        if facts.auxiliary is not None or facts.nccl is not None or self.step.ms is not None:
            return False
        has_work = any(rank.typical_parts_ns for rank in facts.ranks)
        return not (has_work or self.verdict.shares or self.findings or self.advice)

    @property
    def holding_up(self) -> tuple[tuple[int, str], ...]:
        """Ranks for which the others wait, each with the code of the finding or advice that says
        so."""
        said: list[Finding | Advice] = [*self.findings, *self.advice]
        return tuple(
            (each.ranks[0], each.code)
            for each in said
            if each.bound == "imbalance" and len(each.ranks) == 1
        )

    @property
    def together(self) -> float | None:
        """The speedup of all the fixes that go together and leave the training what it is; None
        when there are fewer than two."""
        pairs = zip(self.findings, self.ladder, strict=False)
        kept = [gain for finding, gain in pairs if not finding.changes_training]
        return kept[-1] if len(kept) > 1 else None
