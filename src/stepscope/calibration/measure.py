"""One machine measured, from its products to its collectives, as one hardware file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from msgspec.structs import replace

from stepscope.calibration.attention import measure_attention
from stepscope.calibration.collectives import measure_collectives
from stepscope.calibration.copies import measure_copies
from stepscope.calibration.device import Device, describe, spec_of
from stepscope.calibration.gemm_fit import fit_gemms
from stepscope.calibration.gemms import measure_gemms, sustain_gemms
from stepscope.calibration.groups import World
from stepscope.calibration.host import measure_host, measure_launch
from stepscope.calibration.region_fit import fit_collectives
from stepscope.calibration.sweep import Sweep
from stepscope.core.calibrated import SCHEMA, Calibrated, Machine, Timing

Report = Callable[[str], None]
"""Called with what is measured next."""
UNSTEADY = 1.5
"""Ninetieth over tenth percentile; on a quiet machine it is 1.1."""
UNSTEADY_SHARE = 0.2
HOW = {
    "cuda": (
        "device events around calls queued behind a waiting kernel; random operands, changed from "
        "call to call"
    ),
    "cpu": "the host's clock around calls; random operands, changed from call to call",
}


def empty(
    machine: Machine, made_by: str, how: str, measured_at: datetime | None = None
) -> Calibrated:
    """A hardware file of today with nothing measured yet."""
    date = (measured_at or datetime.now(timezone.utc)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Calibrated(schema=SCHEMA, made_by=made_by, date=date, how=how, machine=machine)


def measure_device(device: Device, sweep: Sweep, made_by: str, report: Report) -> Calibrated:
    """Everything that one process can measure."""
    notes: list[str] = []
    machine = describe(device)
    calibration = empty(machine, made_by, HOW[device.kind])
    report("launches and the host")
    device.warm_up()
    launch = measure_launch(device, sweep.point_s)
    host = measure_host(device, sweep.point_s)
    report("copies")
    copies = measure_copies(device, sweep, notes.append)
    report("matrix products")
    gemms = measure_gemms(device, sweep, notes.append)
    report("sustained products")
    sustained = sustain_gemms(device, sweep, gemms, notes.append)
    report("attention")
    attention = measure_attention(device, sweep, notes.append)
    calibration = replace(
        calibration,
        launch=launch,
        host=host,
        copies=tuple(copies),
        gemms=tuple(gemms),
        sustained=tuple(sustained),
        attention=tuple(attention),
        notes=tuple(notes),
    )
    times = [
        *(gemm.time for gemm in gemms),
        *(call.time for call in attention),
        *(copy.time for copy in copies),
    ]
    unsteady = unsteady_note(times)
    return replace(
        calibration, gemm_fits=fit_gemms(calibration, spec_of(machine)), notes=(*notes, *unsteady)
    )


def unsteady_note(times: Sequence[Timing]) -> tuple[str, ...]:
    """Said where many points spread widely: something else has run on the machine."""
    wide = sum(time.high_s > UNSTEADY * time.low_s for time in times)
    if not times or wide < UNSTEADY_SHARE * len(times):
        return ()
    return (
        (
            f"{wide} of {len(times)} points spread by more than {UNSTEADY:g} times: was the "
            "machine busy with something else?"
        ),
    )


def measure_links(world: World, sweep: Sweep, made_by: str, report: Report) -> Calibrated:
    """The collectives of all ranks; called by each of them."""
    notes: list[str] = []
    machine = replace(
        describe(world.device),
        num_ranks=world.size,
        num_nodes=len(world.nodes),
        ranks_share_a_device=world.ranks_share_a_device,
    )
    if world.ranks_share_a_device:
        notes.append(
            "ranks share a device: their collectives run in turns on it, and are slower than "
            "between devices of their own"
        )
    if world.backend == "nccl" and "NCCL_HOSTID" in os.environ:
        notes.append(
            "NCCL_HOSTID is set: NCCL takes ranks for separate hosts, and goes over the network "
            "between them"
        )
    world.device.warm_up()
    points = tuple(measure_collectives(world, sweep, notes.append, report))
    calibration = empty(machine, made_by, HOW[world.device.kind])
    unsteady = unsteady_note([point.time for point in points])
    return replace(
        calibration,
        collectives=points,
        collective_fits=fit_collectives(points),
        notes=(*notes, *unsteady),
    )


def joined(device: Calibrated, links: Calibrated) -> Calibrated:
    """One file of a device's points and of collectives.

    The collectives' own ranks are the file's.
    """
    machine = replace(
        device.machine,
        num_ranks=links.machine.num_ranks,
        num_nodes=links.machine.num_nodes,
        ranks_share_a_device=links.machine.ranks_share_a_device,
    )
    notes = (*device.notes, *(note for note in links.notes if note not in device.notes))
    how = device.how if links.how in device.how else f"{device.how}; collectives: {links.how}"
    return replace(
        device,
        machine=machine,
        collectives=links.collectives,
        collective_fits=links.collective_fits,
        notes=notes,
        how=how,
    )
