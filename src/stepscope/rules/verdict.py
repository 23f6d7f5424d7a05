"""The verdict: what limits the run, by what removing it would give."""

from __future__ import annotations

from msgspec.structs import replace

from stepscope.core.diagnosis import (
    SHARE,
    Abstention,
    Diagnosis,
    Finding,
    ReplayCheck,
    StepTime,
    Verdict,
    unjudged_fixes,
)
from stepscope.core.facts import Facts, RankFacts
from stepscope.core.recorders import KINETO, RUN, Recorder
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.run import RunFacts
from stepscope.rules.headline import (
    FEWER_WAITS,
    HOST_WORDS,
    KERNELS,
    UNSEEN,
    WEAK,
    by_bound,
    first_gain,
    is_unseen,
    largest_part,
    names_of,
    of_findings,
    of_parts,
    part_words_of,
    second_of,
    words_of,
)
from stepscope.rules.job_case import Job
from stepscope.rules.judge import LATE_RANK, MIN_SPEEDUP, Judgement
from stepscope.rules.judge_job import judge_job
from stepscope.rules.partition_verdict import (
    MAX_IDLE,
    bound_by_parts,
    clock_fault,
    cut_share,
    has_step_time,
    is_blind,
    is_missed,
    is_whole_trace,
    missed_by,
)
from stepscope.rules.shared.unrecorded import REASON as NO_ALLOCATIONS
from stepscope.rules.unanswered import unanswered

MAX_UNEXPLAINED = 0.5
"""Share of the step, idle with no cause recorded, from which no kernel or copy is the limit,
whatever the replay says: it takes the time before them for theirs."""
MIN_SHARE = 0.01
"""When no resource alone shortens the step by this, the replay tells none apart and the largest
part of the step is named."""


def diagnose_job(job: Job, *, every: bool = False) -> Diagnosis:
    """What limits the run and what to do about it; with `every`, also findings that give next to
    nothing."""
    judged = judge_job(job)
    facts, judgement = judged.facts, judged.judgement
    rank = facts.median_rank
    findings = tuple(f for f in judgement.findings if every or f.predicted_speedup >= MIN_SPEEDUP)
    advice: tuple[Advice, ...] = ()
    if facts.auxiliary is not None or facts.run is not None:
        # What other recordings show, and the run's own clocks: as evidence of findings, or alone.
        from stepscope.rules.advice import advise, advise_run, joined, weighed

        of_tools = () if facts.auxiliary is None else advise(weighed(facts.auxiliary, facts))
        of_run = () if facts.run is None else advise_run(facts.run)
        findings, advice = joined(findings, (*of_run, *of_tools))
    worth = tuple(f for f in findings if f.predicted_speedup >= MIN_SPEEDUP)
    is_judged = unjudged_fixes(judgement.abstentions) is None
    # What recordings show is of the step, too.
    is_judged &= not any((each.weight or 0.0) >= MIN_SPEEDUP - 1 for each in advice)
    verdict = _with_timed(_verdict(facts, rank, worth, is_judged), facts.run)
    recorder = KINETO if facts.run is None else RUN
    judgement = replace(judgement, abstentions=_explained(rank, verdict, judgement, recorder))
    return Diagnosis(
        verdict=verdict,
        step=_step(facts, rank),
        replay=_replay(rank),
        ladder=judgement.ladder,
        findings=findings,
        facts=facts,
        notes=(
            *job.notes,
            *judged.notes,
            *_notes(facts, rank),
            *_not_judged(judgement, facts, recorder),
        ),
        unknown_events=sum(sum(r.unknown.values()) for r in facts.ranks),
        advice=advice,
        abstentions=_abstentions(judgement, facts),
    )


def _explained(
    rank: RankFacts, verdict: Verdict, judgement: Judgement, recorder: Recorder
) -> tuple[Abstention, ...]:
    """What the rules could not judge, and why large shares of the step have no finding."""
    is_asked = unjudged_fixes(judgement.abstentions) is None
    if not is_asked or (rank.replayed is not None and is_missed(rank.replayed)):
        return judgement.abstentions
    lacking = _lacking(rank) if rank.replayed is None else None
    return (*judgement.abstentions, *unanswered(rank, verdict.shares, judgement, lacking, recorder))


