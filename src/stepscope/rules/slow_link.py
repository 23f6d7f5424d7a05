"""Bytes cross between ranks far more slowly than the links a training machine has.

What it sees: the bus bandwidth of large collectives, timed from the moment the last rank has arrived, against what collectives
reached on this machine where it was calibrated (`stepscope calibrate` under torchrun, `--hardware FILE`), else against the
slowest link such machines are built with; with an NCCL log, the transport that was chosen.

Why it costs: NCCL falls back to TCP sockets, or to one slow card, without an error: a wrong interface, InfiniBand disabled, peer
access off. Every byte then takes ten to a hundred times as long.

Evidence it needs: traces of two ranks at least; collectives of a megabyte and more with their sizes (c10d records them by
itself). `NCCL_DEBUG=INFO` logs given
beside the traces name the transport.

What to do: read NCCL's log for NET/Socket where NET/IB or P2P should stand; set NCCL_SOCKET_IFNAME to the fast interface,
NCCL_IB_HCA to the right cards; remove NCCL_P2P_DISABLE and NCCL_IB_DISABLE; check the topology with `nvidia-smi topo -m`.

Example: ranks that took each other for different hosts talked over the loopback socket: 1.8 GB/s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analyses.link_fit import bus_factor
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.rules.crew import Crew, TeamProposal, with_moving_ns

CODE = "slow-link"
BOUND = "comms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    least_bytes: int = 1_000_000
    """Smaller messages tell of latency, not of the link."""
    expected_bytes_per_s: float = 12.5e9
    """One 100 Gb/s port, or PCIe 3.0 x16 in practice: the slowest link that training machines of the last years have."""
    slow: float = 0.4
    """Of that, below which a link is slow."""


POLICY = Policy()


def propose_team(crew: Crew) -> TeamProposal | None:
    """Large messages at the expected rate. One rank alone cannot tell a slow link from a late peer."""
    if len(crew.cases) < 2:
        return None
    rates, masks = [], []
    for place in range(len(crew.cases)):
        found, mask = _rates(crew, place)
        rates.append(found)
        masks.append(mask)
    every = np.concatenate(rates) if rates else np.empty(0)
    if len(every) == 0:
        return None
    rate = float(np.median(every))
    expected, words = _expected(crew)
    if rate > POLICY.slow * expected:
        return None
    factor = rate / expected
    named = (
        ()
        if crew.nccl is None
        else tuple(f"NCCL's log names {kind}: {count} connections" for kind, count in crew.nccl.transports.items())
    )
    return TeamProposal(
        code=CODE,
        bound=BOUND,
        summary=f"Large collectives move {rate / 1e9:.2f} GB/s; {words}.",
        action="NCCL_DEBUG=INFO shows the transport: where it says NET/Socket set NCCL_SOCKET_IFNAME or NCCL_IB_HCA to the fast"
        " cards, remove NCCL_IB_DISABLE and NCCL_P2P_DISABLE",
        evidence=(f"{len(every)} collectives of 1 MB and more, bus bandwidth {rate / 1e9:.2f} GB/s in the middle", *named),
        ranks=crew.ranks,
        change=lambda team: with_moving_ns(team, masks, lambda ns: ns * factor),
        cautious=lambda team: with_moving_ns(team, masks, lambda ns: ns * min(1.0, 2 * factor)),
    )


def _expected(crew: Crew) -> tuple[float, str]:
    """Bytes a second over the bus, and where they are from."""
    roofs = crew.cases[0].survey.roofs
    reached = None if roofs is None or roofs.measured is None else roofs.measured.bus_bytes_per_s(crew.num_ranks)
    if reached is None:
        return POLICY.expected_bytes_per_s, "one 100 Gb/s port moves 12.5"
    return reached, f"calibrated, they reached {reached / 1e9:.3g} here"


def _rates(crew: Crew, place: int) -> tuple[Float64, Bool]:
    """Bus bandwidth of each large collective, and the mask of their tasks."""
    ledger, matched = crew.ledgers[place], crew.matched
    ids = matched.of[ledger.rank]
    dur = (ledger.end_ns - ledger.start_ns - matched.wait_ns(ledger)).astype(np.float64)
    sizes = np.array([kind.bytes or 0 for kind in ledger.kinds], np.float64)[ledger.kind] if len(ledger) else np.empty(0)
    wires = np.array([bus_factor(kind.op, max(kind.group_size or len(kind.group_ranks), 2)) for kind in ledger.kinds], np.float64)
    large = (sizes >= POLICY.least_bytes) & (dur > 0) & (ids != NONE)
    rates = sizes[large] * wires[ledger.kind[large]] / (dur[large] * 1e-9) if len(ledger) else np.empty(0)
    return rates, crew.tasks(place, large) if len(ledger) else np.zeros(len(crew.team.parts[place].graph), np.bool_)
