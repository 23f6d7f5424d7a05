"""Judging a job: every rule is asked once per rank or once per job, and each fix is replayed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.diagnosis import Abstention, Alternative, Finding, SourceLocation
from stepscope.core.timings import counted
from stepscope.replay.changes import Change
from stepscope.replay.job import with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.accuracy import widened
from stepscope.rules.case import Case
from stepscope.rules.job_case import JobCase, JobChange, JobProposal, with_rank
from stepscope.rules.proposal import Proposal, Remark, source_locations_in
from stepscope.rules.registry import excludes, job_rules, rank_rules, rule_of
from stepscope.rules.rule import Answer, Rule

LATE_RANK = "late-rank"
MIN_SPEEDUP = 1.02
"""Findings that give less are left out unless asked for."""
SUBSUMED_LOG_SHARE = 0.6
"""Share of the logarithm of a fix's gain from which another's fault that it repairs too is the
cause."""
SWEEPING_DISCOUNT = 0.7
"""Share of the logarithm of the gain of a change of the whole model from which the fix of one fault
stands before it: it is sooner made, and less of the model has to fit it."""
MAX_OF_ONE_STEP = 20.0
"""Times as fast, beyond which a gain is told where two steps show it."""
SAME_FIX_RATIO = 1.15
"""Times the gain from a rank as fast as the others, up to which a fix of that rank alone is the
same fix."""

P = TypeVar("P", Proposal, JobProposal)
Pair = tuple[Finding, JobProposal]


class Judgement(Struct, frozen=True, kw_only=True):
    """What the rules have to say about a job."""

    findings: tuple[Finding, ...] = ()
    """Largest gain first, all of them; a fix that repairs another's fault too after that one, where
    it is most of the gain; a change of the whole model after the fix of one fault that gives nearly
    as much; what changes the training after the others worth naming."""
    ladder: tuple[float, ...] = ()
    """The speedup of the first fix worth naming, of the first two at once, and so on to all of
    them."""
    abstentions: tuple[Abstention, ...] = ()
    remarks: tuple[Remark, ...] = ()
    lacks_stacks: bool = False
    """Stacks would name the lines of what is worth fixing, and none were recorded."""


def judge(job: JobCase) -> Judgement:
    """Every rule's findings, with what its fix gives the job: a rule about one rank is fixed on
    every rank that has it."""
    answers = _answers(job)
    proposals = [*_about_all(job), *_about_ranks(job, answers)]
    pairs = sorted(
        (
            (finding_of(job, proposal), proposal)
            for proposal in counted("replaying fixes", proposals, len(proposals))
        ),
        key=_place,
    )
    pairs, unsure = _shown_twice(job, pairs)
    pairs = _own_code_first(_narrower_first(pairs))
    pairs = _with_excluded(_with_alternatives(_without_repeats(job, pairs)))
    worth = [proposal for finding, proposal in pairs if finding.predicted_speedup >= MIN_SPEEDUP]
    # What could not be judged is mostly the same on every rank.
    first = answers[0] if answers else []
    return Judgement(
        findings=tuple(finding for finding, _ in pairs),
        ladder=ladder(job, worth),
        abstentions=(*unsure, *(answer for answer in first if isinstance(answer, Abstention))),
        remarks=tuple(answer for answer in first if isinstance(answer, Remark)),
        lacks_stacks=any(proposal.lacks_stacks for proposal in worth),
    )


def _shown_twice(job: JobCase, pairs: list[Pair]) -> tuple[list[Pair], tuple[Abstention, ...]]:
    """The findings, and as abstentions those that promise very much for what one step alone shows:
    a stall of the machine is no fault of the program's."""
    most = MAX_OF_ONE_STEP
    if all(_two_are_alike(case) for case in job.cases):
        return pairs, ()
    left = [pair for pair in pairs if pair[0].predicted_speedup <= most]
    unsure = tuple(
        Abstention(
            code=finding.code,
            reason=f"one recorded step alone shows a gain of more than {most:.0f}x",
            needs="record more steps",
        )
        for finding, _ in pairs
        if finding.predicted_speedup > most
    )
    return left, unsure


def _two_are_alike(case: Case) -> bool:
    """Whether a second step takes as long as the longest, or many were timed."""
    if case.metadata is not None and case.metadata.steps is not None:
        return True
    longest = sorted(case.facts.steps.step_intervals)[-2:]
    return len(longest) == 2 and longest[0] >= longest[1] / 2


