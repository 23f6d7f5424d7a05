"""Any running job, recorded or not: what limits it, in 30 seconds.

TARGET is a training process or its launcher, the number of a Slurm job, the folder of a run that
goes on, or files that other tools wrote (nvidia-smi, dmon, rocm-smi, top -b, perf, NCCL's log).
Without one, the job of this machine is looked for. Nothing is restarted and nothing is stopped:
/proc and the driver's counters are read, and py-spy, where it is there, samples without pausing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.options import real
from stepscope.cli.printing import print_answer
from stepscope.errors import InputError, StepscopeError
from stepscope.live.cli.attach import find_ranks, ranks_among

if TYPE_CHECKING:
    from stepscope.core.recordings.nccl import NcclLog
    from stepscope.core.recordings.system import SystemRecording, SystemReport
    from stepscope.live.shapes.triage import Triage
    from stepscope.process.table import Process

MAX_SAMPLED = 4
"""Ranks that py-spy looks into: each takes some of a core."""
MAX_WORKERS = 2
"""The loader's workers, likewise: they do the same."""
JOB_NUMBERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_seconds = real(
    "a number of seconds; give one from 0.5 to 3600", lambda value: 0.5 <= value <= 3600
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    targets: list[str] = declare.option(
        "TARGET",
        "a process, a job's number, a run's folder, or files (default: this machine's job)",
        nargs="*",
    )
    seconds: float = declare.option("--seconds S", "how long to look (default: 30)", _seconds, 30.0)
    flame: Path | None = declare.option(
        "--flame FILE",
        "write py-spy's samples of ranks and workers there, as a flame graph (SVG)",
        Path,
    )
    format: str = declare.style()


def run(options: Options) -> int:
    from stepscope.core.codec import encode
    from stepscope.live.report.triage import triage_document

    triage = answer(options.targets, options.seconds, options.flame)
    print_answer(triage, options.format, encode, triage_document)
    return 0


def answer(targets: Sequence[str], seconds: float, flame: Path | None = None) -> Triage:
    """Files are read, processes are looked at, and both are judged together."""
    from stepscope.core.recordings.system import SystemReport
    from stepscope.live.judge.judge import judge

    paths, ranks = _told_apart(targets)
    system, nccl, missing = SystemReport(), None, list[str]()
    if paths:
        system, nccl, missing = read_files(paths)
    if ranks or not targets:
        live, notes = measure(ranks or find_job(), seconds, flame)
        system, missing = system.joined(live), [*missing, *notes]
    return judge(system, nccl, missing)


def measure(
    ranks: Sequence[Process], seconds: float, flame: Path | None = None
) -> tuple[SystemReport, list[str]]:
    """Processes, devices and stacks at once, for so long; and what could not be measured."""
    from stepscope.core.recordings.system import RANK, SystemRecording, SystemReport
    from stepscope.core.timings import followed
    from stepscope.live.processes import Watch
    from stepscope.recordings.system.live_devices import LiveDevices

    devices, began_s = LiveDevices(), time.monotonic()
    with (
        sampled(ranks, seconds, flame) as spied,
        followed("watching", round(seconds), is_long=True) as advance,
    ):
        watch = Watch(ranks)

        def sample() -> None:
            devices.sample()
            advance(int(time.monotonic() - began_s))

        host = watch.for_seconds(seconds, sample)
    stacks, refused = spied
    uses = [rank.uses_device for rank in host.of_role(RANK)]
    uses_none = bool(uses) and all(use is False for use in uses)
    series = () if uses_none else devices.of_job(watch.pids)
    recording = SystemRecording(format="live", paths=(), devices=series, hosts=(host,))
    system = SystemReport(recordings=(recording,)).joined(SystemReport(recordings=tuple(stacks)))
    return system, [*devices.notes, *refused]


@contextmanager
def sampled(
    ranks: Sequence[Process], seconds: float, flame: Path | None
) -> Iterator[tuple[list[SystemRecording], list[str]]]:
    """py-spy beside what is done meanwhile; afterwards the two lists have what it saw, and why it
    saw no more."""
    from msgspec.structs import replace

    from stepscope.core.recordings.system import SystemRecording
    from stepscope.live.cli.py_spy import Sampling, find_spy
    from stepscope.readers.format import Source
    from stepscope.readers.formats import BY_NAME

    read_file = BY_NAME["host-profile"].reader().read_file
    assert read_file is not None
    recordings: list[SystemRecording] = []
    refused: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="stepscope-triage-")))
        spies = []
        try:
            spy = find_spy()
            for pid in (*(rank.pid for rank in ranks[:MAX_SAMPLED]), *_workers_of(ranks)):
                spies.append(Sampling(spy, pid, seconds, folder))
                stack.callback(spies[-1].end)
        except (StepscopeError, OSError) as problem:
            refused.append(f"functions: {problem}")
        yield recordings, refused
        lines: list[str] = []
        for sampling in spies:
            try:
                path = sampling.result()
                recording = read_file(Source(path=path, label=path.name))
                assert isinstance(recording, SystemRecording)
                stacks = tuple(replace(one, pid=sampling.pid) for one in recording.stacks)
                recordings.append(replace(recording, stacks=stacks))
                lines += path.read_text(encoding="utf-8").splitlines()
            except StepscopeError as problem:
                refused.append(f"functions: {problem}")
        if flame is not None and lines:
            from stepscope.report.flame import flame_svg

            flame.write_text(flame_svg(lines), encoding="utf-8")
        elif flame is not None:
            refused.append(f"{flame}: there are no samples to draw")
        if len(ranks) > MAX_SAMPLED:
            refused.append(f"functions of ranks beyond the first {MAX_SAMPLED}")


