"""Flight-recorder dumps in words: what they hold, and each rank's last collective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stepscope.api import Table, table
from stepscope.core.numbers import number_ranges
from stepscope.core.recordings.nccl import COMPLETED, FlightDump
from stepscope.core.recordings.training_log import TrainingRecording

MAX_ROWS = 64


def lines(recording: TrainingRecording) -> Iterator[tuple[str, str]]:
    dumps = recording.dumps
    backends = Counter(dump.backend for dump in dumps if dump.backend)
    kinds = ", ".join(backends) or "no collective recorded"
    yield "dumps", f"of rank {number_ranges(dump.rank for dump in dumps)}; {kinds}"
    num = sum(dump.num_entries for dump in dumps)
    whole = "from the first one on" if all(dump.is_from_start for dump in dumps) else "the last"
    yield "collectives", f"{num:,}, {whole}"
    groups = {(group.label, group.ranks): None for dump in dumps for group in dump.groups}
    for label, ranks in list(groups)[:MAX_ROWS]:
        who = "ranks not recorded" if ranks is None else f"rank {number_ranges(ranks)}"
        yield "group", f"{label}: {who}"


def tables(recording: TrainingRecording) -> Iterator[Table]:
    """The last collective of each rank; ranks alike in one row."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for dump in recording.dumps:
        alike.setdefault(_row(dump), []).append(dump.rank)
    rows = tuple((number_ranges(ranks), *row) for row, ranks in list(alike.items())[:MAX_ROWS])
    yield table(
        "The last collective that each rank issued",
        "rank|collective|>number|group|state|>shape|at",
        rows,
    )


def _row(dump: FlightDump) -> tuple[str, ...]:
    if not dump.calls:
        return ("none recorded", "", "", "", "", "")
    last = dump.calls[-1]
    state = last.state
    if state != COMPLETED and last.is_retired:
        state = "over or failed"
    shapes = " ".join("x".join(map(str, size)) or "1" for size in last.input_sizes)
    return (
        last.op,
        str(last.sequence),
        dump.groups[last.group].label,
        state,
        shapes,
        last.where_words or "",
    )
