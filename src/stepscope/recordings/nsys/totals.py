"""Totals of kernels and of the host's calls, as `nsys stats` and rocprof's tables have them: no
order, no step, and yet enough for the plainest faults."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.kernels import KernelTotal

CALL = re.compile(r"^(?:cuda|cu|hip)[A-Z]")
"""A call of the CUDA runtime, its driver or HIP."""


def kernel_totals(auxiliary: Auxiliary) -> Sequence[KernelTotal]:
    report = auxiliary.kernels
    return () if report is None else [row for each in report.recordings for row in each.totals]


def call_totals(auxiliary: Auxiliary) -> Sequence[KernelTotal]:
    """Calls that the host made to the device's runtime."""
    report = auxiliary.kernels
    others = () if report is None else [one for each in report.recordings for one in each.others]
    return [row for other in others if not other.unit for row in other.rows if CALL.match(row.name)]


def has_only_operators(auxiliary: Auxiliary) -> bool:
    """Whether totals were given, and none of them is a device's."""
    report = auxiliary.kernels
    recordings = () if report is None else report.recordings
    return any(each.others for each in recordings) and not any(
        each.totals or each.kernels for each in recordings
    )


def calls_named(rows: Sequence[KernelTotal], pattern: re.Pattern[str]) -> tuple[int, float]:
    """How many calls of these names there were, and their time together."""
    found = [row for row in rows if pattern.search(row.name)]
    return sum(row.count for row in found), sum(row.total_ns for row in found)
