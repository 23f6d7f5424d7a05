"""One run as `compare` needs it: made from a diagnosis at hand, or from one that was kept as
JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from stepscope.analyses.run.width import mean_parts, run_step
from stepscope.core.comms import CommsFacts
from stepscope.core.diagnosis import Diagnosis, Finding, unjudged_fixes
from stepscope.core.facts import Facts, RankFacts
from stepscope.core.run import RankMetadata, RunFacts, UnprofiledSteps
from stepscope.experiments.compare.pieces import Pieces

NOT_OF_TWO = ("not judged: ", "step time is the profiled one", "lines and modules are not named")
"""How the notes of a diagnosis begin that a comparison says in its own words, or has no use for."""


class RankSide(Struct, frozen=True, kw_only=True):
    """One rank: its step while profiled, and how much of it was waiting for others."""

    rank: int
    step_ns: float | None
    wait_ns: float | None


class WorkDone(Struct, frozen=True, kw_only=True):
    """What a step does, as far as it is known."""

    world_size: int | None = None
    batch_size: int | None = None
    num_batches: float | None = None
    """Batches on one rank."""
    flops: float | None = None
    """The model's, on all ranks read; None where less than most of the work is known."""
    num_read: int | None = None
    """Ranks that `flops` is of."""
    num_parameters: int | None = None
    model: str | None = None

    @property
    def all_flops(self) -> float | None:
        """FLOPs on all ranks: those that were not read are taken to do what the others do."""
        if self.flops is None or not self.num_read or self.world_size is None:
            return self.flops
        return self.flops * max(1.0, self.world_size / self.num_read)

    @property
    def samples(self) -> float | None:
        if self.batch_size is None or self.num_batches is None:
            return None
        return self.batch_size * self.num_batches * (self.world_size or 1)


class CompareSide(Struct, frozen=True, kw_only=True):
    """All that is compared of one run."""

    label: str
    kind: str
    """run, traces or diagnosis."""
    step_ns: float | None
    """Step time as the diagnosis has it."""
    step_source: str
    """given, measured, log or trace."""
    unprofiled: tuple[int, ...] = ()
    """Steps with no profiler attached, one by one; those that save or evaluate are left out."""
    irregular_step_ns: float = 0.0
    """What those would add to the mean step."""
    kept: UnprofiledSteps | None = None
    """What a diagnosis keeps of them."""
    recorded: tuple[int, ...] = ()
    """Steps while profiled, of the rank with the median step."""
    recorded_ns: float | None = None
    parts_ns: Mapping[str, int | None] | None = None
    bound: str = "unknown"
    findings: tuple[Finding, ...] = ()
    ladder: tuple[float, ...] = ()
    abstained: frozenset[str] = frozenset()
    is_judged: bool = False
    num_ranks: int = 0
    ranks: tuple[RankSide, ...] = ()
    late: tuple[int, ...] = ()
    comms: CommsFacts | None = None
    device_name: str | None = None
    work: WorkDone = field(default_factory=WorkDone)
    pieces: Pieces | None = None
    peaks: Mapping[int, float] = field(default_factory=dict)
    """Bytes of memory, by rank."""
    knobs: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def num_missing(self) -> int:
        """Ranks of the job that nothing was read of."""
        return max(0, (self.work.world_size or 0) - self.num_ranks)


