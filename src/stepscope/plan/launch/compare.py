"""One job under each framework that it can be written for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stepscope.errors import UsageError
from stepscope.plan.estimate import Choice, choice_of
from stepscope.plan.framework import find_framework, grads_setting, with_grads
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.emit import PYTORCH, TARGETS, able, launch_of, restricted
from stepscope.plan.layout import Layout
from stepscope.plan.search import SearchResult, search
from stepscope.plan.space import Space
from stepscope.plan.validate import check_job, problems, shortfall

MIN_TRIED = 20
"""Layouts that are looked at for one that can be written."""
NOTHING = SearchResult(num_layouts=0, num_fit=0, too_large={}, best=(), front=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The job under one framework."""

    target: str
    """What writes it."""
    job: TrainingJob
    space: Space
    """What can be written there."""
    found: SearchResult = NOTHING
    """Layouts that can be written, the fastest first."""
    reason: str = ""
    """Why there is none."""

    @property
    def best(self) -> Choice | None:
        return next(iter(self.found.best), None)


def candidates(
    job: TrainingJob, space: Space, targets: Iterable[str], *, top: int
) -> tuple[Candidate, ...]:
    """The best layouts under each, or why there is none."""
    return tuple(_candidate(job, space, target, top) for target in targets)


def bare(job: TrainingJob, space: Space, target: str) -> Candidate:
    """The job under a target's framework, not searched."""
    framework = find_framework(TARGETS[target].framework)
    assert framework is not None
    if job.grads is not None and grads_setting(framework, job.grads) is not None:
        job = replace(job, framework=with_grads(framework, job.grads))
    elif framework.name != job.framework.name:
        job = replace(job, framework=framework)
    target = able(target, job)
    return Candidate(target=target, job=job, space=restricted(space, target))


def _candidate(job: TrainingJob, space: Space, target: str, top: int) -> Candidate:
    candidate = bare(job, space, target)
    framework, grads = candidate.job.framework, job.grads
    if grads is not None and grads_setting(framework, grads) is None:
        return replace(candidate, reason=f"it keeps no gradients in {grads}")
    if lacking := TARGETS[candidate.target].lacks(candidate.job):
        return replace(candidate, reason="; ".join(lacking))
    try:
        check_job(candidate.job, candidate.space)
    except UsageError as problem:
        return replace(candidate, reason=str(problem))
    found = search(candidate.job, candidate.space, top=max(top, MIN_TRIED), num_workers=None)
    reason = "nothing fits" if not found.best else refusal(candidate, found.best[0]) or ""
    return writable(candidate, found, top) or replace(
        candidate, found=replace(found, best=(), front=()), reason=reason
    )


def writable(candidate: Candidate, found: SearchResult, top: int) -> Candidate | None:
    """Candidate with the layouts that can be written; None where none of them can."""
    best, front = (
        tuple(each for each in choices if refusal(candidate, each) is None)
        for choices in (found.best, found.front)
    )
    return replace(candidate, found=replace(found, best=best[:top], front=front)) if best else None


def refusal(candidate: Candidate, choice: Choice) -> str | None:
    """Why a layout cannot be written there; None where it can."""
    try:
        launch_of(candidate.target, candidate.job, choice)
    except UsageError as problem:
        return str(problem)
    return None


def chosen(compared: Sequence[Candidate], preferred: Sequence[str] = PYTORCH) -> Candidate | None:
    """The fastest of those preferred; where none of them has a layout, of all. None where none
    has."""
    fit = [each for each in compared if each.best is not None]
    wanted = [each for each in fit if each.target in preferred] or fit
    return min(wanted, key=_step_s, default=None)


def _step_s(candidate: Candidate) -> float:
    assert candidate.best is not None
    return candidate.best.step_s


def nearest(compared: Sequence[Candidate]) -> Candidate | None:
    """Candidate that helps most of those that hold no layout, and of these the one whose least
    memory is least."""
    searched = [each for each in compared if each.found is not NOTHING]
    short = [(shortfall(each.job, each.space), each) for each in searched]
    sized = [(-len(found.helps), found.memory_bytes, each) for found, each in short if found]
    return min(sized, key=lambda each: each[:2], default=(0, 0.0, None))[2]


def first_that_writes(
    job: TrainingJob, space: Space, layout: Layout, targets: Iterable[str]
) -> Candidate | None:
    """The first framework that a named layout can run under and be written for."""
    for target in targets:
        candidate = bare(job, space, target)
        if problems(candidate.job, layout):
            continue
        if refusal(candidate, choice_of(candidate.job, layout)) is None:
            return candidate
    return None