def _place(pair: Pair) -> tuple[int, float]:
    """Where a finding stands among the others."""
    finding, proposal = pair
    if finding.predicted_speedup < MIN_SPEEDUP:
        return 2, -finding.predicted_speedup
    gain = math.log(finding.predicted_speedup)
    if _is_sweeping(finding.code):
        gain *= SWEEPING_DISCOUNT
    return int(proposal.changes_training), -gain


def _is_sweeping(code: str) -> bool:
    rule = rule_of(code)
    return rule is not None and rule.sweeping


def _narrower_first(pairs: list[Pair]) -> list[Pair]:
    """A fix that repairs another's fault too stands after it, where that is most of what it
    gives."""
    ordered = list(pairs)
    for finding, proposal in pairs:
        gain, rule = math.log(max(finding.predicted_speedup, 1.0)), rule_of(finding.code)
        if rule is None or not rule.includes:
            continue
        narrower = [
            place
            for place, (other, its) in enumerate(ordered)
            if other.code in rule.includes
            and not its.changes_training
            and other.predicted_speedup >= MIN_SPEEDUP
            and math.log(other.predicted_speedup) >= SUBSUMED_LOG_SHARE * gain
        ]
        now = ordered.index((finding, proposal))
        if narrower and max(narrower) > now:
            ordered.insert(max(narrower), ordered.pop(now))
    return ordered


def _own_code_first(pairs: list[Pair]) -> list[Pair]:
    """Order findings so that what is somebody else's work stands after those of its findings that
    the job's own code fixes."""
    ordered = list(pairs)
    for pair in pairs:
        own = [
            place
            for place, (other, its) in enumerate(ordered)
            if other.code in pair[1].after
            and not its.changes_training
            and other.predicted_speedup >= MIN_SPEEDUP
        ]
        now = ordered.index(pair)
        if own and max(own) > now:
            ordered.insert(max(own), ordered.pop(now))
    return ordered


def _answers(job: JobCase) -> list[list[Answer]]:
    """What each rule about one rank says of each."""
    rules = [rank_rules(case) for case in job.cases]
    answers: list[list[Answer]] = [[] for _ in rules]
    asked = [(i, rule) for i, of_rank in enumerate(rules) for rule in of_rank]
    for i, rule in counted("judging", asked, len(asked)):
        if isinstance(rule, Abstention):
            answers[i].append(rule)
            continue
        assert rule.propose is not None
        answer = rule.propose(job.cases[i])
        answers[i].append(_signed(rule, answer) if isinstance(answer, Proposal) else answer)
    return answers


def _signed(rule: Rule, proposal: P) -> P:
    """Add the rule's code, and its bound where the proposal names no other."""
    return replace(proposal, code=rule.code, bound=proposal.bound or rule.bound)


def finding_of(job: JobCase, proposal: JobProposal) -> Finding:
    """The proposal with what the replay says it gives: the fix as it is likely to turn out, giving
    less and giving more. One that may slow the step, and does in the replay, is said to; of any
    other it gives nothing."""
    cautious = proposal.cautious or proposal.change
    hopeful = proposal.hopeful or proposal.change
    changed = [proposal.change(job.job_graph)]
    changed += [
        change(job.job_graph)
        for change in (proposal.cautious, proposal.hopeful)
        if change is not None
    ]
    if job.host_bounds is not None:
        quick, slow = job.host_bounds
        changed += [hopeful(quick), cautious(slow)]
    least = 0.0 if proposal.may_slow else 1.0
    both = [gain for job_graph in changed for gain in job.speedups(job_graph)]
    step_gain = max(least, job.weighted(both[0], both[1]))
    rare_gain = _rare_gain(job, proposal.rare_ns)
    gains = [max(least, gain) * rare_gain for gain in both]
    # A batch k times as large gives k times the samples of a step: in doubt is how long that takes.
    replayed = step_gain * rare_gain / proposal.samples_times
    low, high = widened(
        min(gains),
        max(gains),
        replayed,
        held_up_share(job),
        proposal.timed_share,
        is_sweeping=_is_sweeping(proposal.code),
        hopes_for_other=proposal.hopes_for_other,
    )
    low = max(least, low)
    return Finding(
        code=proposal.code,
        bound=proposal.bound,
        summary=proposal.summary,
        action=proposal.action,
        evidence=proposal.evidence,
        ranks=proposal.ranks,
        predicted_speedup=step_gain * rare_gain,
        predicted_low=low,
        predicted_high=high,
        predicted_step_ms=job.step_interval_ns / step_gain / 1e6,
        changes_numerics=proposal.changes_numerics,
        source_locations=proposal.source_locations,
        memory=proposal.memory,
        changes_training=proposal.changes_training,
        samples_times=proposal.samples_times,
    )


