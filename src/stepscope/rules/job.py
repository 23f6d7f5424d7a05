"""A job: files in, facts and judgements out. One file is one task; events never travel between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from stepscope.analyses.ledger import ledger_of
from stepscope.analyses.roofline import slower_than_peak
from stepscope.analyses.survey import Survey, device_of, survey
from stepscope.core.beside import Beside
from stepscope.core.calibrated import Calibrated
from stepscope.core.comms import Ledger
from stepscope.core.facts import Facts, RankFacts
from stepscope.core.find_db import SearchedConvolutions, together_of
from stepscope.core.nccl import NcclLog
from stepscope.core.run import Known, RunFacts
from stepscope.core.trace import Trace, TraceMeta
from stepscope.errors import InputError, StepscopeError
from stepscope.hardware.lookup import find_spec
from stepscope.readers.inputs import assign_ranks
from stepscope.readers.nccl_log import read_nccl_logs
from stepscope.readers.sniff import read_trace
from stepscope.readers.source import Source
from stepscope.rules.assembly import Together, bring_together
from stepscope.rules.case import Case, case_of
from stepscope.rules.rulebook import Judgement, judge
from stepscope.rules.tasks import DiedError, Workers, run_tasks

MOST_LETTERS = 80
"""Of a hardware file's own texts."""
MOST_SHORTENED = 1.5
"""A log's step over the profiled one, beyond which they are not the same steps: a profiler costs time, it does not give any."""
MOST_NAMED = 8
"""Problems listed when there is nothing else to say: those of a job are mostly the same one."""

Progress = Callable[[int, int], None]
"""Called with the number of finished files and of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one task brings back: facts, or why there are none."""

    meta: TraceMeta | None = None
    facts: RankFacts | None = None
    judgement: Judgement | None = None
    ledger: Ledger | None = None
    survey: Survey | None = None
    """Kept where it need not travel, so that the trace is not read twice."""
    slower: float | None = None
    """How much longer its FLOPs need at the rates that the machine was measured at than at the datasheet's peaks."""
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The ranks that could be read, what the rules say of each, and notes on what could not be read."""

    facts: Facts
    judgements: tuple[Judgement, ...]
    """In the order of `facts.ranks`."""
    notes: tuple[str, ...]
    together: Together | None = None
    """What the ranks say together; None for one rank, or ranks that share no collective."""
    world_size: int | None = None
    """As the traces recorded it; None where they do not, or do not agree."""


def measure_file(
    source: Source,
    step_ns: int | None,
    use_cache: bool,
    progress: Callable[[int], None] | None = None,
    *,
    keep: bool = False,
    hardware: Calibrated | None = None,
    searched: SearchedConvolutions | None = None,
) -> Measured:
    """One rank's facts. A file that cannot be read is a result too: the other ranks go on."""
    try:
        trace = read_trace(source, use_cache=use_cache, progress=progress)
    except StepscopeError as problem:
        return Measured(problem=str(problem))
    case = _case(trace, trace.meta.rank or 0, step_ns, source.known, hardware, searched)
    ledger = ledger_of(case.survey, case.facts.rank)
    return Measured(
        meta=trace.meta,
        facts=case.facts,
        judgement=judge(case),
        ledger=ledger if len(ledger) else None,
        survey=case.survey if keep else None,
        slower=slower_than_peak(case.survey),
    )


def _case(
    trace: Trace,
    rank: int,
    step_ns: int | None,
    known: Known | None,
    hardware: Calibrated | None,
    searched: SearchedConvolutions | None,
) -> Case:
    device = device_of(trace)
    spec = None if device is None else find_spec(device)
    measured = hardware if hardware is not None and device is not None and hardware.is_of(device.name) else None
    return case_of(survey(trace, spec, measured), rank, step_ns, known, searched)


