"""One machine measured, from its products to its collectives, as one hardware file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from msgspec.structs import replace

from stepscope.calibrate.collectives import measure_collectives
from stepscope.calibrate.device import Device, describe, first_line, host_free_bytes, spec_of
from stepscope.calibrate.gemm_fit import fit_gemms
from stepscope.calibrate.gemms import (
    CLASSES,
    DIRECTIONS,
    PRECISIONS,
    measure_attention,
    measure_gemms,
    sustain_gemms,
)
from stepscope.calibrate.groups import World
from stepscope.calibrate.region_fit import fit_collectives
from stepscope.calibrate.sweep import Sweep
from stepscope.calibrate.timer import HostTimer, timing
from stepscope.core.calibrated import (
    COPIES,
    SCHEMA,
    Calibrated,
    CopyPoint,
    HostSpeed,
    Launch,
    Machine,
    Timing,
)
from stepscope.core.timings import counted, followed_together

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


def empty(machine: Machine, made_by: str, how: str) -> Calibrated:
    """A hardware file of today with nothing measured yet."""
    date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
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
    with followed_together("measuring", num_points(device.kind, sweep)):
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


def num_points(kind: str, sweep: Sweep) -> int:
    """How many points one process measures, a sustained one counted as many as it takes the time
    of."""
    copies = sum(len(_sizes(sweep, copy)) for copy in COPIES)
    products = len(sweep.gemms) + CLASSES * sweep.sustained_points
    return copies + len(PRECISIONS[kind]) * products + len(DIRECTIONS) * len(sweep.attention)


def _sizes(sweep: Sweep, copy: str) -> tuple[int, ...]:
    return sweep.copies if copy == "device" else sweep.host_copies


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


def measure_copies(device: Device, sweep: Sweep, note: Callable[[str], None]) -> list[CopyPoint]:
    """Measure copies by size: within the device's memory, and between device and host from pinned
    and from pageable memory."""
    points: list[CopyPoint] = []
    for kind in COPIES:
        sizes = _sizes(sweep, kind)
        for size in counted(f"{kind} copies", sizes, len(sizes)):
            room = device.free_bytes()
            if kind != "device":
                room = min(room, host_free_bytes())
            if 3 * size > room:
                note(f"{kind} copies of {size} bytes left out: not enough free memory")
                break
            try:
                time = device.timer.time(_copy(device, kind, size), sweep.point_s)
            except RuntimeError as problem:
                note(f"{kind} copies of {size} bytes: not possible here ({first_line(problem)})")
                break
            points.append(CopyPoint(kind=kind, size_bytes=size, time=time))
    return points


def _copy(device: Device, kind: str, size: int) -> Callable[[], object]:
    torch = device.torch

    def buffer(torch_device: str, pinned: bool = False) -> object:
        # Filled, because memory that was never written may not be there yet.
        return torch.zeros(size, dtype=torch.uint8, device=torch_device, pin_memory=pinned)

    if kind == "device":
        source, target = buffer(device.torch_device), buffer(device.torch_device)
        return lambda: target.copy_(source)  # type: ignore[attr-defined]
    pinned = kind.endswith("pinned")
    near, far = buffer(device.torch_device), buffer("cpu", pinned)
    source, target = (far, near) if kind.startswith("to_device") else (near, far)
    return lambda: target.copy_(source, non_blocking=pinned)  # type: ignore[attr-defined]


NUM_LAUNCHES = 500
"""Launches under the thousand or so that a GPU queues: past that the host waits for the device."""
NUM_ROUNDS = 20_000
REPEATS = 9


def measure_launch(device: Device, point_s: float) -> Launch:
    torch = device.torch
    value = torch.zeros(1, device=device.torch_device)

    def call() -> object:
        return value.add_(1)

    for _ in range(10):
        call()
    samples = []
    for _ in range(REPEATS):
        if device.kind == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(NUM_LAUNCHES):
            call()
        samples.append(max((time.perf_counter() - start) / NUM_LAUNCHES, 1e-9))
    floor = device.timer.time(call, point_s) if device.kind == "cuda" else None
    return Launch(host=timing(samples), device=floor)


def measure_host(device: Device, point_s: float) -> HostSpeed:
    timer = HostTimer()
    few = device.torch.ones(8)
    return HostSpeed(
        python_ops_per_s=NUM_ROUNDS / timer.time(plain_python, point_s).seconds,
        torch_ops_per_s=1 / timer.time(lambda: few + few, point_s).seconds,
    )


def plain_python() -> int:
    """A fixed piece of work.

    Arithmetic, a dict and a call in each round, as loops around a model have them.
    """
    values: dict[int, int] = {}
    total = 0
    for number in range(NUM_ROUNDS):
        values[number & 63] = total
        total = (total + len(values) * number) & 0xFFFF
    return total
