"""Packets wait for one another in the network.

What it sees: counters of the ports over time: notifications to send more slowly (CNP), packets
marked by switches (ECN), pause frames and how long they held the port, packets dropped for want of
buffers; and a port that waits to send (port_xmit_wait) far longer than its peers.

Why it costs: a sender that is paused or told to slow down sends at a fraction of its link's rate,
and all ranks of the collective move at the slowest one's.

Evidence it needs: two samples of the counters or more, with their times (`ethtool -S`,
`/sys/class/infiniband/*/ports/*/hw_counters`, `perfquery -x`); `stepscope run` samples InfiniBand's
and RoCE's by itself.

What to do: spread the flows: more queue pairs (NCCL_IB_QPS_PER_CONNECTION=4), adaptive routing or a
better hash on the switches (NCCL_IB_SPLIT_DATA_ON_QPS); put the ranks of a group under one leaf
switch; check that RoCE's traffic class and priority flow control are the same on all hosts and
switches (NCCL_IB_TC). See who else is on the network at that time.

Example: notifications grow by thousands a second from one minute on, on all ports of a machine:
another job's checkpoint goes over the same uplinks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.system import PortSeries
from stepscope.core.run import RunFacts
from stepscope.protocol.port_counters import CNP, ECN, PAUSE_US, WAIT

CODE = "network-congestion"
BOUND = "comms"


class Policy(Struct, frozen=True, kw_only=True):
    least_notices_per_s: float = 100.0
    """Notifications or marked packets, a second: some are how RoCE finds its rate."""
    least_paused: float = 0.01
    """Share of the time in which a port was told to send nothing."""
    least_dropped_per_s: float = 1.0
    times_peers: float = 5.0
    """The median port's wait, from which one stands out."""
    least_peers: int = 3
    uneven: float = 1.5
    """Times its mean, from which a counter's growth has a moment worth naming."""
    least_wait_per_s: float = 1e6
    """Ticks a second below which nobody waits: a tick is of the card's own length, some nanoseconds
    on those that are known."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> Advice | None:
    return None if auxiliary.system is None else judge_ports(auxiliary.system.ports)


def advise_run(run: RunFacts) -> Advice | None:
    """Advise by what the run itself sampled."""
    return judge_ports(run.ports)


def judge_ports(ports: Sequence[PortSeries]) -> Advice | None:
    signs = [(port, sign) for port in ports for sign in (*_signs(port), *_waits(port, ports))]
    if not signs:
        return None
    port, (words, share) = signs[0]
    names = list(dict.fromkeys(port.name for port, _ in signs))
    others = f"; {len(names) - 1} more ports show it" if len(names) > 1 else ""
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"The network is congested at port {port.name}: {words}{others}.",
        action="spread the flows (NCCL_IB_QPS_PER_CONNECTION=4, adaptive routing), the same "
        "priority on all hosts and switches (NCCL_IB_TC); see who else sends then",
        evidence=tuple(f"{port.name}: {words}" for port, (words, _) in signs)[:12],
        weight=share,
        weight_of="" if share is None else "the time, paused",
    )


def _signs(port: PortSeries) -> Iterator[tuple[str, float | None]]:
    paused = port.per_s(PAUSE_US)
    if paused is not None and paused * 1e-6 >= POLICY.least_paused:
        share = min(paused * 1e-6, 1.0)
        yield f"told to pause {share:.0%} of the time{_when(port, PAUSE_US)}", share
    for name, words in ((CNP, "notifications to slow down"), (ECN, "packets marked by switches")):
        notices = port.per_s(name)
        if notices is not None and notices >= POLICY.least_notices_per_s:
            yield f"{notices:,.0f} {words} a second{_when(port, name)}", None
    for name in ("xmit_discards", "rcv_discards"):
        dropped = port.per_s(name)
        if dropped is not None and dropped >= POLICY.least_dropped_per_s:
            side = "sending" if name == "xmit_discards" else "receiving"
            yield f"{dropped:,.3g} packets dropped {side} a second{_when(port, name)}", None


def _waits(port: PortSeries, ports: Sequence[PortSeries]) -> Iterator[tuple[str, float | None]]:
    """What a tick is long differs from card to card: a wait is judged against the peers' alone."""
    mine = port.per_s(WAIT)
    peers = [wait for each in ports if each is not port and (wait := each.per_s(WAIT)) is not None]
    if mine is None or len(peers) < POLICY.least_peers or mine < POLICY.least_wait_per_s:
        return
    usual = median(peers)
    if mine > POLICY.times_peers * usual:
        many = "" if not usual else f", {mine / usual:.0f} times its peers'"
        yield f"it waits to send for {mine:,.3g} ticks a second{many}{_when(port, WAIT)}", None


def _when(port: PortSeries, name: str) -> str:
    counter = port.counters[name]
    if counter.most_at_s is None or counter.most_per_s is None or port.num_samples < 4:
        return ""
    if counter.most_per_s < POLICY.uneven * (counter.per_s or 0.0):
        return ", all the time"
    return f", most at {counter.most_at_s:,.0f} s"


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise, advise_run=advise_run)
