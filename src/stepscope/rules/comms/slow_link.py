"""Bytes cross between ranks far more slowly than the links a training machine has.

What it sees: the bus bandwidth of large collectives, timed from the moment the last rank has arrived, against what collectives
reached on this machine where it was calibrated (`stepscope calibrate` under torchrun, `--hardware FILE`), else against the
slowest link such machines are built with; with an NCCL log, the transport that was chosen.

Why it costs: NCCL falls back to TCP sockets, or to one slow card, without an error: a wrong interface, InfiniBand disabled, peer
access off. Every byte then takes ten to a hundred times as long.

Evidence it needs: traces of two ranks at least; collectives of a megabyte and more with their sizes (c10d records them by
itself). `NCCL_DEBUG=INFO` logs given beside the traces name the transport, `nvidia-smi topo -m` the links there are; a log given
alone says what NCCL fell back to.

What to do: read NCCL's log for NET/Socket where NET/IB or P2P should stand; set NCCL_SOCKET_IFNAME to the fast interface,
NCCL_IB_HCA to the right cards; remove NCCL_P2P_DISABLE and NCCL_IB_DISABLE; check the topology with `nvidia-smi topo -m`.

Example: ranks that took each other for different hosts talked over the loopback socket: 1.8 GB/s.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.analyses.collectives.link_fit import bus_factor
from stepscope.core.beside import Advice, Beside
from stepscope.core.nccl import NcclLog
from stepscope.core.nccl_notes import slow_links
from stepscope.core.system_report import Topology
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.rules.job_case import JobCase, JobProposal, with_moving_ns

CODE = "slow-link"
BOUND = "comms"
COLLECTIVE = re.compile(r"[nr]ccl(?:Dev)?Kernel", re.IGNORECASE)
THROUGH_HOST = ("PHB", "NODE", "SYS", "SOC")
"""Links of nvidia-smi topo -m that pass the host's bridges, or the link between its sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    least_bytes: int = 1_000_000
    """Smaller messages tell of latency, not of the link."""
    expected_bytes_per_s: float = 12.5e9
    """One 100 Gb/s port, or PCIe 3.0 x16 in practice: the slowest link that training machines of the last years have."""
    slow: float = 0.4
    """Of that, below which a link is slow."""
    least_share: float = 0.05
    """Of the step in collectives, from which it matters which way their bytes go."""


POLICY = Policy()


def propose_job(job: JobCase) -> JobProposal | None:
    """Large messages at the expected rate. One rank alone cannot tell a slow link from a late peer."""
    if len(job.cases) < 2:
        return None
    rates, masks = [], []
    for place in range(len(job.cases)):
        found, mask = _rates(job, place)
        rates.append(found)
        masks.append(mask)
    every = np.concatenate(rates) if rates else np.empty(0)
    if len(every) == 0:
        return None
    rate = float(np.median(every))
    expected, words = _expected(job)
    if rate > POLICY.slow * expected:
        return None
    factor = rate / expected
    named = (
        ()
        if job.nccl is None
        else tuple(f"NCCL's log names {kind}: {count} connections" for kind, count in job.nccl.transports.items())
    )
    return JobProposal(
        code=CODE,
        bound=BOUND,
        summary=f"Large collectives move {rate / 1e9:.2f} GB/s; {words}.",
        action="NCCL_DEBUG=INFO shows the transport: where it says NET/Socket set NCCL_SOCKET_IFNAME or NCCL_IB_HCA to the fast"
        " cards, remove NCCL_IB_DISABLE and NCCL_P2P_DISABLE",
        evidence=(f"{len(every)} collectives of 1 MB and more, bus bandwidth {rate / 1e9:.2f} GB/s in the middle", *named),
        ranks=job.ranks,
        change=lambda job_graph: with_moving_ns(job_graph, masks, lambda ns: ns * factor),
        cautious=lambda job_graph: with_moving_ns(job_graph, masks, lambda ns: ns * min(1.0, 2 * factor)),
    )


def _expected(job: JobCase) -> tuple[float, str]:
    """Bytes a second over the bus, and where they are from."""
    roofs = job.cases[0].context.roofs
    reached = None if roofs is None or roofs.measured is None else roofs.measured.bus_bytes_per_s(job.num_ranks)
    if reached is None:
        return POLICY.expected_bytes_per_s, "one 100 Gb/s port moves 12.5"
    return reached, f"calibrated, they reached {reached / 1e9:.3g} here"


def _rates(job: JobCase, place: int) -> tuple[Float64, Bool]:
    """Bus bandwidth of each large collective, and the mask of their tasks."""
    collective_records, matched = job.rank_records[place], job.matched
    ids = matched.of[collective_records.rank]
    dur = (collective_records.end_ns - collective_records.start_ns - matched.wait_ns(collective_records)).astype(np.float64)
    sizes = (
        np.array([kind.bytes or 0 for kind in collective_records.kinds], np.float64)[collective_records.kind]
        if len(collective_records)
        else np.empty(0)
    )
    wires = np.array(
        [bus_factor(kind.op, max(kind.group_size or len(kind.group_ranks), 2)) for kind in collective_records.kinds], np.float64
    )
    large = (sizes >= POLICY.least_bytes) & (dur > 0) & (ids != NONE)
    rates = sizes[large] * wires[collective_records.kind[large]] / (dur[large] * 1e-9) if len(collective_records) else np.empty(0)
    return rates, job.tasks(place, large) if len(collective_records) else np.zeros(
        len(job.job_graph.parts[place].graph), np.bool_
    )


def advise(beside: Beside) -> Sequence[Advice]:
    """By the machine's topology, where a trace says that collectives weigh: devices that reach each other through the host."""
    kernels = [name for name in beside.kernel_shares if COLLECTIVE.search(name)]
    share = sum(beside.kernel_shares[name] for name in kernels)
    topologies = () if beside.system is None or share < POLICY.least_share else beside.system.topologies
    return [_by_topology(one, share, kernels) for one in topologies if _far_pairs(one)]


def _far_pairs(one: Topology) -> Counter[str]:
    return Counter(kind for kind in one.pairs.values() if kind in THROUGH_HOST)


def _by_topology(one: Topology, share: float, kernels: Sequence[str]) -> Advice:
    far, every = _far_pairs(one), len(one.pairs)
    words = ", ".join(f"{count} {kind}" for kind, count in far.most_common())
    rest = "" if far.total() == every else "; keep the ranks that talk most on devices that are joined directly"
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{far.total()} of {every} pairs of devices reach each other through the host alone.",
        action=f"fewer and smaller exchanges (gradient accumulation, bf16 gradients), or devices with NVLink{rest}",
        evidence=(f"{one.path}: {words}, of {every} pairs", f"collectives take {share:.0%} of the step, waiting for others too"),
        weight=share,
        weight_of="the step",
        kernels=tuple(kernels),
    )


def advise_by_log(log: NcclLog) -> Advice | None:
    """By NCCL's log alone: what it fell back to. No trace says what that costs."""
    slow = slow_links(log)
    if not slow:
        return None
    transports = ", ".join(f"{count} {kind}" for kind, count in log.transports.items())
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{log.library.upper()} does not use the fastest way: {slow[0]}.",
        action="NCCL_SOCKET_IFNAME or NCCL_IB_HCA for the fast cards; remove NCCL_IB_DISABLE and NCCL_P2P_DISABLE; traces of two"
        " ranks say what it costs",
        evidence=(*([f"connections: {transports}"] if transports else []), *slow[1:]),
    )