def _verdict(
    facts: Facts, rank: RankFacts, findings: tuple[Finding, ...], is_judged: bool
) -> Verdict:
    parts = _part_shares(rank)
    if parts is None or not rank.num_events:
        return Verdict(
            bound="unknown",
            summary="Nothing to judge: the trace shows no step with work in it.",
            shares={},
        )
    cut = cut_share(rank)
    if cut:
        missing = f"its file ends early, without {cut:.0%} of the device's work"
        summary = f"What limits the run is not in this trace: {missing}."
        return Verdict(bound="unknown", summary=summary, shares={})
    fault = clock_fault(rank)
    if fault is not None:
        summary = f"What limits the run is not in this trace: {fault}."
        return Verdict(bound="unknown", summary=summary, shares={})
    by_replay = (
        rank.replayed is not None and max(rank.replayed.shares.values(), default=0.0) >= MIN_SHARE
    )
    verdict = _by_replay(rank, parts, findings) if by_replay else _by_parts(rank, parts)
    if verdict.bound == "unknown":
        return verdict
    named = [verdict.bound] + ([] if verdict.second is None else [verdict.second])
    more = of_parts(rank, parts, named, is_alone=len(facts.ranks) == 1)
    more += of_findings(findings, named)
    # Without the device's peaks most rules about kernels say nothing.
    is_judged = is_judged and (rank.roofline.device is not None or not rank.uses_device)
    if verdict.bound in KERNELS and rank.replayed is not None and is_judged and not findings:
        more = f"; nothing found worth more than 2 %{more}"
    return replace(verdict, summary=f"{verdict.summary}{more}.")


def _with_timed(verdict: Verdict, run: RunFacts | None) -> Verdict:
    """Where the recorded steps do not tell, what those timed without a profiler do; and that ranks
    wait for one, which few steps may not show."""
    if run is None or verdict.bound == "imbalance":
        return verdict
    from stepscope.rules.without_trace import timed_verdict

    timed = timed_verdict(run)
    # Of many steps; the profiler saw a few.
    is_told = timed.bound == "imbalance" or (verdict.bound == "unknown" != timed.bound)
    if not is_told:
        return replace(verdict, summary=f"{verdict.summary}{_of_late(run, timed, verdict)}")
    return replace(timed, summary=f"{timed.summary} By the recorded steps: {verdict.summary}")


def _of_late(run: RunFacts, timed: Verdict, verdict: Verdict) -> str:
    """The rank that the others wait for in the timed steps, where the verdict does not lead to
    it."""
    from stepscope.rules.imbalance.late_rank import late_by_own_time

    late, share = late_by_own_time(run), timed.shares.get("imbalance", 0.0)
    if late is None or share < WEAK or LATE_RANK in verdict.summary:
        return ""
    waited = f"at least {share:.0%} of the step is waiting for rank {late[0]}"
    return f" By the steps timed without the profiler {waited}."


def _by_replay(rank: RankFacts, parts: dict[str, float], findings: tuple[Finding, ...]) -> Verdict:
    """The resource whose absence shortens the replayed step most."""
    assert rank.replayed is not None
    shares, words = dict(rank.replayed.shares), words_of(rank)
    bound, following = sorted(shares, key=lambda name: -shares[name])[:2]
    shorter = f"would be {shares[bound]:.0%} shorter"
    doubt = _doubt(rank, bound, shares[bound] - shares[following], parts)
    if doubt is not None:
        summary = f"Not sure: without {words[bound]} the replayed step {shorter}, but {doubt}."
        return Verdict(bound="unknown", summary=summary, shares=shares)
    second = second_of(bound, shares, parts)
    name = names_of(rank)[bound] if second is None else "Mixed"
    beside = "" if second is None else _beside(rank, second, shares, parts)
    more = _more(rank, bound, parts)
    limit = f"without {words[bound]} the step {shorter}{beside}"
    if second is None and findings and findings[0].bound == bound:
        share = _measured(rank, bound, shares, parts)
        name, limit = f"{name}{share}", first_gain(findings[0]) + ("" if share else f"; {limit}")
    return Verdict(bound=bound, second=second, summary=f"{name}: {limit}{more}", shares=shares)


