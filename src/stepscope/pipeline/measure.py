"""A job: files in, facts out.
One file is one task; events never travel between processes, but as columns on the disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from msgspec.structs import replace

from stepscope.analyses.kernels.roofline import slower_than_peak
from stepscope.analyses.links import host_collectives
from stepscope.analyses.peak_waterfall import with_waterfalls
from stepscope.analyses.rank import measure_rank
from stepscope.analyses.rank_context import RankContext
from stepscope.core.calibrated import Calibrated
from stepscope.core.comms import CollectiveRecords, CommsFacts, Lateness, Matched
from stepscope.core.facts import Facts, RankFacts
from stepscope.core.memory import OutOfMemoryReport
from stepscope.core.numbers import number_ranges
from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.nccl import NcclLog
from stepscope.core.run import RunFacts, WholeRun
from stepscope.core.timings import stage
from stepscope.core.trace import TraceMeta
from stepscope.errors import InputError, StepscopeError
from stepscope.pipeline.contexts import RankContexts, context_of
from stepscope.pipeline.options import BytesRead, FilesRead
from stepscope.pipeline.workers import DiedError, Workers, run_tasks
from stepscope.readers import cache
from stepscope.readers.cache import is_cached, read_trace
from stepscope.readers.format import NCCL, Source
from stepscope.readers.inputs import IN_RUN, assign_ranks
from stepscope.rules.case import Case, case_of
from stepscope.rules.job_case import CaseOf, Job

MAX_LETTERS = 80
"""Characters of a hardware file's own texts that are printed."""
MAX_SHORTENED = 1.5
"""A log's step over the profiled one, beyond which they are not the same steps:
a profiler costs time, it does not give any."""
SURE = ("distributedInfo", IN_RUN)
"""What tells a rank of a job of several, and not a file's name alone."""
MAX_NAMED = 8
"""Problems listed when there is nothing else to say: those of a job are mostly the same one."""


class Measured(Struct, frozen=True, kw_only=True):
    """What one task brings back: facts, or why there are none."""

    meta: TraceMeta | None = None
    facts: RankFacts | None = None
    collective_records: CollectiveRecords | None = None
    slower: float | None = None
    """How much longer its FLOPs need at the rates that the
    machine was measured at than at the datasheet's peaks."""
    problem: str | None = None


def measure_file(
    source: Source,
    step_ns: int | None,
    use_cache: bool,
    hardware: Calibrated | None = None,
    folder: Path | None = None,
) -> Measured:
    """One rank's facts, in a process of its own; its columns are left in `folder`, so that nobody
    parses it again. A file that cannot be read is a result too: the other ranks go on."""
    try:
        trace = read_trace(source, use_cache=use_cache)
    except StepscopeError as problem:
        return Measured(problem=str(problem))
    if folder is not None and not is_cached(trace, use_cache=use_cache):
        cache.store(source, trace, folder=folder)
    is_run = source.metadata is not None
    return measure_context(context_of(trace, hardware), step_ns, is_run=is_run)


@stage("measure")
def measure_context(context: RankContext, step_ns: int | None, *, is_run: bool) -> Measured:
    # Its groups are in the records, each rank of each of them: a job has many of both.
    meta = dataclasses.replace(context.trace.meta, process_groups=())
    facts = measure_rank(context, meta.rank or 0, step_ns, is_run=is_run)
    return Measured(
        meta=meta,
        facts=facts,
        collective_records=_collective_records(context, facts.rank),
        slower=slower_than_peak(context),
    )


def _collective_records(context: RankContext, rank: int) -> CollectiveRecords | None:
    """None where the rank exchanged nothing."""
    if not (context.collective | host_collectives(context.trace)).any():
        return None
    from stepscope.analyses.collectives.records import collective_records_of

    return collective_records_of(context, rank)