def held_up_share(job: JobCase) -> float | None:
    """Share of its time that the most held up rank's host had to wait for a core; None where no
    rank's is known."""
    shares = [case.metadata.held_up_share for case in job.cases if case.metadata is not None]
    return max((share for share in shares if share is not None), default=None)


def _rare_gain(job: JobCase, rare_ns: float) -> float:
    """How much faster a run is without what only some of its steps hold, so much a step."""
    return 1 + rare_ns / max(job.step_interval_ns, 1.0)


def ladder(job: JobCase, proposals: Sequence[JobProposal]) -> tuple[float, ...]:
    """What the fixes give one after the other: the first alone, the first two, and so on to all at
    once. They do not multiply, and one that has nothing left to give after those before it (a chain
    fused that is gone by then), or that one of them excludes, is left out."""
    job_graph, rare_ns, gains = job.job_graph, 0.0, [1.0]
    larger: JobChange | None = None
    applied: set[str] = set()
    for proposal in proposals:
        gain = gains[-1]
        if not any(excludes(proposal.code, other) for other in applied):
            # A larger batch divides the step by its samples: the others are of the step before.
            is_larger = proposal.samples_times != 1
            changed = job_graph if is_larger else proposal.change(job_graph)
            batch = proposal.change if is_larger else larger
            played = changed if batch is None else batch(changed)
            gain = job.speedup(played) * _rare_gain(job, rare_ns + proposal.rare_ns)
        if gain > gains[-1]:
            job_graph, larger, rare_ns = changed, batch, rare_ns + proposal.rare_ns
            applied.add(proposal.code)
        gains.append(max(gain, gains[-1]))
    return tuple(gains[1:])


def _about_all(job: JobCase) -> list[JobProposal]:
    """What the rules about the ranks together say; of a rank that exchanges nothing with others,
    nothing."""
    if job.is_alone:
        return []
    has_device = all(not part.graph.on_host for part in job.job_graph.parts)
    rules = job_rules(has_device=has_device)
    answers = [(rule, rule.propose_job(job)) for rule in rules if rule.propose_job is not None]
    return [
        replace(_signed(rule, proposal), ranks=proposal.ranks or job.ranks)
        for rule, proposal in answers
        if proposal is not None
    ]


def _about_ranks(job: JobCase, answers: Sequence[Sequence[Answer]]) -> list[JobProposal]:
    """The proposals about single ranks, joined by code: each rank's own change on its own graph."""
    by_code: dict[str, dict[int, Proposal]] = {}
    for index, rank_answers in enumerate(answers):
        for answer in rank_answers:
            if isinstance(answer, Proposal):
                by_code.setdefault(answer.code, {})[index] = answer
    return [joined(job, each) for each in by_code.values() if _is_whole(job, each)]


def _is_whole(job: JobCase, proposals: Mapping[int, Proposal]) -> bool:
    """Whether each rank that must take part does: a batch is as large on all of them."""
    is_of_all = any(proposal.samples_times != 1 for proposal in proposals.values())
    return not is_of_all or len(proposals) == len(job.cases)


def joined(job: JobCase, proposals: Mapping[int, Proposal]) -> JobProposal:
    """One code's proposals, by the rank's index, in the words of the rank that it costs most."""
    gains = dict.fromkeys(proposals, MIN_SPEEDUP)
    if len(proposals) > 1:
        gains = {
            index: _alone_gain(job.cases[index], proposal) for index, proposal in proposals.items()
        }
    most = max(gains, key=lambda index: gains[index])
    case, proposal = job.cases[most], proposals[most]
    locations = source_locations_in(case, proposal)
    action, evidence = proposal.action, proposal.evidence
    if locations:
        action = f"{action}. {_most_at(locations[0])}"
        evidence = (
            *evidence,
            *(f"{location.share:.0%} of it at {location.words}" for location in locations),
        )
    at_fault = [index for index, gain in gains.items() if gain >= MIN_SPEEDUP] or [most]
    of_all = JobProposal(
        code=proposal.code,
        bound=proposal.bound,
        summary=proposal.summary,
        action=action,
        evidence=evidence,
        ranks=tuple(job.ranks[index] for index in at_fault),
        change=_on_ranks({index: each.change for index, each in proposals.items()}),
        cautious=_variant(proposals, "cautious"),
        hopeful=_variant(proposals, "hopeful"),
        changes_numerics=proposal.changes_numerics,
        may_slow=proposal.may_slow,
        alternative_to=proposal.alternative_to,
        changes_training=proposal.changes_training,
        after=proposal.after,
        rare_ns=max(each.rare_ns for each in proposals.values()),
        source_locations=locations,
        memory=proposal.memory,
        samples_times=proposal.samples_times,
        hopes_for_other=any(each.hopes_for_other for each in proposals.values()),
        timed_share=min(each.timed_share for each in proposals.values()),
        lacks_stacks=proposal.events is not None and not case.has_lines and not locations,
    )
    rule = rule_of(proposal.code)
    if rule is None or rule.of_job is None or len(proposals) == 1:
        return of_all
    return rule.of_job(job, of_all)


