"""A trial as its run folder tells it: the steps that count, how the job was set up, what was
applied to it, what it computed."""

from __future__ import annotations

import json
import math
import re
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.analyses.steps import unprofiled
from stepscope.core.experiments.trials import Change, NumericRow, Setup, StepLoss, Trial
from stepscope.process.job import Ended
from stepscope.protocol.options import FIRST_STEPS
from stepscope.protocol.run_folder import (
    APPLIED_FILE,
    ENDED_FILE,
    EQUAL_FILE,
    LOSSES_FILE,
    NUMERICS_FILE,
    STDERR_FILE,
    stock_steps,
)
from stepscope.protocol.untrusted import (
    MAX_JSON_BYTES,
    as_object,
    as_text,
    objects_at,
    read_json_object,
    read_regular,
    read_tail,
    whole,
)
from stepscope.readers.run_folder.folder import RankRecord, RunRecord
from stepscope.readers.run_folder.values import Row, sound_object

TAIL_CHARS = 4_000
MIN_MEASURED = 0.5
"""Share of the steps that the device's clock must have timed before it is believed for all."""
OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|out of memory|DefaultCPUAllocator: can't allocate "
    r"memory|std::bad_alloc|^MemoryError|ENOMEM"
    r"|Cannot allocate memory",
    re.MULTILINE,
)
KILLED = 137
"""128 + SIGKILL: what the kernel does to a process that takes the last of the memory."""


def trial_of(
    run: RunRecord, change: Change, ended: Ended, skipped: int, max_steps: int | None = None
) -> Trial:
    rank, steps, on_device = median_rank(run, skipped)
    is_cut = ended.is_stopped or any((each.folder / ENDED_FILE).exists() for each in run.ranks)
    tail = _tail(run.path / STDERR_FILE)
    is_oom, is_killed = _memory(ended, tail, is_cut=is_cut)
    taken, refusals = _taken(run, change)
    notes = [*run.notes, *refusals, *_stock_notes(run, skipped)]
    notes += _short_notes(run, skipped) if not steps else []
    notes += [
        f"rank {failed.rank}: the capture switched itself off: {failed.problem}"
        for failed in run.ranks
        if failed.problem
    ]
    first = run.ranks[0] if run.ranks else None
    return Trial(
        folder=str(run.path),
        change=change,
        exit_code=ended.exit_code,
        step_ns=steps,
        wall_s=ended.wall_s,
        irregular_step_ns=0.0
        if rank is None
        else irregular_step_ns(rank.rows, skipped, max_steps, steps),
        on_device=on_device,
        is_cut=is_cut,
        is_timed_out=ended.is_timed_out,
        is_out_of_memory=is_oom or is_killed,
        is_killed=is_killed,
        setup=_setup(first, rank),
        taken=taken,
        losses=step_losses(run),
        numerics=() if first is None else _numerics(first.folder / NUMERICS_FILE),
        tail=tail,
        notes=tuple(notes),
    )