def _measured(
    rank: RankFacts, bound: str, shares: dict[str, float], parts: dict[str, float]
) -> str:
    """The share of the recorded step that the bound is of, which is the one that its bar shows.
    Empty where it tells less than the replay does."""
    share = by_bound(parts).get(bound, 0.0)
    is_all = bound == largest_part(parts) and share >= shares[bound] - FEWER_WAITS
    if not is_all or is_unseen(parts, bound):
        return ""
    return f" ({share:.0%} {part_words_of(rank)[bound]})"


def _beside(rank: RankFacts, second: str, shares: dict[str, float], parts: dict[str, float]) -> str:
    """The resource that limits the step too, or the part of it that is the largest while nothing is
    gained without it, as where the step would only wait longer for its input."""
    part = by_bound(parts).get(second, 0.0)
    if shares[second] >= MIN_SHARE or not part:
        return f", without {words_of(rank)[second]} {shares[second]:.0%}"
    return f"; {part:.0%} of the recorded step is {part_words_of(rank)[second]}"


def _by_parts(rank: RankFacts, parts: dict[str, float]) -> Verdict:
    """The largest part of the step, where no resource alone shortens it or no replay was
    possible."""
    words, shares, largest = part_words_of(rank), by_bound(parts), largest_part(parts)
    bound = _without_replay(rank, parts, largest) if rank.replayed is None else largest
    whole = "what was recorded" if is_whole_trace(rank) else "the step"
    if bound is None:
        share, word = shares[largest], words[largest]
        if rank.steps.where == "device" and is_unseen(parts, largest):
            share, word = parts["idle_other"], UNSEEN
        part = f"{share:.0%} of {whole} is {word}"
        summary = f"What limits the run is not in this trace: {part}, but {_lacking(rank)}."
        return Verdict(bound="unknown", summary=summary, shares=shares)
    if bound == "memory":
        compute, arithmetic = shares["compute"], rank.roofline.arithmetic_share or 0.0
        shares |= {"compute": compute * arithmetic, "memory": compute * (1 - arithmetic)}
    more = _more(rank, bound, parts)
    summary = f"{names_of(rank)[bound]}: {shares[bound]:.0%} of {whole} is {words[bound]}{more}"
    return Verdict(bound=bound, summary=summary, shares=shares)


def _doubt(rank: RankFacts, bound: str, lead: float, parts: dict[str, float]) -> str | None:
    """Why the replay's answer may not be the run's; None when it is."""
    if rank.replayed is not None and is_missed(rank.replayed):
        which = "recorded" if rank.replayed.error is None else "known"
        return f"the replay misses the {which} step by {abs(missed_by(rank.replayed)):.0%}"
    lost = 0.0 if rank.launches is None else rank.launches.lost_share
    if lost and lead <= lost:
        return f"{lost:.0%} of the device's events were lost, and the next bound is no further off"
    if rank.steps.where == "host":
        # What lies outside operators is a resource of its own there, and has its share.
        return None
    unexplained = parts["idle_other"]
    is_much = bound in KERNELS and unexplained > max(MAX_IDLE, lead)
    if is_much or (bound in (*KERNELS, "transfer") and unexplained > MAX_UNEXPLAINED):
        return f"the device idles for {unexplained:.0%} of the step with no cause recorded"
    return None


def _without_replay(rank: RankFacts, parts: dict[str, float], largest: str) -> str | None:
    """The bound by the parts alone, where they are enough. A run without a device is its
    operators."""
    if rank.steps.where == "host":
        return None if rank.device_name is not None else largest
    return bound_by_parts(rank, parts)


def _lacking(rank: RankFacts) -> str:
    """What would have let the replay judge."""
    if rank.steps.where == "host" and rank.device_name is not None:
        return "the device's work was not recorded"
    if not rank.steps.is_step_interval or rank.steps.num_seen < 2:
        return "two steps in a row are needed to see what they wait for"
    if is_blind(rank):
        return "no marks distinguish the host's loader from its other work"
    if rank.steps.where == "host":
        return "no two steps in a row have operators in them"
    return "the launches were not recorded"


