"""From a measured job to its judgement: which ranks are replayed, and what the rules say."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from stepscope.analyses.grouping import distinct
from stepscope.core.comms import CommsFacts
from stepscope.core.diagnosis import FIXES, Abstention, Finding
from stepscope.core.facts import Facts, Replayed
from stepscope.core.run import RunFacts
from stepscope.core.timings import counted
from stepscope.replay.job import job_shares
from stepscope.rules.accuracy import is_crowded
from stepscope.rules.case import Case
from stepscope.rules.job_case import Job, JobCase, job_case_of, job_case_of_rank
from stepscope.rules.judge import MIN_SPEEDUP, Judgement, judge
from stepscope.rules.partition_verdict import clock_fault, cut_share, is_missed, missed_by

MAX_RANKS = 8
"""Replayed; of a larger job those that arrive latest and earliest, and some between."""
CROWDED_SPEEDUP = 1.1
"""The least gain that is told of a run that others were in the way of: what they take varies by
more than a smaller one from one minute to the next."""
MAX_SUSPECTS = 3
"""Codes named where no gain is told."""


class Judged(Struct, frozen=True, kw_only=True):
    """What the rules say, and the facts with what the replay adds to them."""

    judgement: Judgement
    facts: Facts
    notes: tuple[str, ...] = ()


class _Cases(Struct):
    """Cases of single ranks; one that cannot be read again is noted."""

    job: Job
    notes: list[str] = field(default_factory=list)

    def of(self, index: int, step_ns: int | None) -> Case | None:
        case = self.job.case_of(index, step_ns)
        if case is None:
            # A worker of a cluster could read it; this machine cannot, or no more.
            rank = self.job.facts.ranks[index].rank
            self.notes.append(f"rank {rank} could not be read again, and was not replayed")
        return case


def judge_job(job: Job) -> Judged:
    """Ranks that exchange data are replayed together; of others, each by itself."""
    cases = _Cases(job)
    together = _judged_together(job, cases)
    judged = together if together is not None else _judged_alone(job, cases)
    cut = max((cut_share(rank) for rank in job.facts.ranks), default=0.0)
    fault = next((fault for rank in job.facts.ranks if (fault := clock_fault(rank))), None)
    if cut:
        judged = replace(judged, judgement=_cut_judgement(cut))
    elif fault is not None:
        judged = replace(judged, judgement=_faulty_judgement(fault))
    elif job.facts.run is not None and is_crowded(job.facts.run):
        crowded = crowded_judgement(judged.judgement, job.facts.run)
        judged = replace(judged, judgement=crowded)
    return replace(judged, notes=(*judged.notes, *cases.notes))


def _cut_judgement(share: float) -> Judgement:
    """Judgement of a file that ends before the device's work does: steps without their work look
    short, or idle."""
    reason = f"the file ends early, without {share:.0%} of the device's work"
    needs = "record anew, and let the profiler end before the job does"
    return Judgement(abstentions=(Abstention(code=FIXES, reason=reason, needs=needs),))


def _faulty_judgement(fault: str) -> Judgement:
    """Judgement of times that cannot be right: a replay of them is of no run."""
    needs = "record anew; if it stays so, tell us of the machine and the recorder's version"
    return Judgement(abstentions=(Abstention(code=FIXES, reason=fault, needs=needs),))


def crowded_judgement(judgement: Judgement, run: RunFacts) -> Judgement:
    """Judgement of a run that other processes were in the way of: the gains that are too large to
    be theirs, with how to be surer; without any, the codes of what may cost something."""
    large = tuple(
        _measured_in_a_crowd(finding, run)
        for finding in judgement.findings
        if finding.predicted_speedup >= CROWDED_SPEEDUP
    )
    if large:
        return replace(judgement, findings=large, ladder=())
    suspects = [
        finding.code for finding in judgement.findings if finding.predicted_speedup >= MIN_SPEEDUP
    ]
    suspects = list(dict.fromkeys((*(each.code for each in judgement.remarks), *suspects)))
    reason = "other processes had the cores for most of the time"
    if suspects:
        reason += f"; what may cost something: {', '.join(suspects[:MAX_SUSPECTS])}"
    needs = "record again on a machine that is not shared"
    return Judgement(
        abstentions=(Abstention(code=FIXES, reason=reason, needs=needs),),
        remarks=judgement.remarks,
    )


def _measured_in_a_crowd(finding: Finding, run: RunFacts) -> Finding:
    share = 0.0 if run.most_held_up is None else run.most_held_up.held_up_share or 0.0
    line = (
        f"measured on a busy machine, where the main thread had no core for {share:.0%} of the "
        "time; to be surer, record again on one that is not shared"
    )
    return replace(finding, evidence=(*finding.evidence, line))


def _judged_together(job: Job, cases: _Cases) -> Judged | None:
    """None where no rank recorded a collective, or none can be replayed."""
    if job.matched is None:
        return None
    step_ns, facts = job.facts.given_step_ns, job.facts
    index_of = {rank.rank: index for index, rank in enumerate(facts.ranks)}
    chosen = choose(job)
    usable = [
        case
        for rank in counted("ranks to replay", chosen, len(chosen))
        if (case := cases.of(index_of[rank], None)) is not None and case.recorded is not None
    ]
    if not usable:
        return None
    from stepscope.analyses.collectives.records import collective_records_of

    owned = [collective_records_of(case.context, case.facts.rank) for case in usable]
    job_case = job_case_of(usable, owned, job.rank_records, job.matched, step_ns, facts.nccl)
    if job_case is None:
        return None
    played = replayed_of(job_case, step_ns)
    judgement = _judged(job_case, played)
    notes: tuple[str, ...] = ()
    if len(usable) < len(job.rank_records):
        notes = (
            (
                f"{len(usable)} of {len(job.rank_records)} ranks were replayed together: the "
                "latest, the earliest and some between"
            ),
        )
    return Judged(
        judgement=judgement,
        facts=replace(
            facts,
            ranks=tuple(replace(rank, replayed=played) for rank in facts.ranks),
            comms=_with_replayed(facts.comms, [case.facts.rank for case in usable]),
        ),
        notes=notes,
    )


def _judged_alone(job: Job, cases: _Cases) -> Judged:
    """The median rank's judgement, with every rank that has the same fault."""
    facts = job.facts
    median = facts.ranks.index(facts.median_rank)
    judgements: dict[int, Judgement] = {}
    replayed: dict[int, Replayed | None] = {}
    # The median rank, then others.
    chosen = list(dict.fromkeys((median, *_strides(len(facts.ranks)))))[:MAX_RANKS]
    for index in counted("ranks to judge", chosen, len(chosen)):
        case = cases.of(index, facts.given_step_ns)
        if case is not None:
            replayed[index] = case.facts.replayed
            judgements[index] = _judged(job_case_of_rank(case), case.facts.replayed)
    ranks = [replace(rank, replayed=replayed.get(index)) for index, rank in enumerate(facts.ranks)]
    judgement = judgements.get(median, Judgement())
    numbers = {index: facts.ranks[index].rank for index in judgements}
    findings = tuple(_with_ranks(finding, judgements, numbers) for finding in judgement.findings)
    return Judged(
        judgement=replace(judgement, findings=findings),
        facts=replace(facts, ranks=tuple(ranks), comms=_with_replayed(facts.comms, ())),
    )


