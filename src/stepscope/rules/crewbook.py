"""Judging the ranks of a job together: the rules about many ranks, and those about one with their gains for the whole job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np

from stepscope.analyses.lateness import lateness
from stepscope.analyses.waits import with_waits
from stepscope.core.comms import Ledger, Matched
from stepscope.core.diagnosis import Finding
from stepscope.core.facts import Replayed
from stepscope.core.nccl import NcclLog
from stepscope.replay.changes import Change
from stepscope.replay.gloo_graph import build_host, host_kinds
from stepscope.replay.team import calibrated, fit_team, team_of, team_shares, with_graphs
from stepscope.replay.together import Team, play_together
from stepscope.rules import (
    buffer_broadcast,
    data_parallel_module,
    exposed_collectives,
    late_rank,
    pipeline_bubble,
    resharded_forward,
    slow_link,
    sync_every_microbatch,
    throttled_gpu,
    tiny_buckets,
    uneven_work,
    unprefetched_gather,
    unused_parameter_scan,
)
from stepscope.rules.case import Case
from stepscope.rules.crew import Crew, TeamChange, TeamProposal, with_rank
from stepscope.rules.proposal import Proposal, finding_of, predicted
from stepscope.rules.rulebook import LEAST_SPEEDUP, RULES, Judgement, judge

TEAM_RULES: tuple[ModuleType, ...] = (
    exposed_collectives,
    sync_every_microbatch,
    slow_link,
    late_rank,
    uneven_work,
    tiny_buckets,
    resharded_forward,
    unprefetched_gather,
    pipeline_bubble,
    buffer_broadcast,
    unused_parameter_scan,
    data_parallel_module,
    throttled_gpu,
)
HOST_RULES: tuple[ModuleType, ...] = (late_rank,)
"""Those that need no device: a job on hosts alone has no kernels to ask about."""
NO_MORE = 1.15
"""Times the gain from a rank at the others' pace, up to which a mend of that rank alone is the same mend."""
MOST_RANKS = 8
"""Replayed together; of a larger job those that arrive latest and earliest, and some between."""


def crew_of(
    cases: Sequence[Case],
    ledgers: Sequence[Ledger],
    everyone: Sequence[Ledger],
    matched: Matched,
    step_ns: int | None,
    nccl: NcclLog | None = None,
) -> Crew | None:
    """The ranks' graphs tied together and fitted to the step; None when a rank has none."""
    cases = [_with_host_graph(case) for case in cases]
    graphs = [case.recorded for case in cases if case.recorded is not None]
    if not graphs or len(graphs) < len(cases):
        return None
    team = team_of(graphs, ledgers, matched)
    pitches = [case.facts.steps.pitch_ns for case in cases if case.facts.steps.pitch_ns is not None]
    team = calibrated(team, float(np.median(pitches)))
    fitted = fit_team(team, None if step_ns is None else float(step_ns))
    split = tuple(
        replace(case, facts=with_waits(case.facts, ledger, matched)) for case, ledger in zip(cases, ledgers, strict=True)
    )
    return Crew(
        cases=split,
        ledgers=tuple(ledgers),
        matched=matched,
        lateness=lateness(everyone, matched),
        team=fitted,
        pitch_ns=play_together(fitted).pitch_ns,
        num_ranks=len(everyone),
        nccl=nccl,
    )


def _with_host_graph(case: Case) -> Case:
    """A rank without a device is tied to the others by the collectives its threads carry out, which run beside its own work."""
    if case.recorded is not None and not case.recorded.on_host:
        return case
    graph = build_host(case.survey)
    return case if graph is None else replace(case, recorded=graph, graph=None, kinds=host_kinds(graph))


def replayed(crew: Crew, step_ns: int | None) -> Replayed:
    """What the replay of all ranks says of the job: its step, and what each resource holds up."""
    found = crew.cases[0].facts.replayed
    if found is None:
        # Without a device no rank is replayed alone.
        found = Replayed(recorded_error=0.0, pitch_ns=crew.pitch_ns, error=None, cost_ns=0.0, shares={})
    kinds = [case.kinds for case in crew.cases if case.kinds is not None]
    return replace(
        found,
        pitch_ns=crew.pitch_ns,
        error=None if step_ns is None else crew.pitch_ns / step_ns - 1,
        shares=team_shares(crew.team, kinds),
    )


