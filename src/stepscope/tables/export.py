"""A run as a file for another tool: a timeline for Perfetto.

RUN is what `stepscope diagnose` takes: traces, a folder of them, a tar, or the folder of a recorded
run. All ranks stand on one clock. Beside the recorded events there are the steps, what the device
spends them on, the critical path, the findings, and counters. Open the file at
https://ui.perfetto.dev, which keeps it on your machine.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from stepscope.cli import options as declare
from stepscope.cli.printing import put
from stepscope.errors import InputError, StepscopeError, UsageError

if TYPE_CHECKING:
    from stepscope.analyses.rank_context import RankContext
    from stepscope.core.diagnosis import Diagnosis
    from stepscope.core.facts import RankFacts
    from stepscope.pipeline.recording import Recording
    from stepscope.readers.format import Source
    from stepscope.tables.perfetto.shapes import Writer
    from stepscope.tables.perfetto.timeline import RankTracks
    from stepscope.tables.timeline.job_clock import Aligned, RankClock
    from stepscope.tables.timeline.tracks import Series, Spans

PROTO = (".pftrace", ".perfetto-trace", ".pftrace.gz")
JSON = (".json", ".json.gz")
ROOM_NS = 60_000_000_000
"""Room before the first event, where a run's counters may begin before its recording does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    form: str = declare.option(
        "perfetto", "what to write: perfetto, a timeline", choices=("perfetto",)
    )
    paths: list[str] = declare.paths(
        "RUN", "trace, folder of rank traces, tar, or the folder of a run"
    )
    output: Path = declare.option(
        "-o/--output FILE", ".pftrace or .json; .gz after it compresses", Path, required=True
    )
    step_ms: float | None = declare.step_ms()
    all: bool = declare.all_findings()
    no_cache: bool = declare.no_cache()
    jobs: int | None = declare.jobs()


def run(options: Options) -> int:
    from stepscope.pipeline.recording import Recording

    target = options.output
    _refuse_target(target)
    with Recording(options.paths, declare.reading_of(options, options.step_ms)) as recording:
        recording.refuse_untraced("A timeline is made of traces")
        for source in recording.inputs.sources:
            if isinstance(source.stem, Path) and target.exists() and target.samefile(source.stem):
                raise UsageError(f"{target} is the trace that is read: name another file with -o")
        diagnosis = recording.diagnosis
        job = _read(recording, diagnosis)
        with _open(target, job.aligned.origin_wall_ns) as writer:
            words = _draw(job, diagnosis, writer)
    put(f"{target}: {words[0]}, {target.stat().st_size / 1e6:.1f} MB\n")
    for note in words[1:]:
        put(f"note: {note}\n")
    put("open it at https://ui.perfetto.dev (it stays on your machine)\n")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The ranks that could be read, and where they stand."""

    sources: tuple[Source, ...]
    heads: tuple[RankClock, ...]
    facts: tuple[RankFacts | None, ...]
    aligned: Aligned
    recording: Recording

    def over(self) -> dict[int, tuple[int, int]]:
        """Time of each rank from its first step to its last, or all that was recorded, in the
        file's time."""
        spans = {}
        for head, facts, shift in zip(self.heads, self.facts, self.aligned.shift_ns, strict=True):
            windows = facts.steps.windows if facts is not None else ()
            low, high = head.first_ns, head.last_ns
            if windows:
                low, high = windows[0][0], windows[-1][1]
            spans[head.rank] = low + shift, high + shift
        return spans


def _read(recording: Recording, diagnosis: Diagnosis) -> _Job:
    """What places each rank."""
    from msgspec import structs

    from stepscope.analyses.collectives.records import collective_records_of
    from stepscope.readers.inputs import assign_ranks
    from stepscope.tables.timeline.job_clock import RankClock, align

    read = []
    for source in recording.inputs.sources:
        try:
            context = recording.context(source)
        except StepscopeError:
            # The diagnosis has a note on it.
            continue
        trace = context.trace
        if len(trace):
            span = int(trace.start_ns[0]), int(trace.end_ns.max())
            read.append(
                (source, trace.meta, span, collective_records_of(context, trace.meta.rank or 0))
            )
    if not read:
        raise InputError(
            "the trace holds no events: there is no timeline to write. Profile a few steps, and "
            "name that trace"
        )
    ranks, _ = assign_ranks([meta for _, meta, _, _ in read])
    heads = tuple(
        RankClock(
            rank=rank,
            base_ns=meta.base_ns,
            first_ns=span[0],
            last_ns=span[1],
            collective_records=structs.replace(collective_records, rank=rank)
            if len(collective_records)
            else None,
        )
        for rank, (_, meta, span, collective_records) in zip(ranks, read, strict=True)
    )
    facts = {rank.path: rank for rank in diagnosis.facts.ranks}
    return _Job(
        sources=tuple(source for source, _, _, _ in read),
        heads=heads,
        facts=tuple(facts.get(meta.path) for _, meta, _, _ in read),
        aligned=align(heads, ROOM_NS if recording.inputs.run is not None else 0),
        recording=recording,
    )


