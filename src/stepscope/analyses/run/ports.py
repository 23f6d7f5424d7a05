"""Network ports over a run, from what its ranks sampled of /sys/class/infiniband."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.core.recordings.system import PortSeries
from stepscope.protocol.port_counters import counter_of
from stepscope.protocol.untrusted import finite, whole
from stepscope.readers.network.port_samples import PortSamples
from stepscope.readers.run_folder.folder import RunRecord

MAX_NAME = 80


def run_ports(run: RunRecord) -> tuple[PortSeries, ...]:
    """Each port of each machine; one rank of a machine samples them."""
    samples = PortSamples()
    hosts = {str(rank.metadata.get("host")) for rank in run.ranks}
    for rank in run.ranks:
        host = f"{str(rank.metadata.get('host'))[:MAX_NAME]} " if len(hosts) > 1 else ""
        for sample in rank.samples:
            ports = sample.get("ib_ports")
            at_ns = finite(sample.get("at_ns"))
            if not isinstance(ports, dict):
                continue
            for name, counts in ports.items():
                if isinstance(name, str) and isinstance(counts, dict):
                    time_s = None if at_ns is None else at_ns / 1e9
                    samples.add(f"{host}{name[:MAX_NAME]}", _known(counts), time_s)
    return samples.series()


def _known(counts: Mapping[str, Any]) -> dict[str, int]:
    """By our names."""
    known: dict[str, int] = {}
    for word, value in counts.items():
        counter, number = counter_of(word), whole(value, 0)
        if counter is not None and number is not None:
            name, scale = counter
            known[name] = max(known.get(name, 0), number * scale)
    return known