def measure_job(
    sources: Sequence[Source],
    *,
    logs: Sequence[Source] = (),
    auxiliary: Auxiliary | None = None,
    run: RunFacts | None = None,
    whole_run: WholeRun | None = None,
    workers: Workers | None = None,
    step_ns: int | None = None,
    contexts: RankContexts | None = None,
    progress: FilesRead | None = None,
    read_progress: BytesRead | None = None,
) -> Job:
    """Every rank that could be read, by rank, and notes on what could not."""
    contexts = contexts or RankContexts(use_cache=False)
    if run is not None:
        sources = [
            source
            if source.rank is None
            else replace(source, metadata=run.by_rank.get(source.rank))
            for source in sources
        ]
    step = _step_time(step_ns, run, auxiliary, sources, contexts)
    measured = _measured(sources, workers, step.ns, contexts, progress, read_progress)
    readable = [
        (source, result)
        for source, result in zip(sources, measured, strict=True)
        if result.meta is not None
    ]
    problems = [result.problem for result in measured if result.problem is not None]
    if not readable:
        raise InputError(problems[0] if len(problems) == 1 else _none_read(problems))
    metas = [result.meta for _, result in readable if result.meta is not None]
    numbers, notes = assign_ranks(metas)
    ranks = sorted(
        (
            _numbered(source, result, number)
            for (source, result), number in zip(readable, numbers, strict=True)
        ),
        key=lambda rank: (rank.facts.rank, rank.facts.path),
    )
    nccl = read_nccl_logs(logs)
    exchanged = _exchanged(ranks, nccl)
    return Job(
        facts=with_waterfalls(
            Facts(
                ranks=exchanged.facts,
                given_step_ns=step.ns,
                is_step_measured=step.is_measured,
                is_step_logged=step.is_logged,
                auxiliary=auxiliary,
                run=run,
                whole_run=whole_run,
                nccl=nccl,
                comms=exchanged.comms,
                out_of_memory=_out_of_memory(run, auxiliary, len(exchanged.facts)),
            )
        ),
        notes=(
            *(f"left out: {problem}" for problem in problems),
            *notes,
            *_strangers(ranks, metas),
            *_hardware_notes(contexts.hardware, [result for _, result in readable]),
            *step.notes,
            *(() if exchanged.matched is None else exchanged.matched.notes),
        ),
        world_size=_world_size(metas),
        rank_records=exchanged.rank_records,
        matched=exchanged.matched,
        lateness=exchanged.lateness,
        case_of=_case_maker(ranks, contexts),
    )


def _out_of_memory(
    run: RunFacts | None, auxiliary: Auxiliary | None, num_ranks: int
) -> tuple[OutOfMemoryReport, ...]:
    if run is None and auxiliary is None:
        return ()
    from stepscope.analyses.memory.ways_out import out_of_memory

    return out_of_memory(run, auxiliary, num_ranks)


def _strangers(ranks: Sequence[_Rank], metas: Sequence[TraceMeta]) -> Iterator[str]:
    """Traces that do not say that they are of a job of several, and exchanged nothing with the
    others: a folder of different runs looks like that."""
    unsure = {meta.path for meta in metas if meta.rank_source not in SURE}
    silent = [rank for rank in ranks if rank.collective_records is None]
    # Several ranks in one file were recorded together.
    strangers = [
        rank.facts.rank for rank in silent if rank.source.part is None and rank.facts.path in unsure
    ]
    if len(ranks) < 2 or not strangers:
        return
    if len(silent) == len(ranks):
        yield (
            f"nothing shows that these {len(ranks)} traces are of one run: no collective was "
            "recorded. If they are not, give each alone"
        )
        return
    numbers = number_ranges(strangers)
    which = f"rank {numbers} records" if len(strangers) == 1 else f"ranks {numbers} record"
    yield f"{which} no collective, and others do: are the traces of one run?"


class _Rank(Struct, frozen=True, kw_only=True):
    """A rank with its number in the job."""

    source: Source
    facts: RankFacts
    collective_records: CollectiveRecords | None


def _numbered(source: Source, measured: Measured, number: int) -> _Rank:
    assert measured.facts is not None
    records = None
    if measured.collective_records is not None:
        records = replace(measured.collective_records, rank=number)
    return _Rank(
        source=source,
        facts=replace(measured.facts, rank=number),
        collective_records=records,
    )


class _Exchanged(Struct, frozen=True, kw_only=True):
    """What the ranks' collectives show together; the facts alone where they cannot be compared."""

    facts: tuple[RankFacts, ...]
    """Facts with waiting split from moving bytes."""
    rank_records: tuple[CollectiveRecords, ...] = ()
    matched: Matched | None = None
    lateness: tuple[Lateness, ...] = ()
    comms: CommsFacts | None = None


