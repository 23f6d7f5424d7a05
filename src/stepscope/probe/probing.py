"""What a recording's findings would have timed, timed, and the recording judged by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.hardware import ProbeCase, ProbedTimes
from stepscope.errors import InputError
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import Recording
from stepscope.probe.process import Probed, time_cases
from stepscope.probe.store import keep


class Judged(Struct, frozen=True, kw_only=True):
    """A recording as it is judged, and what its findings would have timed."""

    diagnosis: Diagnosis
    device: str
    cases: tuple[ProbeCase, ...]
    asked: tuple[ProbeCase, ...]
    """Cases asked for, those that were timed before, too; the most weighty first."""

    @property
    def num_known(self) -> int:
        return len(self.asked) - len(self.cases)


def judge(paths: Sequence[str | Path], options: Options) -> Judged:
    """InputError where no recorded operator is of a device."""
    with Recording(paths, options) as recording:
        recording.refuse_untraced("Only a trace says which operators ran")
        diagnosis = recording.diagnosis
        devices = recording.probed.by_name
    if not devices:
        raise InputError("the recording is of no GPU: nothing of it can be timed on one")
    device, cases, asked = asked_of(devices)
    return Judged(diagnosis=diagnosis, device=device, cases=cases, asked=asked)


def asked_of(
    devices: Mapping[str, ProbedTimes],
) -> tuple[str, tuple[ProbeCase, ...], tuple[ProbeCase, ...]]:
    """The device that most was asked of, what was not timed yet, and all; the most weighty
    first."""
    name, times = max(devices.items(), key=lambda item: sum(item[1].asked.values()))
    asked = sorted(times.asked, key=lambda case: -times.asked[case])
    return name, tuple(case for case in asked if case not in times.times), tuple(asked)


def probe(judged: Judged, python: str, budget_s: float) -> Probed:
    """Times what is open, and keeps it."""
    probed = time_cases(python, judged.device, judged.cases, budget_s)
    keep(probed)
    return probed