def side_of(
    label: str,
    diagnosis: Diagnosis,
    *,
    steps: Sequence[int] = (),
    irregular_step_ns: float = 0.0,
    pieces: Pieces | None = None,
    knobs: Mapping[str, str] | None = None,
    peaks: Mapping[int, float] | None = None,
) -> CompareSide:
    """Side from a diagnosis with all its facts. `steps` are the unprofiled ones of a run folder."""
    facts = diagnosis.facts
    rank = facts.median_rank if facts.ranks else None
    # What the diagnosis does not take for a step is none here either.
    is_known = diagnosis.step.profiled_ms is not None
    is_step_interval = rank is not None and rank.steps.is_step_interval and is_known
    step = run_step(facts) if rank is not None else None
    return CompareSide(
        label=label,
        kind="traces" if facts.run is None else "run",
        step_ns=None if diagnosis.step.ms is None else diagnosis.step.ms * 1e6,
        step_source=diagnosis.step.source,
        unprofiled=tuple(steps),
        irregular_step_ns=irregular_step_ns,
        kept=kept_steps(facts.run),
        recorded=rank.steps.step_intervals if rank is not None and is_step_interval else (),
        recorded_ns=rank.steps.step_interval_ns if rank is not None and is_step_interval else None,
        parts_ns=None if step is None else mean_parts(facts.ranks, step),
        bound=diagnosis.verdict.bound,
        findings=diagnosis.findings,
        ladder=diagnosis.ladder,
        abstained=frozenset(abstention.code for abstention in diagnosis.abstentions),
        is_judged=diagnosis.replay is not None and unjudged_fixes(diagnosis.abstentions) is None,
        num_ranks=len(facts.ranks) or (len(facts.run.ranks) if facts.run is not None else 0),
        ranks=tuple(_rank_side(rank, facts) for rank in facts.ranks),
        late=late_ranks(facts.comms),
        comms=facts.comms,
        device_name=None if rank is None else _device_name(rank),
        work=work_done(facts),
        pieces=pieces,
        knobs=knobs,
        peaks=peaks or {},
        notes=side_notes(label, diagnosis.notes),
    )


def side_notes(label: str, notes: Sequence[str]) -> tuple[str, ...]:
    """What a diagnosis says of its recording (a file cut short, ranks left out), under the run's
    name."""
    return tuple(f"{label}: {note}" for note in notes if not note.startswith(NOT_OF_TWO))


def late_ranks(comms: CommsFacts | None) -> tuple[int, ...]:
    return () if comms is None else tuple(rank.rank for rank in comms.ranks if rank.is_straggler)


def kept_steps(run: RunFacts | None) -> UnprofiledSteps | None:
    """The steps of the rank whose step is the run's."""
    if run is None:
        return None
    return next(
        (
            rank.steps
            for rank in run.ranks
            if rank.steps is not None and rank.steps.step_ns == run.step_ns
        ),
        None,
    )


def _rank_side(rank: RankFacts, facts: Facts) -> RankSide:
    ranks = () if facts.comms is None else facts.comms.ranks
    waits = next((row.wait_ns for row in ranks if row.rank == rank.rank), None)
    parts = rank.typical_parts_ns
    if (
        waits is None
        and rank.partition is not None
        and rank.partition.waits_split
        and parts is not None
    ):
        waits = parts["comms_wait"]
    return RankSide(
        rank=rank.rank,
        step_ns=rank.steps.step_interval_ns if rank.steps.is_step_interval else None,
        wait_ns=waits,
    )


def _device_name(rank: RankFacts) -> str | None:
    """What the step ran on; None where a trace does not name its device."""
    on_host = rank.steps.where == "host" and rank.steps.windows
    return rank.device_name or ("CPU" if on_host else None)


def work_done(facts: Facts) -> WorkDone:
    first = facts.run.ranks[0] if facts.run is not None and facts.run.ranks else None
    flops = [rank.roofline.model_flops for rank in facts.ranks]
    stated = [rank_flops for rank_flops in flops if rank_flops is not None]
    world = None if facts.comms is None else facts.comms.world_size
    done = WorkDone(
        world_size=world
        or (len(facts.run.ranks) if facts.run is not None and facts.run.ranks else None),
        flops=sum(stated) if stated and len(stated) == len(flops) else None,
        num_read=len(flops) or None,
    )
    return done if first is None else with_known(done, first)


def with_known(done: WorkDone, rank: RankMetadata) -> WorkDone:
    """The same with what the run's folder tells."""
    return replace(
        done,
        batch_size=None if rank.loader is None else rank.loader.batch_size,
        num_batches=None if rank.steps is None else rank.steps.num_batches,
        num_parameters=rank.num_parameters,
        model=rank.model,
    )