@stage("measure")
def _exchanged(ranks: Sequence[_Rank], nccl: NcclLog | None) -> _Exchanged:
    """The ranks' collectives compared, unless none was recorded or two traces are of one rank."""
    rank_records = [
        rank.collective_records for rank in ranks if rank.collective_records is not None
    ]
    facts = [rank.facts for rank in ranks]
    if not rank_records or len({rank.rank for rank in facts}) < len(facts):
        return _Exchanged(facts=tuple(facts))
    from stepscope.analyses.collectives.job import job_comms
    from stepscope.analyses.collectives.lateness import lateness
    from stepscope.analyses.collectives.matching import match
    from stepscope.analyses.collectives.waits import with_waits

    matched = match(rank_records)
    late = lateness(rank_records, matched)
    for index, rank in enumerate(ranks):
        if rank.collective_records is not None:
            facts[index] = with_waits(rank.facts, rank.collective_records, matched)
    comms = job_comms(facts, rank_records, matched, late, nccl=nccl)
    return _Exchanged(
        facts=tuple(facts),
        rank_records=tuple(rank_records),
        matched=matched,
        lateness=late,
        comms=comms,
    )


def _case_maker(ranks: Sequence[_Rank], contexts: RankContexts) -> CaseOf:
    """Maker of the case of a rank at this index, for this step time."""

    def case(index: int, step_ns: int | None) -> Case | None:
        rank = ranks[index]
        try:
            context = contexts.of(rank.source)
        except StepscopeError:
            return None
        with stage("replay"):
            return case_of(context, rank.facts.rank, step_ns, rank.source.metadata, rank.facts)

    return case


class _StepTime(Struct, frozen=True, kw_only=True):
    """The unprofiled step time, and where it comes from."""

    ns: int | None
    is_measured: bool = False
    is_logged: bool = False
    notes: tuple[str, ...] = ()


def _step_time(
    given_ns: int | None,
    run: RunFacts | None,
    auxiliary: Auxiliary | None,
    sources: Sequence[Source],
    contexts: RankContexts,
) -> _StepTime:
    """Step time as it was given, else as the run's own clock measured it, else as a log reports
    it."""
    if given_ns is not None:
        return _StepTime(ns=given_ns)
    if run is not None and run.step_ns is not None:
        return _StepTime(ns=run.step_ns, is_measured=True)
    log = None if auxiliary is None else auxiliary.training
    if log is None or log.step_ns is None:
        return _StepTime(ns=None)
    return _logged_step_time(log.step_ns, sources[0], contexts)


def _logged_step_time(logged_ns: int, source: Source, contexts: RankContexts) -> _StepTime:
    """A log's step time, if it can be this trace's:
    the profiler lengthens steps, and never makes one much shorter."""
    logged = _StepTime(ns=logged_ns, is_logged=True)
    try:
        steps = contexts.of(source).cut.steps
    except StepscopeError:
        return logged
    if (
        steps.step_interval_ns is None
        or not steps.is_step_interval
        or logged_ns <= MAX_SHORTENED * steps.step_interval_ns
    ):
        return logged
    times = (
        f"the log says {logged_ns / 1e6:.4g} ms a step, and the trace's take "
        f"{steps.step_interval_ns / 1e6:.4g}"
    )
    note = (
        f"{times}: they are not of one run, or not of the same steps; the log's step time was not "
        "used"
    )
    return _StepTime(ns=None, notes=(note,))


