"""A job: files in, facts and judgements out. One file is one task; events never travel between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, replace

from stepscope.analyses.survey import device_of, survey
from stepscope.core.facts import Facts, RankFacts
from stepscope.core.trace import TraceMeta
from stepscope.errors import InputError, StepscopeError
from stepscope.hardware.lookup import find_spec
from stepscope.readers.inputs import assign_ranks
from stepscope.readers.sniff import read_trace
from stepscope.readers.source import Source
from stepscope.rules.case import case_of
from stepscope.rules.rulebook import Judgement, judge

Progress = Callable[[int, int], None]
"""Called with the number of finished files and of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one task brings back: facts, or why there are none."""

    meta: TraceMeta | None = None
    facts: RankFacts | None = None
    judgement: Judgement | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The ranks that could be read, what the rules say of each, and notes on what could not be read."""

    facts: Facts
    judgements: tuple[Judgement, ...]
    """In the order of `facts.ranks`."""
    notes: tuple[str, ...]


def measure_file(source: Source, step_ns: int | None, use_cache: bool, progress: Callable[[int], None] | None = None) -> Measured:
    """One rank's facts. A file that cannot be read is a result too: the other ranks go on."""
    try:
        trace = read_trace(source, use_cache=use_cache, progress=progress)
    except StepscopeError as problem:
        return Measured(problem=str(problem))
    device = device_of(trace)
    spec = None if device is None else find_spec(device)
    case = case_of(survey(trace, spec), trace.meta.rank or 0, step_ns)
    return Measured(meta=trace.meta, facts=case.facts, judgement=judge(case))


def measure_job(
    sources: Sequence[Source],
    *,
    executor: Executor | None = None,
    step_ns: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
    read_progress: Callable[[int], None] | None = None,
) -> Job:
    """Every rank that could be read, by rank, and notes on what could not."""
    results: list[Measured] = []
    for number, measured in enumerate(_measured(sources, executor, step_ns, use_cache, read_progress), start=1):
        results.append(measured)
        if progress is not None:
            progress(number, len(sources))
    good = [r for r in results if r.facts is not None and r.meta is not None]
    problems = [r.problem for r in results if r.problem is not None]
    if not good:
        raise InputError(problems[0] if len(problems) == 1 else "no trace could be read:\n  " + "\n  ".join(problems))
    ranks, notes = assign_ranks([r.meta for r in good if r.meta is not None])
    rows = [
        (replace(r.facts, rank=rank), r.judgement or Judgement())
        for r, rank in zip(good, ranks, strict=True)
        if r.facts is not None
    ]
    rows.sort(key=lambda row: (row[0].rank, row[0].path))
    left_out = [f"left out: {problem}" for problem in problems]
    return Job(
        facts=Facts(ranks=tuple(facts for facts, _ in rows), given_step_ns=step_ns),
        judgements=tuple(judgement for _, judgement in rows),
        notes=(*left_out, *notes),
    )


def _measured(
    sources: Sequence[Source],
    executor: Executor | None,
    step_ns: int | None,
    use_cache: bool,
    read_progress: Callable[[int], None] | None,
) -> Iterator[Measured]:
    if executor is None:
        for source in sources:
            yield measure_file(source, step_ns, use_cache, read_progress)
        return
    n = len(sources)
    try:
        yield from executor.map(measure_file, sources, [step_ns] * n, [use_cache] * n)
    except BrokenExecutor as problem:
        raise StepscopeError("a worker process died, most likely for lack of memory; try again with --jobs 1") from problem