def measure_job(
    sources: Sequence[Source],
    *,
    logs: Sequence[Source] = (),
    beside: Beside | None = None,
    run: RunFacts | None = None,
    workers: Workers | None = None,
    step_ns: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
    read_progress: Callable[[int], None] | None = None,
    hardware: Calibrated | None = None,
) -> Job:
    """Every rank that could be read, by rank, and notes on what could not. A given step time goes before a measured one.

    `hardware` is a machine as it was calibrated: its rates stand in place of the datasheet's shares on ranks of the same device.
    """
    is_measured = False
    if run is not None:
        sources = [replace(source, known=run.known.get(source.rank)) if source.rank is not None else source for source in sources]
        if step_ns is None and run.step_ns is not None:
            step_ns, is_measured = run.step_ns, True
    is_logged = False
    logged = None if step_ns is not None or beside is None or beside.training is None else beside.training.step_ns
    unfit: tuple[str, ...] = ()
    if logged is not None:
        is_logged, unfit = _fits(sources[0], logged, use_cache)
        step_ns = logged if is_logged else None
    found: dict[int, Measured] = {}
    searched = None if beside is None or beside.kernels is None else together_of(beside.kernels.find_dbs)
    for number, measured in _measured(sources, workers, step_ns, use_cache, read_progress, hardware, searched):
        found[number] = measured
        if progress is not None:
            progress(len(found), len(sources))
    # They finish in any order; what is said of the job does not depend on it.
    results = [found[number] for number in range(len(sources))]
    good = [r for r in results if r.facts is not None and r.meta is not None]
    problems = [r.problem for r in results if r.problem is not None]
    if not good:
        raise InputError(problems[0] if len(problems) == 1 else _none_read(problems))
    ranks, notes = assign_ranks([r.meta for r in good if r.meta is not None])
    used = [source for source, r in zip(sources, results, strict=True) if r.facts is not None and r.meta is not None]
    nccl = read_nccl_logs(logs) if logs else None
    together = _together(used, good, ranks, step_ns, use_cache, nccl, hardware, searched)
    waits = {} if together is None else together.facts
    rows = [
        (waits.get(rank, replace(r.facts, rank=rank)), r.judgement or Judgement())
        for r, rank in zip(good, ranks, strict=True)
        if r.facts is not None
    ]
    rows.sort(key=lambda row: (row[0].rank, row[0].path))
    left_out = [f"left out: {problem}" for problem in problems]
    told = () if hardware is None else _hardware_notes(hardware, good)
    return Job(
        facts=Facts(
            ranks=tuple(facts for facts, _ in rows),
            given_step_ns=step_ns,
            is_step_measured=is_measured,
            is_step_logged=is_logged,
            beside=beside,
            run=run,
            nccl=nccl,
            comms=None if together is None else together.comms,
        ),
        judgements=tuple(judgement for _, judgement in rows),
        notes=(*left_out, *notes, *told, *unfit, *(() if together is None else together.notes)),
        together=together,
        world_size=_world_size([r.meta for r in good if r.meta is not None]),
    )


def _fits(source: Source, logged_ns: int, use_cache: bool) -> tuple[bool, tuple[str, ...]]:
    """Whether a log's step can be that of this trace: the profiler lengthens steps, and never makes one much shorter."""
    measured = measure_file(source, None, use_cache)
    pitch = None if measured.facts is None else measured.facts.steps.pitch_ns
    if pitch is None or not measured.facts or not measured.facts.steps.is_pitch:
        return True, ()
    if logged_ns > MOST_SHORTENED * pitch:
        words = f"the log tells {logged_ns / 1e6:.4g} ms a step, and the trace's take {pitch / 1e6:.4g}: they are not of one run"
        return False, (f"{words}, or not of the same steps; the log's step time was not used",)
    return True, ()