def _hardware_notes(hardware: Calibrated | None, good: Sequence[Measured]) -> tuple[str, ...]:
    """What the hardware file was used for, and where it could not be."""
    if hardware is None:
        return ()
    facts = [(r.facts, r.slower) for r in good if r.facts is not None]
    others = {
        rank.device_name or "no device that it names"
        for rank, _ in facts
        if not hardware.is_of(rank.device_name)
    }
    notes = [
        f"the hardware file was measured on {hardware.machine.device[:MAX_LETTERS]}, and this run "
        f"is of {other[:MAX_LETTERS]}: it is judged by datasheets"
        for other in sorted(others)[:MAX_NAMED]
    ]
    if len(others) < len({rank.device_name for rank, _ in facts}):
        where = f"{hardware.machine.device[:MAX_LETTERS]} ({hardware.date[:MAX_LETTERS]})"
        notes.append(
            f"products, memory and copies are judged by what was measured on {where}, not by its "
            "datasheet"
        )
    used = [
        (rank.roofline.mfu, slower)
        for rank, slower in facts
        if rank.roofline.mfu is not None and slower is not None
    ]
    if used:
        mfu, slower = sorted(used)[len(used) // 2]
        notes.append(
            f"MFU {mfu:.1%} is of the datasheet's peak; of what this machine keeps up it is "
            f"{mfu * slower:.1%}"
        )
    return tuple(notes)


def _world_size(metas: Sequence[TraceMeta]) -> int | None:
    sizes = {meta.world_size for meta in metas if meta.world_size is not None}
    return sizes.pop() if len(sizes) == 1 else None


def read_nccl_logs(logs: Sequence[Source]) -> NcclLog | None:
    """What NCCL wrote; None without a log, and then its reader is not imported."""
    if not logs:
        return None
    from stepscope.readers.auxiliary import read_report

    log: NcclLog = read_report(NCCL, logs)
    return log


def _none_read(problems: Sequence[str]) -> str:
    more = [f"and {len(problems) - MAX_NAMED} more"] if len(problems) > MAX_NAMED else []
    return "\n  ".join(["no trace could be read:", *problems[:MAX_NAMED], *more])


def _measured(
    sources: Sequence[Source],
    workers: Workers | None,
    step_ns: int | None,
    contexts: RankContexts,
    progress: FilesRead | None,
    read_progress: BytesRead | None,
) -> list[Measured]:
    """What was measured of each source, in their order:
    they finish in any, and what is said of the job does not depend on it."""
    measured: dict[int, Measured] = {}
    results = _measured_here(sources, step_ns, contexts, read_progress)
    if workers is not None:
        results = _measured_by(workers, sources, step_ns, contexts)
    for number, result in results:
        measured[number] = result
        if progress is not None:
            progress(len(measured), len(sources))
    return [measured[number] for number in range(len(sources))]


def _measured_here(
    sources: Sequence[Source],
    step_ns: int | None,
    contexts: RankContexts,
    read_progress: BytesRead | None,
) -> Iterator[tuple[int, Measured]]:
    for number, source in enumerate(sources):
        try:
            yield (
                number,
                measure_context(
                    contexts.of(source, read_progress), step_ns, is_run=source.metadata is not None
                ),
            )
        except StepscopeError as problem:
            yield number, Measured(problem=str(problem))


def _measured_by(
    workers: Workers, sources: Sequence[Source], step_ns: int | None, contexts: RankContexts
) -> Iterator[tuple[int, Measured]]:
    folder = contexts.folder if workers.is_local else None
    measure = partial(
        measure_file,
        step_ns=step_ns,
        use_cache=contexts.use_cache,
        hardware=contexts.hardware,
        folder=folder,
    )
    texts: dict[str, str] = {}
    known: dict[Any, Any] = {}
    unread = [number for number, source in enumerate(sources) if not contexts.has(source)]
    for number, source in enumerate(sources):
        if contexts.has(source):
            # Read before the others, to see whether a log is of the same run.
            yield (
                number,
                measure_context(contexts.of(source), step_ns, is_run=source.metadata is not None),
            )
    for index, result in run_tasks(workers, measure, [sources[number] for number in unread]):
        number = unread[index]
        if isinstance(result, DiedError):
            words = f"the worker that read it died, and again when it was tried anew, {result}"
            yield number, Measured(problem=f"{sources[number].label}: {words}")
        else:
            share_texts(result.facts, texts)
            share_groups(result.collective_records, known)
            yield number, result


def share_texts(value: object, texts: dict[str, str]) -> None:
    """Have facts that came from another process point to the texts that others brought before:
    ranks run the same kernels, and their names are half of what a rank keeps."""
    if isinstance(value, tuple):
        for item in value:
            share_texts(item, texts)
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if isinstance(inner, str):
                structs.force_setattr(value, name, texts.setdefault(inner, inner))
            elif isinstance(inner, dict):
                keyed = {texts.setdefault(key, key): inner[key] for key in inner}
                structs.force_setattr(value, name, keyed)
            else:
                share_texts(inner, texts)


def share_groups(records: CollectiveRecords | None, known: dict[Any, Any]) -> None:
    """The same for groups and the kinds of collectives in them, which say every rank: of each rank
    they would take as much more memory as there are ranks."""
    if records is None:
        return
    for name in ("groups", "kinds"):
        shared = tuple(known.setdefault(each, each) for each in getattr(records, name))
        structs.force_setattr(records, name, shared)
