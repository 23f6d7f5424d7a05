"""RankContext: what the analyses of one rank share, worked out once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepscope.analyses.host.activity import HostActivity, host_activity
from stepscope.analyses.host.source_locations import Stacks, stacks_of
from stepscope.analyses.intervals import Intervals
from stepscope.analyses.kernels.launches import DeviceSets, device_sets
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.analyses.kernels.tables import KernelWork, kernel_work
from stepscope.analyses.links import Links, collective_kernels, link
from stepscope.analyses.steps.clocks import (
    clock_notes,
    device_note,
    end_note,
    lost_work_note,
    number_note,
    unlike_note,
)
from stepscope.analyses.steps.partition import part_intervals
from stepscope.analyses.steps.projection import Charges, charge
from stepscope.analyses.steps.silences import without_stretches
from stepscope.analyses.steps.windows import StepCut, cut_steps
from stepscope.core.calibrated import Calibrated
from stepscope.core.hardware import DeviceSpec, ProbedTimes
from stepscope.core.trace import NONE, Bool, DeviceProperties, Kind, Trace


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """A trace, linked, cut into steps, and its device work charged to whoever launched it."""

    trace: Trace
    links: Links
    cut: StepCut
    host: HostActivity
    collective: Bool
    sets: DeviceSets
    charges: Charges
    """Charges of all device work that belongs to a step."""
    origins: Charges
    """The same, with kernels of CUDA graphs charged to the operators they were captured from:
    for tables. Rules price what a step's own host did, and those ran elsewhere."""
    kernels: KernelWork
    """Kernels of the same work."""
    roofs: DevicePeaks | None
    device: DeviceProperties | None

    @cached_property
    def parts(self) -> Mapping[str, Intervals]:
        """When each part of the steps ran, all exposed communication as transfer."""
        return part_intervals(self.trace, self.links, self.sets, self.host, self.cut.steps)

    @cached_property
    def stacks(self) -> Stacks | None:
        """The Python frames; None where none were recorded."""
        return stacks_of(self.trace, self.links)

    @property
    def window(self) -> tuple[int, int]:
        """Time from the first measured window's start to the last one's end."""
        windows = self.cut.steps.windows
        return (windows[0][0], windows[-1][1]) if windows else (0, 0)


def build_context(
    trace: Trace,
    spec: DeviceSpec | None,
    measured: Calibrated | None = None,
    probed: ProbedTimes | None = None,
) -> RankContext:
    """Link, cut and charge. `measured` is the same device, calibrated; `probed` has operators that
    were timed on it."""
    trace, links, cut = _on_one_clock(trace)
    collective = collective_kernels(trace, links)
    roofs = None if spec is None else DevicePeaks(spec=spec, measured=measured, probed=probed)
    work = np.flatnonzero(trace.device_work)
    charges = charge(trace, links, work)
    has_origins = bool((links.captured != NONE).any())
    return RankContext(
        trace=trace,
        links=links,
        cut=cut,
        host=host_activity(trace, links),
        collective=collective,
        sets=device_sets(trace, collective),
        charges=charges,
        origins=charge(trace, links, work, captured=True) if has_origins else charges,
        kernels=kernel_work(trace, charges, collective, roofs),
        roofs=roofs,
        device=device_of(trace),
    )


def _on_one_clock(trace: Trace) -> tuple[Trace, Links, StepCut]:
    """The trace, linked and cut, without what its clock did to a step alone; and with a note of it,
    and of times that cannot be right."""
    links = link(trace)
    cut = cut_steps(trace, links)
    notes = clock_notes(trace, links)
    if not notes:
        even, notes = without_stretches(trace, links, cut)
        if even is not trace:
            trace, links = even, link(even)
            cut = cut_steps(trace, links)
        notes += device_note(trace, links, cut) or unlike_note(cut)
        notes += end_note(trace, cut) + number_note(trace, cut)
        notes += lost_work_note(trace, links, cut)
    return (replace(trace, notes=(*notes, *trace.notes)) if notes else trace), links, cut


def device_of(trace: Trace) -> DeviceProperties | None:
    """The device this rank's work ran on: the one its kernels name, as the recorder lists it;
    else what all it lists are.

    ROCm counts a host's processors among its devices,
    so that its kernels' numbers are not those of the list.
    """
    devices = trace.meta.devices
    alike = devices[0] if len({(d.name, d.memory_bytes, d.num_sms) for d in devices}) == 1 else None
    kernels = trace.device[trace.is_kind(Kind.KERNEL) & (trace.device >= 0)]
    if len(kernels) == 0:
        return alike
    index = int(np.bincount(kernels).argmax())
    return next((d for d in devices if d.index == index), alike)
