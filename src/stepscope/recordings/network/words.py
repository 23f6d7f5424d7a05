"""Network ports in words: what each counted, and when most."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.api import SystemRecording, Table, table
from stepscope.core.recordings.system import CounterGrowth, PortSeries
from stepscope.protocol.port_counters import RX, TX

MAX_ROWS = 256


def lines(recording: SystemRecording) -> Iterator[tuple[str, str]]:
    ports = recording.ports
    spans = [port.span_s for port in ports if port.span_s is not None]
    over = f" in {max(spans):,.0f} s" if spans else ""
    num = max((port.num_samples for port in ports), default=0)
    yield "ports", f"{len(ports):,}, {num:,} samples of each at most{over}"
    for port in ports[:MAX_ROWS]:
        words = [
            word
            for word in (port.layer, port.state, _rate(port), _traffic(port))
            if word is not None
        ]
        if words:
            yield port.name, ", ".join(words)


def tables(recording: SystemRecording) -> Iterator[Table]:
    rows = [
        (port.name, name, *_cells(counter))
        for port in recording.ports
        for name, counter in port.counters.items()
        if name not in (RX, TX) and (counter.growth or (counter.growth is None and counter.last))
    ]
    if not rows:
        return
    yield table(
        "Counters that are not zero: their growth, and when it was fastest",
        "port|counter|>since it began|>grew by|>a second|>most a second",
        rows[:MAX_ROWS],
    )


def _cells(counter: CounterGrowth) -> tuple[str, ...]:
    most = "-"
    if counter.most_per_s is not None:
        at = "" if counter.most_at_s is None else f" at {counter.most_at_s:,.0f} s"
        most = f"{counter.most_per_s:,.4g}{at}"
    return (
        f"{counter.last:,}",
        "-" if counter.growth is None else f"{counter.growth:,}",
        "-" if counter.per_s is None else f"{counter.per_s:,.4g}",
        most,
    )


def _rate(port: PortSeries) -> str | None:
    return None if port.rate_bytes_per_s is None else f"{port.rate_bytes_per_s * 8e-9:.0f} Gb/s"


def _traffic(port: PortSeries) -> str | None:
    received, sent = port.per_s(RX), port.per_s(TX)
    if received is None or sent is None:
        return None
    return f"{received / 1e9:.3g} GB/s in, {sent / 1e9:.3g} GB/s out"