def judge_crew(crew: Crew) -> Judgement:
    """Every rule's findings, with what its mend gives the job: a rule about one rank is mended on every rank that has it."""
    rules = TEAM_RULES if all(case.graph is not None for case in crew.cases) else HOST_RULES
    said = [rule.propose_team(crew) for rule in rules]
    own = [judge_rank(case) for case in crew.cases]
    proposals = [word for word in said if word is not None] + _lifted(crew, [proposals for proposals, _ in own])
    paired = sorted(((_finding(crew, p), p) for p in proposals), key=lambda pair: -pair[0].predicted_speedup)
    paired = _told_once(crew, paired)
    worth = [proposal for finding, proposal in paired if finding.predicted_speedup >= LEAST_SPEEDUP]
    first = own[0][1]
    return Judgement(
        findings=tuple(finding for finding, _ in paired),
        ladder=_ladder(crew, worth),
        abstentions=first.abstentions,
        remarks=first.remarks,
        lacks_stacks=first.lacks_stacks,
    )


def _told_once(crew: Crew, paired: list[tuple[Finding, TeamProposal]]) -> list[tuple[Finding, TeamProposal]]:
    """What only the late rank suffers from is said with its lateness, not again as a fault of the job."""
    late = next((pair for pair in paired if pair[0].code == late_rank.CODE), None)
    if late is None or late[0].predicted_speedup < LEAST_SPEEDUP:
        return paired
    place = crew.ranks.index(late[0].ranks[0])
    kept, reasons = [], []
    for finding, proposal in paired:
        if finding.bound in ("host", "data") and finding.predicted_speedup >= LEAST_SPEEDUP:
            changed = proposal.change(crew.team)
            elsewhere = with_rank(changed, place, crew.team.parts[place].graph)
            if crew.speedup(elsewhere) < LEAST_SPEEDUP and finding.predicted_speedup <= NO_MORE * late[0].predicted_speedup:
                reasons.append(f"{finding.code} there: {finding.summary}")
                continue
        kept.append((finding, proposal))
    told = (replace(late[0], evidence=(*late[0].evidence, *reasons)), late[1])
    return [told if pair[0].code == late_rank.CODE else pair for pair in kept]


def judge_rank(case: Case) -> tuple[list[Proposal], Judgement]:
    """A rank's proposals, and its judgement as if it were alone."""
    words = [rule.propose(case) for rule in RULES] if case.graph is not None else []
    return [word for word in words if isinstance(word, Proposal)], judge(case)


def _lifted(crew: Crew, proposals: Sequence[Sequence[Proposal]]) -> list[TeamProposal]:
    """The proposals of single ranks, joined by code: each rank's own change on its own graph."""
    found: dict[str, dict[int, Proposal]] = {}
    for place, mine in enumerate(proposals):
        for proposal in mine:
            found.setdefault(proposal.code, {})[place] = proposal
    lifted = []
    for code, by_place in found.items():
        gains = {place: finding_of(crew.cases[place], proposal) for place, proposal in by_place.items()}
        best = max(gains, key=lambda place: gains[place].predicted_speedup)
        words = gains[best]
        lifted.append(
            TeamProposal(
                code=code,
                bound=by_place[best].bound,
                summary=words.summary,
                action=words.action,
                evidence=words.evidence,
                ranks=tuple(crew.ranks[p] for p, f in gains.items() if f.predicted_speedup >= LEAST_SPEEDUP)
                or (crew.ranks[best],),
                change=_on_all({place: proposal.change for place, proposal in by_place.items()}),
                cautious=_on_all({place: proposal.cautious or proposal.change for place, proposal in by_place.items()}),
                hopeful=_on_all({place: proposal.hopeful or proposal.change for place, proposal in by_place.items()}),
                changes_numerics=by_place[best].changes_numerics,
            )
        )
    return lifted


def _on_all(changes: dict[int, Change]) -> TeamChange:
    def change(team: Team) -> Team:
        graphs = [changes[at](part.graph) if at in changes else part.graph for at, part in enumerate(team.parts)]
        return with_graphs(team, graphs)

    return change


def _finding(crew: Crew, proposal: TeamProposal) -> Finding:
    likely = crew.speedup(proposal.change(crew.team))
    others = [crew.speedup(change(crew.team)) for change in (proposal.cautious, proposal.hopeful) if change is not None]
    return predicted(proposal, proposal.ranks, crew.pitch_ns, likely, others)


def _ladder(crew: Crew, proposals: Sequence[TeamProposal]) -> tuple[float, ...]:
    """What the mends give one after the other; one that has nothing left to give after those before it is left out."""
    team, gains = crew.team, [1.0]
    for proposal in proposals:
        changed = proposal.change(team)
        gain = crew.speedup(changed)
        if gain > gains[-1]:
            team = changed
        gains.append(max(gain, gains[-1]))
    return tuple(gains[1:])
