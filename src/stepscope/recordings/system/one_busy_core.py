"""One core is always busy and the device is not: the run waits for the thread that launches.

What it sees: a monitor's samples of the device (nvidia-smi, DCGM, rocm-smi) with idle in them, and
beside them `perf stat` or `perf script` of the process with about one core busy.

Why it costs: kernels are launched by one thread. When that thread is busy all the time and the
device is not, whatever it does besides launching (Python, small operators, checks) is paid by the
device's waiting.

Evidence it needs: both recordings, taken at the same time of the same run. Which of the host's
faults it is, a trace shows.

What to do: record a trace (`stepscope run -- python train.py`): launch-overhead, python-overhead
and looped-optimizer tell apart what the thread does. Larger batches, `torch.compile` and CUDA
graphs give each launch more work.

Example: a small model in eager mode: nvidia-smi shows 35 % utilization, perf stat 1.02 busy cores.
"""

from __future__ import annotations

from msgspec import Struct

from stepscope.api import Abstention, Advice, Auxiliary, Rule
from stepscope.core.recordings.system import DeviceSeries, SystemReport

CODE = "one-busy-core"
BOUND = "host"


class Policy(Struct, frozen=True, kw_only=True):
    most_device_busy: float = 0.7
    """Share of the time that the device may be busy: above it a device waits little, and
    utilization counts any kernel, however small."""
    least_samples: int = 5
    least_cores: float = 0.9
    most_cores: float = 1.5
    """A thread that never rests, with the little that others do; above it several compute, and
    which one matters is not known."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> Advice | Abstention | None:
    """Nothing where one of the two recordings is missing, or a device is busy."""
    if auxiliary.system is None:
        return None
    if not auxiliary.system.devices:
        return _process_alone(auxiliary.system)
    busy = [
        share
        for device in auxiliary.system.devices
        if (share := device.used_share) is not None and _is_enough(device)
    ]
    cores = _cores(auxiliary.system)
    if not busy or cores is None or max(busy) > POLICY.most_device_busy:
        return None
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"The device works {max(busy):.0%} of the time at most while one core of the host "
        "never rests.",
        action="record a trace (stepscope run -- python train.py): it distinguishes Python, "
        "launches and small kernels",
        evidence=(
            f"{len(busy)} device(s), busy {min(busy):.0%} to {max(busy):.0%} of the time",
            f"{cores[0]:.2f} cores busy ({cores[1]}); both must be of the same time of the run",
        ),
        weight=1 - max(busy),
        weight_of="the device's time",
    )


def _process_alone(system: SystemReport) -> Abstention | None:
    """A process that keeps one core busy, where nothing says what the device does meanwhile."""
    processes = [process for host in system.hosts for process in host.processes]
    busy = [each for each in processes if POLICY.least_cores <= (each.cores or 0.0)]
    if len(busy) != 1 or (busy[0].cores or 0.0) > POLICY.most_cores:
        return None
    return Abstention(
        code=CODE,
        reason=f"{busy[0].name} ({busy[0].pid}) keeps one core busy all the time: Python, "
        "launching or the input may hold the device up, and nothing here says whether it waits",
        needs="nvidia-smi dmon of the same time, or stepscope run -- COMMAND",
    )


def _is_enough(device: DeviceSeries) -> bool:
    samples = device.busy_run_share or device.busy_share
    return samples is not None and samples.num >= POLICY.least_samples


def _cores(system: SystemReport) -> tuple[float, str] | None:
    measured = [
        (recording.busy_cores, recording.path)
        for recording in system.counters
        if recording.busy_cores is not None
    ]
    measured += [
        (recording.busy_cores, recording.path)
        for recording in system.stacks
        if recording.busy_cores is not None
    ]
    fitting = [
        (cores, path)
        for cores, path in measured
        if POLICY.least_cores <= cores <= POLICY.most_cores
    ]
    return fitting[0] if fitting and len(fitting) == len(measured) else None


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