def median_rank(run: RunRecord, skipped: int) -> tuple[RankRecord | None, tuple[int, ...], bool]:
    """The rank of the middle pace (the faster one of two), its steps, and whether the device's
    clock timed them."""
    timed = [(rank, *timed_steps(rank.rows, skipped + stock_of(rank))) for rank in run.ranks]
    if not any(steps for _, steps, _ in timed):
        # A short job: better its stock than nothing; the notes say so.
        timed = [(rank, *timed_steps(rank.rows, skipped)) for rank in run.ranks]
    paced = sorted((row for row in timed if row[1]), key=lambda row: statistics.median(row[1]))
    return paced[(len(paced) - 1) // 2] if paced else (None, (), False)


def stock_of(rank: RankRecord) -> int:
    """Steps that the loader's stock of ready batches fed."""
    loader = as_object(rank.metadata.get("loader_iter"))
    return stock_steps(loader.get("num_workers"), loader.get("prefetch_factor"))


def _stock_notes(run: RunRecord, skipped: int) -> list[str]:
    """Where the job was too short to use its loader's stock up."""
    fed = [rank for rank in run.ranks if stock_of(rank) and rank.rows]
    short = [rank for rank in fed if not timed_steps(rank.rows, skipped + stock_of(rank))[0]]
    if not short:
        return []
    what = (
        f"within the {stock_of(short[0])} steps that its loader's stock of ready batches may feed"
    )
    return [f"the job ended {what}: its pace may not be the loader's"]


def _short_notes(run: RunRecord, skipped: int) -> list[str]:
    """Where the job made steps, and none after the warm-up."""
    made = max((row["step"] or 0 for rank in run.ranks for row in rank.rows), default=0)
    if not 0 < made <= skipped:
        return []
    # The first row begins where the first step ended.
    remedy = "give a longer job"
    if skipped > FIRST_STEPS:
        remedy = "give a lower --warm-up, or a job that goes on for longer"
    return [f"{made + 1} steps were seen, and the first {skipped + 1} do not count: {remedy}"]


def timed_steps(rows: Sequence[Row], skipped: int) -> tuple[tuple[int, ...], bool]:
    """The usual timed steps after the warm-up, in order, and whether the device's clock timed
    them."""
    timed = unprofiled.before_recording([row for row in rows if (row["step"] or 0) > skipped])
    usual = unprofiled.usual_rows(timed)
    on_device = [ns for row in usual if (ns := row["device_ns"]) is not None]
    if on_device and len(on_device) >= MIN_MEASURED * len(usual):
        return tuple(on_device), True
    return tuple(ns for row in usual if (ns := row["dur_ns"]) is not None), False


def irregular_step_ns(
    rows: Sequence[Row], skipped: int, max_steps: int | None, usual: Sequence[int]
) -> float:
    """What the timed steps that are not usual add to the mean step: those that save or evaluate,
    over what a usual one takes.

    Counted over the first `max_steps` after the warm-up, whatever stock a loader has: a save at
    step 80 is then in the runs of both sides, or in none.
    """
    timed = [row for row in rows if row["state"] == 0 and (row["step"] or 0) > skipped]
    span = [row for row in timed if max_steps is None or (row["step"] or 0) <= skipped + max_steps]
    kept = {row["step"] for row in unprofiled.usual_rows(timed)}
    odd = [ns for row in span if row["step"] not in kept and (ns := _length(row)) is not None]
    return sum(ns - statistics.fmean(usual) for ns in odd) / len(span) if odd and usual else 0.0


def _length(row: Row) -> int | None:
    return row["dur_ns"] if row["device_ns"] is None else row["device_ns"]


def _setup(first: RankRecord | None, paced: RankRecord | None) -> Setup:
    if first is None:
        return Setup()
    recorded, equal = first.metadata, sound_object(read_json_object(first.folder / EQUAL_FILE))[0]
    loaders = objects_at(recorded, "loaders")
    # A DataLoader that nobody keeps is gone once its iterator is made: that tells the same.
    alone = loaders[0] if len(loaders) == 1 else as_object(recorded.get("loader_iter"))
    loader = next((loader for loader in loaders if loader.get("is_feeding")), alone)
    model = next(iter(objects_at(recorded, "models")), {})
    machine = as_object(recorded.get("machine"))
    devices = objects_at(machine, "devices")
    rows = [] if paced is None else [row for row in paced.rows if row["state"] == 0]
    usual = unprofiled.usual_rows(rows)
    num_batches = statistics.fmean([row["num_batches"] or 0 for row in usual] or [0])
    return Setup(
        world_size=_int(recorded.get("world_size")),
        batch_size=_int(loader.get("batch_size")),
        # Where no loader was seen to give any, batches were not measured: the job feeds itself.
        num_batches=num_batches or None,
        seed=_int(equal.get("seed")),
        data=as_text(equal.get("data")),
        ends_with=_ends_with(usual),
        # Of a model that was walked in part, so many were not counted.
        num_parameters=None if model.get("is_whole") is False else _int(model.get("num_params")),
        model=as_text(model.get("wraps")) or as_text(model.get("class")),
        dataset=as_text(loader.get("dataset")),
        device=as_text(devices[0].get("name")) if devices else as_text(machine.get("cpu_name")),
        versions={
            str(name): str(value)
            for name, value in as_object(recorded.get("versions")).items()
            if value is not None
        },
    )


def _ends_with(rows: Sequence[unprofiled.Row]) -> str | None:
    if not rows:
        return None
    return "an optimizer's step" if any(row["optimizer_ns"] for row in rows) else "a backward pass"


def _taken(run: RunRecord, change: Change) -> tuple[dict[str, int], list[str]]:
    """Number of objects of the first rank that each knob was set on, and why one was not."""
    # By the names of settings stand counts and words here, not the settings' own values.
    applied = read_json_object(run.ranks[0].folder / APPLIED_FILE) if run.ranks else {}
    counts, reasons = as_object(applied.get("counts")), as_object(applied.get("reasons"))
    taken = {name: _int(counts.get(name)) or 0 for name in change.knobs}
    notes = [f"{name}: {as_text(reasons[name]) or ''}" for name in change.knobs if name in reasons]
    return taken, notes


def _numerics(path: Path) -> tuple[NumericRow, ...]:
    rows = []
    try:
        lines = read_regular(path, MAX_JSON_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    for line in lines:
        try:
            # Not parse_json: a loss that is not a number must be seen as one.
            step, loss, grad_norm, parameters, parameter_norm = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            # A line that a killed process left unfinished.
            continue
        if whole(step) is None:
            continue
        rows.append(
            NumericRow(
                step=step,
                loss=_computed(loss),
                grad_norm=_computed(grad_norm),
                parameters=as_text(parameters),
                parameter_norm=_computed(parameter_norm),
            )
        )
    return tuple(rows)


def _computed(value: object) -> float | None:
    """A number that a step computed; one that is not finite is written as text (`nan`, `inf`), for
    JSON has no word for it."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _memory(ended: Ended, tail: str, *, is_cut: bool) -> tuple[bool, bool]:
    """Whether memory ran out; else whether a process was killed from outside, most likely by the
    kernel for want of memory."""
    if ended.exit_code == 0 or is_cut or ended.is_timed_out:
        return False, False
    if OUT_OF_MEMORY.search(tail):
        return True, False
    return False, (
        ended.exit_code == KILLED or "exitcode: -9" in tail or "Signal 9 (SIGKILL)" in tail
    )


def _tail(path: Path) -> str:
    """The last lines, without what would steer a terminal."""
    try:
        # A job may have written more than there is memory for.
        text = read_tail(path, 4 * TAIL_CHARS)[-TAIL_CHARS:]
    except OSError:
        return ""
    return "".join(char for char in text if char == "\n" or char.isprintable()).strip()


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


MAX_BYTES = 64 << 20


def step_losses(run: RunRecord) -> tuple[StepLoss, ...]:
    """The mean of each step over the ranks that have one: with pipelines, the last stage alone
    does."""
    by_step: dict[int, list[float]] = {}
    for rank in run.ranks:
        for step, losses in _of_rank(rank).items():
            by_step.setdefault(step, []).append(_mean(losses))
    return tuple(
        StepLoss(step=step, loss=_mean(losses)) for step, losses in sorted(by_step.items())
    )


def _of_rank(rank: RankRecord) -> dict[int, list[float]]:
    """The losses of each step: a pass belongs to the step that was the next to end after it
    began."""
    times, losses, last = _read(rank.folder / LOSSES_FILE)
    ends = sorted(
        (end, row["step"] or 0) for row in rank.rows if (end := row["end_ns"]) is not None
    )
    by_step: dict[int, list[float]] = {}
    if not ends:
        return by_step
    first = next((row for row in rank.rows if row["end_ns"] == ends[0][0]), rank.rows[0])
    # The step before the first row is the one that made the folder; its end is that row's
    # beginning.
    ends.insert(0, (ends[0][0] - (first["dur_ns"] or 0), ends[0][1] - 1))
    for at_ns, loss in zip(times, losses, strict=False):
        index = bisect_left(ends, (at_ns, -1))
        step = ends[index][1] if index < len(ends) else ends[-1][1] + 1
        by_step.setdefault(step, []).append(loss)
    if last is not None and not by_step:
        # Of a graph that is replayed, the last replay's loss alone is known.
        by_step[ends[-1][1]] = [last]
    return by_step


def _read(path: Path) -> tuple[list[int], list[float], float | None]:
    """What the file says; nothing where it is not there, or not ours."""
    try:
        with path.open("rb") as file:
            stored = json.loads(file.read(MAX_BYTES))
        times = [int(value) for value in stored["ns"]]
        losses = [float(value) for value in stored["loss"]]
        last = None if stored["last"] is None else float(stored["last"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return [], [], None
    return times, losses, last


def _mean(values: list[float]) -> float:
    """Not finite where one of them is not."""
    mean = sum(values) / len(values)
    return (
        mean if math.isfinite(mean) or not all(map(math.isfinite, values)) else max(values, key=abs)
    )