def _hardware_notes(hardware: Calibrated, good: Sequence[Measured]) -> tuple[str, ...]:
    """What the hardware file was used for, and where it could not be."""
    facts = [(r.facts, r.slower) for r in good if r.facts is not None]
    others = {one.device_name or "no device that it names" for one, _ in facts if not hardware.is_of(one.device_name)}
    notes = [
        f"the hardware file was measured on {hardware.machine.device[:MOST_LETTERS]}, and this run is of {other[:MOST_LETTERS]}:"
        " it is judged by datasheets"
        for other in sorted(others)[:MOST_NAMED]
    ]
    if len(others) < len({one.device_name for one, _ in facts}):
        where = f"{hardware.machine.device[:MOST_LETTERS]} ({hardware.date[:MOST_LETTERS]})"
        notes.append(f"products, memory and copies are judged by what was measured on {where}, not by its datasheet")
    used = [(one.roofline.mfu, slower) for one, slower in facts if one.roofline.mfu is not None and slower is not None]
    if used:
        mfu, slower = sorted(used)[len(used) // 2]
        notes.append(f"MFU {mfu:.1%} is of the datasheet's peak; of what this machine keeps up it is {mfu * slower:.1%}")
    return tuple(notes)


def _world_size(metas: Sequence[TraceMeta]) -> int | None:
    told = {meta.world_size for meta in metas if meta.world_size is not None}
    return told.pop() if len(told) == 1 else None


def _none_read(problems: Sequence[str]) -> str:
    more = [f"and {len(problems) - MOST_NAMED} more"] if len(problems) > MOST_NAMED else []
    return "\n  ".join(["no trace could be read:", *problems[:MOST_NAMED], *more])


def _together(
    sources: Sequence[Source],
    good: Sequence[Measured],
    ranks: Sequence[int],
    step_ns: int | None,
    use_cache: bool,
    nccl: NcclLog | None,
    hardware: Calibrated | None,
    searched: SearchedConvolutions | None,
) -> Together | None:
    """What the ranks say together; a trace is read again for each rank that is replayed."""
    ledgers = [replace(r.ledger, rank=rank) for r, rank in zip(good, ranks, strict=True) if r.ledger is not None]
    facts = [replace(r.facts, rank=rank) for r, rank in zip(good, ranks, strict=True) if r.facts is not None]
    source_of = dict(zip(ranks, sources, strict=True))
    if len(set(ranks)) < len(ranks):
        return None

    unread: list[str] = []
    kept = {rank: r.survey for rank, r in zip(ranks, good, strict=True)}

    def case(rank: int) -> Case | None:
        survey_of_rank = kept[rank]
        if survey_of_rank is not None:
            return case_of(survey_of_rank, rank, None, source_of[rank].known, searched)
        try:
            trace = read_trace(source_of[rank], use_cache=use_cache)
            return _case(trace, rank, None, source_of[rank].known, hardware, searched)
        except StepscopeError as problem:
            # A worker of a cluster could read it; this machine cannot, or no more.
            unread.append(f"rank {rank} could not be read again to be replayed with the others: {problem}")
            return None

    together = bring_together(facts, ledgers, case, step_ns, nccl)
    return None if together is None else replace(together, notes=(*together.notes, *unread))


def _measured(
    sources: Sequence[Source],
    workers: Workers | None,
    step_ns: int | None,
    use_cache: bool,
    read_progress: Callable[[int], None] | None,
    hardware: Calibrated | None,
    searched: SearchedConvolutions | None,
) -> Iterator[tuple[int, Measured]]:
    """The number of each source and what was measured, in the order they finish."""
    if workers is None:
        for number, source in enumerate(sources):
            keep = len(sources) == 1
            found = measure_file(source, step_ns, use_cache, read_progress, keep=keep, hardware=hardware, searched=searched)
            yield number, found
        return
    measure = partial(measure_file, step_ns=step_ns, use_cache=use_cache, hardware=hardware, searched=searched)
    for number, result in run_tasks(workers, measure, sources):
        if isinstance(result, DiedError):
            words = "the worker that read it died, and again when it was tried anew, most likely for lack of memory"
            yield number, Measured(problem=f"{sources[number].label}: {words}")
        else:
            yield number, result