def _workers_of(ranks: Sequence[Process]) -> list[int]:
    """The first few of the loader's workers."""
    from stepscope.core.recordings.system import WORKER
    from stepscope.live.processes import role_of
    from stepscope.process.table import descendants, processes

    running, taken = processes(), {rank.pid for rank in ranks}
    workers = [
        child.pid
        for rank in ranks
        for child in descendants([rank.pid], running)
        if child.pid not in taken and role_of(child, rank) == WORKER
    ]
    return workers[:MAX_WORKERS]


def read_files(paths: Sequence[str]) -> tuple[SystemReport, NcclLog | None, list[str]]:
    """What other tools wrote of the machine, and NCCL's logs among it."""
    from stepscope.core.recordings.system import SystemReport
    from stepscope.pipeline.measure import read_nccl_logs
    from stepscope.pipeline.recording import Recording

    with ExitStack() as stack:
        recording = stack.enter_context(Recording(paths))
        auxiliary, logs = recording.auxiliary, recording.inputs.logs
        nccl = read_nccl_logs(logs)
        system = None if auxiliary is None else auxiliary.system
    if system is None and nccl is None:
        raise InputError(
            f"{', '.join(paths)}: nothing that triage judges. It takes nvidia-smi, dmon, rocm-smi, "
            "top -b, perf, py-spy and logs of NCCL; for traces: stepscope diagnose"
        )
    notes = () if auxiliary is None else auxiliary.notes
    return system or SystemReport(), nccl, [*recording.inputs.notes, *notes]


def _told_apart(targets: Sequence[str]) -> tuple[list[str], list[Process]]:
    """Paths of files, and the ranks of what runs."""
    paths: list[str] = []
    ranks: dict[int, Process] = {}
    for target in targets:
        if target.isdecimal() and not os.path.exists(target):
            found = find_ranks(_pids_of_number(int(target)))
        elif (pids := _pids_of_run(Path(target))) is not None:
            if not pids:
                raise InputError(
                    f"{target}: none of this run's ranks runs on this machine. stepscope diagnose "
                    f"{target} judges what it recorded"
                )
            found = find_ranks(pids)
        else:
            paths.append(target)
            continue
        ranks |= {process.pid: process for process in found}
    return paths, list(ranks.values())


def _pids_of_number(number: int) -> list[int]:
    """The process of this number; else those that the scheduler started for a job of it."""
    from stepscope.process.table import processes

    everyone = processes()
    if number in everyone:
        return [number]
    members = {
        pid
        for pid, process in everyone.items()
        if any(process.environment.get(name) == str(number) for name in JOB_NUMBERS)
    }
    tops = [pid for pid in members if everyone[pid].parent not in members and pid != os.getpid()]
    return sorted(tops) or [number]


def _pids_of_run(path: Path) -> list[int] | None:
    """Process ids of the ranks of a run that goes on; None where it is no folder of a run."""
    from stepscope.process.table import processes
    from stepscope.protocol.run_folder import is_run
    from stepscope.readers.run_folder.folder import read_run

    if not path.is_dir() or not is_run(path):
        return None
    running = processes()
    pids = [rank.metadata.get("pid") for rank in read_run(path).ranks]
    return [pid for pid in pids if isinstance(pid, int) and pid in running]


def find_job(running: dict[int, Process] | None = None) -> list[Process]:
    """The ranks of this machine's job. InputError where there is none, or more than one."""
    from stepscope.process.table import processes

    everyone = processes() if running is None else running
    ranks = ranks_among(everyone.values(), everyone)
    jobs = {process.parent for process in ranks}
    if not ranks:
        raise InputError(
            "no training job was found on this machine: no process has a RANK. Name one: "
            "stepscope triage PID"
        )
    if len(jobs) > 1:
        named = ", ".join(
            f"{pid} ({everyone[pid].name})" for pid in sorted(jobs) if pid in everyone
        )
        raise InputError(
            f"several jobs run here, started by {named}. Name one: stepscope triage PID"
        )
    return ranks
