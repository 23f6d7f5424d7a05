"""What `ncu` prints when no CSV is asked for: the details page, as a person reads it.

void elementwise_kernel<128>(int) (131072, 1, 1)x(128, 1, 1), Context 1, Stream 7, CC 8.0
  Section: GPU Speed Of Light Throughput
  Metric Name             Metric Unit Metric Value
  DRAM Throughput                   %        88.11
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from stepscope.api import KernelMetrics
from stepscope.core.recordings.kernels import Dim
from stepscope.recordings.ncu.metrics import kernel_of
from stepscope.recordings.ncu.units import number_of, scale_of

DIM = r"\((\d{1,10}), (\d{1,10}), (\d{1,10})\)"
LAUNCH = re.compile(
    rf"\s{{1,8}}(\S.{{0,4000}}?)(?: {DIM}x{DIM})?,(?: [\w: -]{{1,40}},)? "
    r"Context \d{1,9}, Stream \d{1,9}\b.*"
)
METRIC = re.compile(
    r"\s{2,16}([A-Z#][\w()/# -]{1,80}?)\s{2,}(?:(\S{1,30})\s{1,40})?([\d.,]{1,30})\s*"
)
SIGN = re.compile(rb"^\s{2,8}Metric Name\s{2,}Metric Unit\s{1,8}Metric Value\s*$", re.MULTILINE)
MAX_METRICS = 512


class PrintedDetails:
    """The launches of the lines so far."""

    def __init__(self, metric_of_label: Callable[[str, str], str | None]) -> None:
        self._metric_of_label = metric_of_label
        self._launches: list[tuple[str, Dim | None, Dim | None, dict[str, float]]] = []

    def take(self, line: str, most: int) -> None:
        match = LAUNCH.fullmatch(line)
        if match is not None:
            numbers = [None if part is None else int(part) for part in match.groups()[1:]]
            if len(self._launches) < most:
                self._launches.append((match[1], _dim(numbers[:3]), _dim(numbers[3:]), {}))
            return
        match = METRIC.fullmatch(line) if self._launches else None
        if match is None:
            return
        unit = match[2] or ""
        metric, value = self._metric_of_label(match[1], unit), number_of(match[3])
        values = self._launches[-1][3]
        if metric is not None and value is not None and len(values) < MAX_METRICS:
            values.setdefault(metric, value * scale_of(unit))

    def kernels(self) -> Iterator[KernelMetrics]:
        for name, grid, block, values in self._launches:
            if values:
                yield kernel_of(name, values, grid=grid, block=block)


def _dim(numbers: list[int | None]) -> Dim | None:
    x, y, z = numbers
    return None if x is None or y is None or z is None else (x, y, z)
