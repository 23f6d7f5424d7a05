"""One rank: Trace in, RankFacts out."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.calls import copy_rows, host_facts
from stepscope.analyses.collectives import collective_kernels, library_collectives
from stepscope.analyses.device import DeviceSets, device_sets, device_totals
from stepscope.analyses.host_activity import host_activity
from stepscope.analyses.intervals import intersect, lengths_in
from stepscope.analyses.kernels import category_rows, kernel_rows, kernel_work
from stepscope.analyses.launches import launch_facts
from stepscope.analyses.links import Links, link
from stepscope.analyses.partition import partition
from stepscope.analyses.projection import (
    Charges,
    charge,
    host_op_rows,
    inclusive_rows,
    mark_ranges,
    module_ranges,
    op_rows,
    phases,
)
from stepscope.analyses.roofline import roofline
from stepscope.analyses.roofs import Roofs
from stepscope.analyses.steps import cut_steps
from stepscope.core.facts import RangeRow, RankFacts, Steps
from stepscope.core.hardware import DeviceSpec
from stepscope.core.trace import NONE, DeviceProperties, Int64, Kind, Trace

MAX_ROWS = 200
"""Rows kept of each table: facts travel between processes, and nobody reads further."""

RECORD_MORE = "record two steps or more: torch.profiler.schedule(wait=1, warmup=1, active=3)"


def measure_rank(trace: Trace, rank: int, spec: DeviceSpec | None, step_ns: int | None = None) -> RankFacts:
    """Everything the analyses can tell about one rank. `step_ns` is the unprofiled step time, when known."""
    links = link(trace)
    collective = collective_kernels(trace, links)
    sets = device_sets(trace, collective)
    cut = cut_steps(trace, links)
    steps = cut.steps
    host = host_activity(trace, links)
    low, high = (steps.windows[0][0], steps.windows[-1][1]) if steps.windows else (0, 0)
    work = np.flatnonzero(trace.device_work & (trace.start_ns >= low) & (trace.start_ns < high))
    charges = charge(trace, links, work)
    roofs = None if spec is None else Roofs(spec=spec)
    kernel = kernel_work(trace, charges, collective, roofs)
    step = step_ns or (steps.pitch_ns if steps.is_pitch else None)
    device = device_of(trace)
    return RankFacts(
        rank=rank,
        path=trace.meta.path,
        device_name=None if device is None else device.name,
        num_events=trace.num_raw_events,
        device=device_totals(device_sets(trace, library_collectives(trace))),
        steps=steps,
        partition=partition(trace, links, sets, host, steps),
        launches=launch_facts(trace, links, sets.busy, work),
        categories=category_rows(trace, kernel),
        kernels=kernel_rows(trace, charges, kernel)[:MAX_ROWS],
        ops=_op_rows(trace, links, charges, steps, *cut.host_window),
        modules=inclusive_rows(trace, links, charges, module_ranges(trace))[:MAX_ROWS] if trace.meta.has_stacks else None,
        marks=inclusive_rows(trace, links, charges, mark_ranges(trace))[:MAX_ROWS],
        phases=phases(trace, charges),
        copies=copy_rows(trace, links, host, work),
        host=host_facts(trace, links, host, *cut.host_window),
        roofline=roofline(trace, charges, kernel, roofs, len(steps.windows), step),
        busy_ns=_in_windows(steps, sets, "busy"),
        comms_hidden_ns=_in_windows(steps, sets, "hidden"),
        unknown=trace.unknown,
        notes=trace.notes + _notes(trace, links, steps, work, spec, device),
    )


def device_of(trace: Trace) -> DeviceProperties | None:
    """The device this rank's work ran on: the one its kernels name, as the recorder lists it."""
    kernels = trace.device[trace.is_kind(Kind.KERNEL) & (trace.device != NONE)]
    if len(kernels) == 0:
        return trace.meta.devices[0] if len(trace.meta.devices) == 1 else None
    index = int(np.bincount(kernels).argmax())
    return next((d for d in trace.meta.devices if d.index == index), None)


def _op_rows(trace: Trace, links: Links, charges: Charges, steps: Steps, low: int, high: int) -> tuple[RangeRow, ...]:
    rows = op_rows(trace, charges) if steps.where == "device" else host_op_rows(trace, links, low, high)
    return rows[:MAX_ROWS]


def _in_windows(steps: Steps, sets: DeviceSets, what: str) -> tuple[int, ...]:
    start: Int64 = np.array([window[0] for window in steps.windows], np.int64)
    end: Int64 = np.array([window[1] for window in steps.windows], np.int64)
    chosen = sets.busy if what == "busy" else intersect(sets.comms, sets.compute)
    return tuple(lengths_in(start, end, chosen).tolist())


def _notes(
    trace: Trace, links: Links, steps: Steps, work: Int64, spec: DeviceSpec | None, device: DeviceProperties | None
) -> tuple[str, ...]:
    unlinked = int((links.launch[work] == NONE).sum())
    graphs = int(links.shared[work].sum())
    devices = len(np.unique(trace.device[work]))
    name = "the device" if device is None else repr(device.name)
    told = [
        (len(trace) == 0, "the trace holds no events: nothing could be measured"),
        (len(trace) and steps.where == "host", "no device work was recorded: operators on the host are taken for the work"),
        (
            steps.windows and not steps.is_pitch,
            f"the trace shows {steps.num_seen} step(s) by {steps.source}: its length stands in for the step time ({RECORD_MORE})",
        ),
        (
            0 < steps.num_seen < steps.num_marked,
            f"{steps.num_marked - steps.num_seen} of {steps.num_marked} steps launched no device work; the others were measured",
        ),
        (devices > 1, f"work of {devices} devices in one trace: busy means that any of them was"),
        (unlinked, f"{unlinked} of {len(work)} device events have no recorded launch (launched before the recording began)"),
        (graphs, f"{graphs} device events ran inside CUDA graphs: charged to the graph's launch, not to operators"),
        (spec is None and steps.where == "device", f"{name} is not in our tables: no roofs, no MFU"),
        (
            steps.where == "device" and not trace.meta.has_shapes,
            "no input shapes: no FLOPs, no MFU (profile with record_shapes=True)",
        ),
    ]
    return tuple(text for condition, text in told if condition)
