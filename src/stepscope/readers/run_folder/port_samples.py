"""Samples of ports' counters, one after the other, made into a PortSeries for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepscope.core.recordings.system import CounterGrowth, PortSeries

MAX_PORTS = 1024
MAX_SAMPLES = 200_000
"""Samples of all ports together, at most."""


@dataclass(slots=True)
class _Counter:
    first: int
    last: int
    first_s: float | None
    last_s: float | None
    is_reset: bool = False
    num: int = 1
    num_grew: int = 0
    most_per_s: float | None = None
    most_at_s: float | None = None

    def add(self, value: int, time_s: float | None) -> None:
        grown = value - self.last
        self.is_reset |= grown < 0
        self.num_grew += grown > 0
        self.num += 1
        if time_s is not None and self.last_s is not None and time_s > self.last_s and grown >= 0:
            per_s = grown / (time_s - self.last_s)
            if self.most_per_s is None or per_s > self.most_per_s:
                self.most_per_s, self.most_at_s = per_s, time_s
        self.last, self.last_s = value, time_s if time_s is not None else self.last_s

    def growth(self, began_s: float | None) -> CounterGrowth:
        is_known = self.num > 1 and not self.is_reset
        grown = self.last - self.first if is_known else None
        per_s = None
        if grown is not None and self.first_s is not None and self.last_s is not None:
            per_s = grown / (self.last_s - self.first_s) if self.last_s > self.first_s else None
        at_s = None
        if self.most_at_s is not None and began_s is not None:
            at_s = self.most_at_s - began_s
        return CounterGrowth(
            last=self.last,
            growth=grown,
            per_s=per_s,
            most_per_s=self.most_per_s,
            most_at_s=at_s,
            num_grew=self.num_grew,
        )


@dataclass(slots=True)
class _Port:
    counters: dict[str, _Counter] = field(default_factory=dict)
    num_samples: int = 0
    first_s: float | None = None
    last_s: float | None = None
    layer: str | None = None
    state: str | None = None
    rate_bytes_per_s: float | None = None


class PortSamples:
    def __init__(self) -> None:
        self.ports: dict[str, _Port] = {}
        self.num = self.num_left_out = 0

    def port(self, name: str) -> _Port | None:
        if name not in self.ports and len(self.ports) >= MAX_PORTS:
            self.num_left_out += 1
            return None
        return self.ports.setdefault(name, _Port())

    def add(self, name: str, counts: Mapping[str, int], time_s: float | None) -> None:
        """One sample of one port, by our names for its counters."""
        port = self.port(name) if counts else None
        if port is None:
            return
        if self.num >= MAX_SAMPLES:
            self.num_left_out += 1
            return
        self.num += 1
        port.num_samples += 1
        if time_s is not None:
            port.first_s = time_s if port.first_s is None else port.first_s
            port.last_s = time_s
        for counter, value in counts.items():
            if counter in port.counters:
                port.counters[counter].add(value, time_s)
            else:
                port.counters[counter] = _Counter(value, value, time_s, time_s)

    def series(self) -> tuple[PortSeries, ...]:
        return tuple(_series(name, port) for name, port in sorted(self.ports.items()))


def _series(name: str, port: _Port) -> PortSeries:
    span = None
    if port.first_s is not None and port.last_s is not None and port.last_s > port.first_s:
        span = port.last_s - port.first_s
    return PortSeries(
        name=name,
        layer=port.layer,
        state=port.state,
        rate_bytes_per_s=port.rate_bytes_per_s,
        num_samples=port.num_samples,
        span_s=span,
        counters={
            counter: values.growth(port.first_s) for counter, values in port.counters.items()
        },
    )