def _with_replayed(comms: CommsFacts | None, ranks: Collection[int]) -> CommsFacts | None:
    """Mark the ranks that were replayed together."""
    if comms is None:
        return None
    return replace(
        comms, ranks=tuple(replace(row, replayed=row.rank in ranks) for row in comms.ranks)
    )


def _with_ranks(
    finding: Finding, judgements: Mapping[int, Judgement], numbers: Mapping[int, int]
) -> Finding:
    """The finding with every rank that has it too."""
    ranks = [
        numbers[index]
        for index, judgement in judgements.items()
        if any(
            other.code == finding.code and other.predicted_speedup >= MIN_SPEEDUP
            for other in judgement.findings
        )
    ]
    return replace(finding, ranks=tuple(sorted(ranks)) or finding.ranks)


def replayed_of(job: JobCase, step_ns: int | None) -> Replayed:
    """What the replay of all ranks says of the job: its step, and what each resource holds up."""
    played = job.cases[0].facts.replayed
    if played is None:
        # Without a device no rank is replayed alone.
        played = Replayed(
            recorded_error=0.0,
            step_interval_ns=job.step_interval_ns,
            error=None,
            cost_ns=0.0,
            shares={},
        )
    kinds = [case.kinds for case in job.cases if case.kinds is not None]
    return replace(
        played,
        step_interval_ns=job.step_interval_ns,
        error=None if step_ns is None else job.step_interval_ns / step_ns - 1,
        shares=job_shares(job.job_graph, kinds),
    )


def _judged(job_case: JobCase, played: Replayed | None) -> Judgement:
    """No gain is told by a replay that is not the run."""
    if played is None or not is_missed(played):
        return judge(job_case)
    return Judgement(abstentions=(_missed(played),))


def _missed(played: Replayed) -> Abstention:
    error = missed_by(played)
    words = f"replayed, the step takes {abs(error):.0%} {'more' if error > 0 else 'less'}"
    why = "than the known one: the recorded steps are not the run's usual ones"
    if played.error is None:
        why = "than recorded: not all of it was"
    return Abstention(code=FIXES, reason=f"{words} {why}", needs="record others")


def choose(job: Job) -> list[int]:
    """The ranks to replay together: all of a few, else from the latest to the earliest in even
    strides."""
    ranks = [collective_records.rank for collective_records in job.rank_records]
    if len(ranks) <= MAX_RANKS:
        return sorted(ranks)
    ordered = sorted(job.lateness, key=lambda late: late.median_ns)
    return sorted(ordered[index].rank for index in _strides(len(ordered)))


def _strides(num: int) -> list[int]:
    """Indices of at most MAX_RANKS of so many, evenly spread, the first and the last among them."""
    indices: list[int] = distinct(
        np.linspace(0, num - 1, min(num, MAX_RANKS)).round().astype(int)
    ).tolist()
    return indices
