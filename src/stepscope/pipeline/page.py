"""Page: what the HTML report shows of a recording beyond its diagnosis:
a timeline, curves, the machine's measured rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from stepscope.analyses.collectives.matching import match
from stepscope.analyses.collectives.records import collective_records_of
from stepscope.analyses.collectives.waits import waiting
from stepscope.analyses.host.host_flame import Stack, host_flame
from stepscope.analyses.intervals import Intervals
from stepscope.analyses.profiler_views import profiler_views
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.run.curves import Curve, memory_curve, peak_memory, run_curves
from stepscope.analyses.timeline.step import Shared, draw
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import RankFacts
from stepscope.core.hardware import DeviceRates
from stepscope.core.timeline import Timeline
from stepscope.core.views import ProfilerViews
from stepscope.pipeline.recording import Recording, hardware_file
from stepscope.readers.format import Source
from stepscope.readers.hardware_file import read_hardware
from stepscope.readers.inputs import assign_ranks

MAX_RANKS_MATCHED = 8
"""Ranks that are matched to draw when one of them waited for the others."""
MORE_SLICES = 4_000
"""Slices of each timeline beside the first, so that the page stays small."""
MAX_OTHER_RANKS = 3


class Page(Struct, frozen=True, kw_only=True):
    """A diagnosis with what is drawn besides it."""

    diagnosis: Diagnosis
    timeline: Timeline | None = None
    """Timeline of the median rank."""
    more_timelines: tuple[Timeline, ...] = ()
    """Other steps of that rank, then other ranks: the late, the slowest, the fastest."""
    host_flame: tuple[Stack, ...] = ()
    """Host stacks of the median rank, where stacks were recorded."""
    curves: Mapping[str, Curve] = field(default_factory=dict)
    peak_memory_bytes: Mapping[int, float] = field(default_factory=dict)
    """Peak memory by rank."""
    views: ProfilerViews | None = None
    """Views of the median rank."""
    roofs: DeviceRates | None = None
    """The machine's, where they were measured."""


def page_of_recording(recording: Recording, roofs: DeviceRates | None = None) -> Page:
    """The page of what was recorded; `roofs` replace those that are found."""
    diagnosis = recording.diagnosis
    run = recording.inputs.run
    curves = {} if run is None else run_curves(run)
    peaks = {} if run is None else peak_memory(run)
    timeline: Timeline | None = None
    views: ProfilerViews | None = None
    others: tuple[Timeline, ...] = ()
    flame: tuple[Stack, ...] = ()
    facts = diagnosis.facts.median_rank if diagnosis.facts.ranks else None
    source = None if facts is None else _source_of(facts, recording.inputs.sources)
    if facts is not None and source is not None:
        context = recording.context(source)
        trace, views = context.trace, profiler_views(context)
        is_split = facts.partition is not None and facts.partition.waits_split
        if facts.steps.windows:
            shared = Shared(context, facts, _waits(recording, facts) if is_split else None)
            timeline = draw(shared)
            others = tuple(_more_timelines(recording, shared))
        flame = _host_flame(context, facts)
        memory = memory_curve(trace, facts)
        if memory is not None:
            curves = {"step-memory": memory} | curves
    return Page(
        diagnosis=diagnosis,
        timeline=timeline,
        more_timelines=others,
        host_flame=flame,
        curves=curves,
        peak_memory_bytes=peaks,
        views=views,
        roofs=roofs or _named_roofs(diagnosis) or _calibrated_roofs(recording, diagnosis),
    )


def _more_timelines(recording: Recording, shared: Shared) -> Iterator[Timeline]:
    """The longest and the shortest step of the median rank, and other ranks' median steps."""
    facts = shared.facts
    intervals = facts.steps.step_intervals
    order = sorted(range(len(facts.steps.windows)), key=lambda at: -intervals[at])
    ends = dict.fromkeys((*order[:1], *order[-1:]))
    for step in [at for at in ends if at != facts.steps.median_windows[0]]:
        yield draw(shared, step=step, most=MORE_SLICES)
    diagnosis, sources = recording.diagnosis, recording.inputs.sources
    if len(sources) > MAX_RANKS_MATCHED:
        return
    late = [rank for rank, _ in diagnosis.holding_up]
    timed = [rank for rank in diagnosis.facts.ranks if rank.steps.step_interval_ns]
    by_step = sorted(timed, key=lambda rank: -(rank.steps.step_interval_ns or 0))
    wanted = [*(rank for rank in timed if rank.rank in late), *by_step[:1], *by_step[-1:], *timed]
    chosen = {rank.rank: rank for rank in wanted if rank.rank != facts.rank}
    for rank in list(chosen.values())[:MAX_OTHER_RANKS]:
        source = _source_of(rank, sources)
        if source is not None:
            yield draw(Shared(recording.context(source), rank, None), most=MORE_SLICES)


def _host_flame(context: RankContext, facts: RankFacts) -> tuple[Stack, ...]:
    windows = facts.steps.windows
    if not windows:
        return ()
    whole = (windows[0][0], windows[-1][1])
    return host_flame(context.trace, whole)


def _source_of(facts: RankFacts, sources: Sequence[Source]) -> Source | None:
    mine = [source for source in sources if source.label == facts.path]
    if mine:
        return mine[0]
    return sources[0] if len(sources) == 1 else None


def _waits(recording: Recording, facts: RankFacts) -> Intervals | None:
    """When the rank waited for others;
    None in a job whose ranks are too many to be read once more."""
    sources = recording.inputs.sources
    if len(sources) > MAX_RANKS_MATCHED:
        return None
    contexts = [recording.context(source) for source in sources]
    ranks, _ = assign_ranks([context.trace.meta for context in contexts])
    every = [
        collective_records_of(context, rank) for context, rank in zip(contexts, ranks, strict=True)
    ]
    rank_records = [records for records in every if len(records)]
    mine = next((records for records in rank_records if records.rank == facts.rank), None)
    return None if mine is None else waiting(mine, match(rank_records))


def _named_roofs(diagnosis: Diagnosis) -> DeviceRates | None:
    """Rates of a file of measured rates among what was named, where it is of the run's device."""
    auxiliary, ranks = diagnosis.facts.auxiliary, diagnosis.facts.ranks
    if auxiliary is None or auxiliary.system is None or not ranks:
        return None
    device = (diagnosis.facts.median_rank.device_name or "").strip().casefold()
    for rate in auxiliary.system.rates:
        if device and rate.roofs.device.strip().casefold() == device:
            return rate.roofs
    return None


def _calibrated_roofs(recording: Recording, diagnosis: Diagnosis) -> DeviceRates | None:
    """The hardware file's roofs,
    where there is one and it was measured on the device of the run."""
    path = hardware_file(recording.options.hardware)
    if path is None or not diagnosis.facts.ranks:
        return None
    hardware = read_hardware(path)
    if not hardware.is_of(diagnosis.facts.median_rank.device_name):
        return None
    return hardware.roofs(f"measured, {path.name}")
