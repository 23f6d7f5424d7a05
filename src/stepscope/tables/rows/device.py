"""The tables of one rank's device work: kernels, and copies and sets."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from stepscope.analyses.collectives.step_parts import PHASES, step_parts
from stepscope.analyses.host.activity import copy_bytes
from stepscope.analyses.host.source_locations import line_of, origins
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.projection import MODULE_FRAME
from stepscope.core.trace import NONE, Int64, Kind, Launch, Trace
from stepscope.tables.rows.columns import (
    Rows,
    Values,
    coded,
    known_floats,
    named,
    plain,
    recorded_ints,
)
from stepscope.tables.rows.events import KINDS

DIRECTION = re.compile(r"^Memcpy (\w+)", re.IGNORECASE)
MEMORY = re.compile(r"\(([^()]{1,80} -> [^()]{1,80})\)")


def kernel_rows(context: RankContext) -> Rows:
    """Every kernel, with who launched it and what it must do."""
    trace, work = context.trace, context.kernels
    kernels = work.kernels
    return {
        "event": plain(kernels),
        "name": named(kernels, trace.name, trace.names),
        "category": coded(work.category, work.categories),
        "op": _op(context, kernels),
        **_origin(context, kernels),
        "phase": coded(step_parts(context, kernels), PHASES),
        **_timing(context, kernels),
        **_geometry(trace, kernels),
        "precision": coded(work.precision, work.precisions),
        "tensor_core": Values(data=work.tensor_core == 1, missing=work.tensor_core == NONE),
        "flops": known_floats(work.flops),
        "traffic_bytes": known_floats(work.bytes),
        "floor_ns": Values(
            data=np.rint(np.nan_to_num(work.floor_ns)).astype(np.int64),
            missing=np.isnan(work.floor_ns),
        ),
    }


def copy_rows(context: RankContext) -> Rows:
    """Every copy and set. A size that only the launching call has counts too."""
    trace, links = context.trace, context.links
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY, Kind.MEMSET))
    size, dur = copy_bytes(trace, links, copies), trace.dur_ns[copies]
    measured = (size != NONE) & (dur > 0)
    return {
        "event": plain(copies),
        "kind": coded(trace.kind[copies], KINDS),
        "name": named(copies, trace.name, trace.names),
        "direction": _from_name(trace, copies, DIRECTION),
        "memory": _from_name(trace, copies, MEMORY),
        "size_bytes": recorded_ints(size),
        "bytes_per_s": known_floats(np.where(measured, size / (np.maximum(dur, 1) * 1e-9), np.nan)),
        "blocking": plain(context.host.blocking_copy[copies]),
        "op": _op(context, copies),
        **_origin(context, copies),
        **_timing(context, copies),
    }


def _from_name(trace: Trace, events: Int64, pattern: re.Pattern[str]) -> Values:
    matches = [pattern.search(name) for name in trace.names]
    words = tuple(dict.fromkeys(match[1] for match in matches if match))
    code = np.array(
        [NONE if match is None else words.index(match[1]) for match in matches], np.int64
    )
    return coded(code[trace.name[events]] if len(code) else events, words)


def _op(context: RankContext, work: Int64) -> Values:
    """The innermost operator of each piece of device work."""
    op = np.full(len(context.trace), NONE, np.int64)
    op[context.origins.work] = context.origins.op
    return named(op[work], context.trace.name, context.trace.names)


def _origin(context: RankContext, work: Int64) -> dict[str, Values]:
    trace, stacks = context.trace, context.stacks
    nowhere = np.full(len(work), NONE, np.int64)
    origin = None if stacks is None else origins(stacks, work)
    return {
        "module": named(
            nowhere if origin is None else origin.module,
            trace.name,
            trace.names,
            lambda name: MODULE_FRAME.sub("", name),
        ),
        "line": named(
            nowhere if origin is None else origin.frame, trace.name, trace.names, line_of
        ),
    }


def _timing(context: RankContext, work: Int64) -> dict[str, Values]:
    trace, launch = context.trace, context.links.launch[work]
    # A call may begin at any number, NONE's too: the link says what is missing.
    return {
        "step": recorded_ints(np.maximum(context.cut.step_of[work], NONE)),
        "start_ns": plain(trace.start_ns[work]),
        "dur_ns": plain(trace.dur_ns[work]),
        "launch_ns": Values(
            data=np.where(launch == NONE, 0, trace.start_ns[np.maximum(launch, 0)]),
            missing=launch == NONE,
        ),
        "device": recorded_ints(trace.device[work]),
        "stream": recorded_ints(trace.stream[work]),
        "correlation": recorded_ints(trace.correlation[work]),
    }


def _geometry(trace: Trace, kernels: Int64) -> dict[str, Values]:
    """The launch's shape; each distinct one is taken apart once."""
    details, inverse = np.unique(trace.detail[kernels], return_inverse=True)
    shapes = [trace.details[i] if i != NONE else None for i in details.tolist()]
    launches = [shape if isinstance(shape, Launch) else None for shape in shapes]

    def column(values: Sequence[float | int | None], kind: type[np.generic]) -> Values:
        rows = np.array([0 if value is None else value for value in values], kind)
        missing = np.array([value is None for value in values], np.bool_)
        return Values(data=rows[inverse.reshape(-1)], missing=missing[inverse.reshape(-1)])

    def part(sizes: tuple[int, ...] | None, axis: int) -> int | None:
        return sizes[axis] if sizes is not None and len(sizes) > axis else None

    columns = {
        f"{name}_{letter}": column(
            [None if launch is None else part(getattr(launch, name), axis) for launch in launches],
            np.int64,
        )
        for name in ("grid", "block")
        for axis, letter in enumerate("xyz")
    }
    return columns | {
        "registers": column(
            [None if launch is None else launch.registers for launch in launches], np.int64
        ),
        "shared_bytes": column(
            [None if launch is None else launch.shared_bytes for launch in launches], np.int64
        ),
        "occupancy_pct": column(
            [None if launch is None else launch.occupancy_pct for launch in launches], np.float64
        ),
    }
