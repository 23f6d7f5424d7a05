"""One side of a comparison: a diagnosis, and what it does not keep:
the ranks' work by piece, timed steps, settings, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from stepscope.analyses.run.curves import ON_CUDA, peak_memory
from stepscope.analyses.steps.unprofiled import MAX_STEPS
from stepscope.core.facts import RankFacts
from stepscope.core.timings import counted
from stepscope.core.trace import Trace
from stepscope.experiments.compare.knobs import knobs_of_run
from stepscope.experiments.compare.pieces import Pieces, join, pieces_of
from stepscope.experiments.compare.side import CompareSide, side_of
from stepscope.experiments.trials.trial import odd_of, steps_of
from stepscope.pipeline.recording import Recording
from stepscope.protocol.run_folder import ENDED_FILE
from stepscope.readers.format import Source
from stepscope.readers.run_folder.folder import RunRecord

MAX_RANKS = 8
"""Ranks whose work is compared piece by piece."""


def read_side(recording: Recording, label: str) -> CompareSide:
    """The side that a recording is."""
    diagnosis, run = recording.diagnosis, recording.inputs.run
    pieces, peaks = _pieces(recording, diagnosis.facts.ranks)
    steps: tuple[int, ...] = ()
    odd, knobs, failed = 0.0, None, None
    if run is not None:
        peaks = peak_memory(run) or peaks
        knobs = knobs_of_run(run)
        failed = _failure(run)
        if diagnosis.step.source != "given":
            # Those that the diagnosis is of.
            steps, odd = steps_of(run)[-MAX_STEPS:], odd_of(run)
    side = side_of(
        label,
        diagnosis,
        steps=steps,
        irregular_step_ns=odd,
        pieces=pieces,
        knobs=knobs,
        peaks=peaks,
    )
    return side if failed is None else replace(side, notes=(*side.notes, f"{label} {failed}"))


def _failure(run: RunRecord) -> str | None:
    """Words that the job failed; None for one that ended well, or was ended by us after the steps
    that were asked for."""
    code = run.metadata.get("exit_code")
    if (
        not isinstance(code, int)
        or code == 0
        or any((rank.folder / ENDED_FILE).exists() for rank in run.ranks)
    ):
        return None
    return f"ended with exit code {code}: what is compared of it are the steps until then"


def _pieces(
    recording: Recording, ranks: Sequence[RankFacts]
) -> tuple[Pieces | None, Mapping[int, float]]:
    """The mean over the ranks read, and the peaks of memory in their traces."""
    by_path = {rank.path: rank for rank in ranks}
    sources = recording.inputs.sources
    pairs = [(source, by_path[source.label]) for source in sources if source.label in by_path]
    if len(sources) == 1 and len(ranks) == 1:
        pairs = [(sources[0], ranks[0])]
    parts, peaks = [], {}
    compared = _spread(pairs)
    for source, rank in counted("ranks to compare", compared, len(compared)):
        context = recording.context(source)
        part = pieces_of(context, rank)
        if part is not None:
            parts.append(part)
        peak = _peak_bytes(context.trace, rank)
        if peak is not None:
            peaks[rank.rank] = peak
    return join(parts), peaks


def _spread(rows: Sequence[tuple[Source, RankFacts]]) -> Sequence[tuple[Source, RankFacts]]:
    """Rows of at most MAX_RANKS ranks, evenly over all, the first and the last among them."""
    if len(rows) <= MAX_RANKS:
        return rows
    return [rows[round(i * (len(rows) - 1) / (MAX_RANKS - 1))] for i in range(MAX_RANKS)]


def _peak_bytes(trace: Trace, rank: RankFacts) -> float | None:
    """The most that the allocator held on the devices over the measured steps;
    None when it was not recorded."""
    memory, windows = trace.memory, rank.steps.windows
    if memory is None or not windows:
        return None
    inside = (memory.time_ns >= windows[0][0]) & (memory.time_ns < windows[-1][1])
    inside &= (memory.device_type == ON_CUDA) & (memory.allocated_bytes >= 0)
    return float(memory.allocated_bytes[inside].max()) if inside.any() else None