def _alone_gain(case: Case, proposal: Proposal) -> float:
    """What the fix would give the rank if it were alone."""
    rare = 1 + proposal.rare_ns / case.step_interval_ns
    return case.speedup(proposal.change(case.graph)) * rare


def _variant(proposals: Mapping[int, Proposal], name: str) -> JobChange | None:
    """The cautious or hopeful change of each rank; None where no rank has one."""
    changes = {index: getattr(proposal, name) for index, proposal in proposals.items()}
    if not any(changes.values()):
        return None
    return _on_ranks(
        {index: change or proposals[index].change for index, change in changes.items()}
    )


def _on_ranks(changes: Mapping[int, Change]) -> JobChange:
    def change(job_graph: JobGraph) -> JobGraph:
        graphs = [
            changes[index](part.graph) if index in changes else part.graph
            for index, part in enumerate(job_graph.parts)
        ]
        return with_graphs(job_graph, graphs)

    return change


def _most_at(location: SourceLocation) -> str:
    most = "Most" if location.share > 0.5 else f"The largest part ({location.share:.0%})"
    return f"{most} of it at {location.words}"


def _without_repeats(job: JobCase, pairs: list[Pair]) -> list[Pair]:
    """What only the late rank suffers from is said with its lateness, not again as a fault of the
    job; what gives the other ranks nothing while it is late stands after it."""
    late = next((pair for pair in pairs if pair[0].code == LATE_RANK), None)
    if late is None or late[0].predicted_speedup < MIN_SPEEDUP:
        return pairs
    index = job.ranks.index(late[0].ranks[0])
    kept: list[Pair] = []
    reasons: list[str] = []
    first: int | None = None
    for finding, proposal in pairs:
        if finding.bound in ("host", "data") and finding.predicted_speedup >= MIN_SPEEDUP:
            changed = proposal.change(job.job_graph)
            elsewhere = with_rank(changed, index, job.job_graph.parts[index].graph)
            is_same = finding.predicted_speedup <= SAME_FIX_RATIO * late[0].predicted_speedup
            if job.speedup(elsewhere) < MIN_SPEEDUP:
                if is_same:
                    reasons.append(f"{finding.code} there: {finding.summary}")
                    continue
                first = len(kept) if first is None else first
        kept.append((finding, proposal))
    explained = (replace(late[0], evidence=(*late[0].evidence, *reasons)), late[1])
    now = next(at for at, pair in enumerate(kept) if pair[0].code == LATE_RANK)
    kept.pop(now)
    kept.insert(now if first is None else min(now, first), explained)
    return kept


def _with_alternatives(pairs: list[Pair]) -> list[Pair]:
    """What fixes another finding's cost in its own way is said with that finding."""
    codes = [
        finding.code
        for finding, proposal in pairs
        if finding.predicted_speedup >= MIN_SPEEDUP and not proposal.alternative_to
    ]
    others: dict[str, list[Alternative]] = {}
    kept = []
    for finding, proposal in pairs:
        host = next((code for code in proposal.alternative_to if code in codes), None)
        if host is None:
            kept.append((finding, proposal))
        elif finding.predicted_speedup >= MIN_SPEEDUP:
            others.setdefault(host, []).append(_alternative(finding))
    return [
        (replace(finding, alternatives=tuple(others.get(finding.code, ()))), proposal)
        for finding, proposal in kept
    ]


def _alternative(finding: Finding) -> Alternative:
    return Alternative(
        code=finding.code,
        action=finding.action,
        predicted_speedup=finding.predicted_speedup,
        predicted_low=finding.predicted_low,
        predicted_high=finding.predicted_high,
        changes_numerics=finding.changes_numerics,
    )


def _with_excluded(pairs: list[Pair]) -> list[Pair]:
    """Each finding with those of the others that cannot be applied with it."""
    codes = [finding.code for finding, _ in pairs if finding.predicted_speedup >= MIN_SPEEDUP]
    excluded = {code: tuple(other for other in codes if excludes(code, other)) for code in codes}
    return [
        (replace(finding, excludes=excluded.get(finding.code, ())), proposal)
        for finding, proposal in pairs
    ]
