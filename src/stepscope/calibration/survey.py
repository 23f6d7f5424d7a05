"""One machine measured, from its products to its collectives, as one hardware file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from stepscope.calibration.attention import measure_attention
from stepscope.calibration.collectives import measure_collectives
from stepscope.calibration.copies import measure_copies
from stepscope.calibration.device import Device, describe, spec_of
from stepscope.calibration.gemm_fit import fit_gemms
from stepscope.calibration.gemms import measure_gemms, sustain_gemms
from stepscope.calibration.groups import Job
from stepscope.calibration.host import measure_host, measure_launch
from stepscope.calibration.region_fit import fit_collectives
from stepscope.calibration.sweep import Extent
from stepscope.core.calibrated import SCHEMA, Calibrated, Machine, Timing

Told = Callable[[str], None]
UNSTEADY = 1.5
"""Ninetieth over tenth percentile; on a quiet machine it is 1.1."""
UNSTEADY_SHARE = 0.2
HOW = {
    "cuda": "device events around calls queued behind a waiting kernel; random operands, changed from call to call",
    "cpu": "the host's clock around calls; random operands, changed from call to call",
}


def empty(machine: Machine, made_by: str, how: str, now: datetime | None = None) -> Calibrated:
    """A hardware file of today with nothing measured yet."""
    date = (now or datetime.now(timezone.utc)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Calibrated(schema=SCHEMA, made_by=made_by, date=date, how=how, machine=machine)


def measure_device(device: Device, extent: Extent, made_by: str, told: Told) -> Calibrated:
    """Everything that one process can measure. `told` hears what is measured next."""
    notes: list[str] = []
    machine = describe(device)
    found = empty(machine, made_by, HOW[device.kind])
    told("launches and the host")
    device.warm_up()
    launch = measure_launch(device, extent.point_s)
    host = measure_host(device, extent.point_s)
    told("copies")
    copies = measure_copies(device, extent, notes.append)
    told("matrix products")
    gemms = measure_gemms(device, extent, notes.append)
    told("sustained products")
    sustained = sustain_gemms(device, extent, gemms, notes.append)
    told("attention")
    attention = measure_attention(device, extent, notes.append)
    found = replace(
        found,
        launch=launch,
        host=host,
        copies=tuple(copies),
        gemms=tuple(gemms),
        sustained=tuple(sustained),
        attention=tuple(attention),
        notes=tuple(notes),
    )
    times = [*(gemm.time for gemm in gemms), *(call.time for call in attention), *(copy.time for copy in copies)]
    unsteady = unsteady_note(times)
    return replace(found, gemm_fits=fit_gemms(found, spec_of(machine)), notes=(*notes, *unsteady))


def unsteady_note(times: Sequence[Timing]) -> tuple[str, ...]:
    """Said where many points spread widely: something else has run on the machine."""
    wide = sum(time.high_s > UNSTEADY * time.low_s for time in times)
    if not times or wide < UNSTEADY_SHARE * len(times):
        return ()
    return (f"{wide} of {len(times)} points spread by more than {UNSTEADY:g} times: was the machine busy with something else?",)


def measure_job(job: Job, extent: Extent, made_by: str, told: Told) -> Calibrated:
    """The collectives of all ranks; called by each of them."""
    notes: list[str] = []
    machine = replace(
        describe(job.device), num_ranks=job.size, num_nodes=len(job.nodes), ranks_share_a_device=job.ranks_share_a_device
    )
    if job.ranks_share_a_device:
        notes.append(
            "ranks share a device: their collectives run in turns on it, and are slower than between devices of their own"
        )
    if job.backend == "nccl" and "NCCL_HOSTID" in os.environ:
        notes.append("NCCL_HOSTID is set: NCCL takes ranks for separate hosts, and goes over the network between them")
    job.device.warm_up()
    points = tuple(measure_collectives(job, extent, notes.append, told))
    found = empty(machine, made_by, HOW[job.device.kind])
    unsteady = unsteady_note([point.time for point in points])
    return replace(found, collectives=points, collective_fits=fit_collectives(points), notes=(*notes, *unsteady))


def joined(device: Calibrated, links: Calibrated) -> Calibrated:
    """One file of a device's points and of collectives; the collectives' own ranks are the file's."""
    machine = replace(
        device.machine,
        num_ranks=links.machine.num_ranks,
        num_nodes=links.machine.num_nodes,
        ranks_share_a_device=links.machine.ranks_share_a_device,
    )
    notes = (*device.notes, *(note for note in links.notes if note not in device.notes))
    how = device.how if links.how in device.how else f"{device.how}; collectives: {links.how}"
    return replace(
        device, machine=machine, collectives=links.collectives, collective_fits=links.collective_fits, notes=notes, how=how
    )