def _part_shares(rank: RankFacts) -> dict[str, float] | None:
    typical = rank.typical_parts_ns
    if typical is None or not any(typical.values()):
        return None
    total = sum(typical.values())
    return {part: value / total for part, value in typical.items()}


def _more(rank: RankFacts, bound: str, parts: dict[str, float]) -> str:
    """What the host was doing, or how near the peak a well-fed run is."""
    if bound == "host" and rank.steps.where == "device":
        most = max(HOST_WORDS, key=lambda part: parts[part])
        return f"; {HOST_WORDS[most]} ({parts[most]:.0%} of the recorded step)"
    if bound not in KERNELS or rank.replayed is None or rank.roofline.mfu is None:
        return ""
    return f"; {rank.roofline.mfu:.0%} of the device's dense peak"


def _replay(rank: RankFacts) -> ReplayCheck | None:
    if rank.replayed is None:
        return None
    error = rank.replayed.recorded_error if rank.replayed.error is None else rank.replayed.error
    return ReplayCheck(ms=rank.replayed.step_interval_ns / 1e6, error=error)


def _abstentions(judgement: Judgement, facts: Facts) -> tuple[Abstention, ...]:
    """Less those that a recording of memory answers."""
    has_memory = facts.auxiliary is not None and facts.auxiliary.memory is not None
    return tuple(
        each for each in judgement.abstentions if not (has_memory and each.reason == NO_ALLOCATIONS)
    )


def _not_judged(judgement: Judgement, facts: Facts, recorder: Recorder) -> tuple[str, ...]:
    """What rules had to say without a gain, and what they could not judge, joined by what they
    lack."""
    alike: dict[tuple[str, str], list[str]] = {}
    abstentions = _abstentions(judgement, facts)
    of_shares = [each for each in abstentions if each.code.endswith(SHARE)]
    for abstention in abstentions:
        if any(abstention.reason in each.reason for each in of_shares if each is not abstention):
            # Said with the share of the step that it is about.
            continue
        alike.setdefault((abstention.reason, abstention.needs), []).append(abstention.code)
    lacking = [
        f"not judged: {', '.join(codes)}: {reason}: {needs}"
        for (reason, needs), codes in alike.items()
    ]
    if judgement.lacks_stacks:
        lacking.append(f"lines and modules are not named: {recorder.slow_stacks}")
    return (*(f"{remark.code}: {remark.text}" for remark in judgement.remarks), *lacking)


def _step(facts: Facts, rank: RankFacts) -> StepTime:
    # Where no step could be detected, the length of what was recorded is nobody's step time.
    step_interval = rank.steps.step_interval_ns if has_step_time(rank) else None
    profiled = None if step_interval is None else step_interval / 1e6
    given = facts.given_step_ns
    return StepTime(
        count=rank.steps.num_seen,
        ms=profiled if given is None else given / 1e6,
        profiled_ms=profiled,
        source=facts.step_source,
    )


def _notes(facts: Facts, rank: RankFacts) -> tuple[str, ...]:
    notes = list(facts.notes)
    if facts.run is not None:
        from stepscope.rules.without_trace import run_notes

        notes = [*run_notes(facts.run), *notes]
    notes += () if facts.auxiliary is None else facts.auxiliary.notes
    is_timed = rank.steps.step_interval_ns is not None and not is_whole_trace(rank)
    if facts.given_step_ns is None and is_timed:
        notes.append(
            "step time is the profiled one, which the profiler's own cost lengthens: gains are for "
            "a usual cost of it; give the real step time with --step-ms"
        )
    comms = rank.partition is not None and any(rank.partition.parts["comms_transfer"])
    if comms and rank.partition is not None and not rank.partition.waits_split:
        notes.append(
            "waiting for other ranks is not distinguished from moving bytes: comms_wait is not "
            "measured"
        )
    if facts.unknown_note is not None:
        notes.append(facts.unknown_note)
    return tuple(notes)