def _draw(job: _Job, diagnosis: Diagnosis, writer: Writer) -> list[str]:
    """Writes all of it; what was written, in words, and notes."""
    from stepscope.core.timings import counted
    from stepscope.tables.perfetto.timeline import Timeline

    timeline = Timeline(writer)
    timeline.add_job(diagnosis, job.over(), (*job.aligned.notes, *diagnosis.notes))
    without_path = []
    order = sorted(range(len(job.heads)), key=lambda index: job.heads[index].rank)
    for index in counted("drawing", order, len(order)):
        context = job.recording.context(job.sources[index])
        tracks = _tracks(job, index, context)
        if not any(name == PATH for name, _ in tracks.spans):
            without_path.append(tracks.rank)
        timeline.add_rank(tracks)
    writer.finish()
    notes = list(job.aligned.notes)
    if without_path:
        notes.append(
            f"{len(without_path)} rank(s) have no critical path: it takes two steps in a row, "
            "with their launches"
        )
    if timeline.num_left_out:
        notes.append(
            f"{timeline.num_left_out:,} events overlap too deep on their thread to be drawn"
        )
    return [f"{timeline.num_events:,} events of {len(job.heads)} rank(s)", *notes]


PATH = "critical path"


def _tracks(job: _Job, index: int, context: RankContext) -> RankTracks:
    from stepscope.tables.perfetto.timeline import RankTracks
    from stepscope.tables.timeline import tracks

    head, aligned = job.heads[index], job.aligned
    matched = aligned.matched if head.collective_records is not None else None
    path = _critical_path(context, job.facts[index])
    spans = [
        ("steps", tracks.step_spans(context)),
        ("partition", tracks.partition_spans(context, head.collective_records, matched)),
    ]
    counted = [
        tracks.queue_depth(context),
        tracks.collective_bandwidth(head.collective_records),
        tracks.copy_bandwidth(context),
    ]
    return RankTracks(
        rank=head.rank,
        trace=context.trace,
        links=context.links,
        step_of=context.cut.step_of,
        shift_ns=aligned.shift_ns[index],
        spans=(*spans, *(() if path is None else ((PATH, path),))),
        series=(
            *(series for series in counted if series is not None),
            *tracks.allocator_memory(context),
            *_sampled(job, head),
        ),
    )


def _critical_path(context: RankContext, facts: RankFacts | None) -> Spans | None:
    """None where the steps cannot be replayed."""
    from stepscope.replay.graph import build
    from stepscope.replay.host_graph import build_on_host
    from stepscope.rules.partition_verdict import is_blind
    from stepscope.tables.timeline.critical_path import critical_path, recorded_spans

    graph = build(context.trace, context.links, context.cut, context.host, context.collective)
    if graph is None and context.device is None:
        graph = build_on_host(context.trace, context.cut, context.host)
    if graph is None or (facts is not None and is_blind(facts)):
        return None
    return recorded_spans(graph, critical_path(graph, backlog_ns=graph.backlog_ns), context.trace)


def _sampled(job: _Job, head: RankClock) -> list[Series]:
    """The run folder's counters, on the rank's own clock."""
    from msgspec import structs

    from stepscope.tables.timeline.samples import sampled_series

    run = job.recording.inputs.run
    ranks = () if run is None else run.ranks
    record = next((rank for rank in ranks if rank.rank == head.rank), None)
    if record is None:
        return []
    series = sampled_series(record, head.base_ns + head.first_ns, head.base_ns + head.last_ns)
    return [structs.replace(each, time_ns=each.time_ns - head.base_ns) for each in series]


def _refuse_target(target: Path) -> None:
    if not target.name.lower().endswith(PROTO + JSON):
        wanted = (
            "name it .pftrace (Perfetto's own form) or .json (Chrome's); .gz after either "
            "compresses it"
        )
        raise UsageError(
            f"{target}: the name's ending says what to write, and this one is not known: {wanted}"
        )
    if target.is_dir():
        raise UsageError(
            f"{target} is a folder: name the file to write, such as {target / 'trace.pftrace'}"
        )
    if not target.parent.is_dir():
        raise UsageError(
            f"cannot write {target}: the folder {target.parent} does not exist. Make it, or name "
            "another with -o"
        )
    if not os.access(target.parent, os.W_OK):
        raise UsageError(
            f"cannot write {target}: you may not write to {target.parent}. Name another folder "
            "with -o"
        )


@contextmanager
def _open(target: Path, origin_wall_ns: int) -> Iterator[Writer]:
    """A writer of the form that the name asks for. The file is there when all of it is written, or
    not at all."""
    from stepscope.tables.perfetto.json import JsonWriter
    from stepscope.tables.perfetto.proto import ProtoWriter

    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    form = JsonWriter if target.name.lower().endswith(JSON) else ProtoWriter
    try:
        with ExitStack() as held:
            file: BinaryIO = held.enter_context(part.open("wb"))
            held.callback(part.unlink, missing_ok=True)
            if target.name.lower().endswith(".gz"):
                file = cast(
                    "BinaryIO",
                    held.enter_context(
                        gzip.GzipFile("", "wb", compresslevel=4, fileobj=file, mtime=0)
                    ),
                )
            yield form(file, origin_wall_ns)
            file.close()
            part.replace(target)
    except OSError as problem:
        why = problem.strerror or problem
        raise UsageError(
            f"cannot write {target}: {why}. Name a folder with -o where there is room and you may "
            "write"
        ) from None
