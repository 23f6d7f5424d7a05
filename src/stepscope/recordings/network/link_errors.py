"""A network port loses packets, its link goes down and comes back, or what goes over it is wrong.

What it sees: counters of the port that grew while the job ran: symbol errors, link recoveries, link
downed, receive errors, retransmissions (sequence errors, acknowledgement timeouts); a port that is
not active, or came up slower than its peers; nccl-tests whose results were wrong.

Why it costs: a lost packet is sent again after a timeout (4.3 s with NCCL_IB_TIMEOUT=20), and every
rank of the collective waits for it. A link that retrains is silent meanwhile; one that came up at
half its rate halves every exchange over it. Wrong sums are silent: the loss is wrong, and nothing
ends.

Evidence it needs: two samples of the counters or more (`perfquery -x`, `/sys/class/infiniband`,
`ethtool -S`, each with `date +%s` before it), or `ibstat`; `stepscope run` samples them by itself
where `/sys/class/infiniband` is there. Or nccl-tests with their check on (`-c 1`, the default).

What to do: reseat or replace the cable or the transceiver of that port; `mlxlink -d DEVICE -m`
shows its light and its error rates; drain the node meanwhile. For a rate that is too low, look at
the cable's and the switch port's own.

Example: link_downed of one of eight cards grows in the minute in which a few steps take seconds
each on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.numbers import times
from stepscope.core.recordings.system import LinkTest, PortSeries
from stepscope.core.run import RunFacts

CODE = "link-errors"
BOUND = "comms"


class Policy(Struct, frozen=True, kw_only=True):
    bit_error_rate: float = 1e-12
    """Bit error rate that InfiniBand allows a link (IBTA specification, volume 2)."""
    unknown_rate: float = 12.5e9
    """Bytes a second of a port whose rate is not known, for that."""
    least_lost_per_s: float = 0.1
    """Packets sent again or received damaged, a second: one in ten."""
    slower: float = 0.75
    """Share of its peers' rate at which a port has come up too slow."""


POLICY = Policy()
ALWAYS = {
    "link_downed": "its link went down {}",
    "link_recoveries": "its link retrained {}",
    "integrity_errors": "link integrity errors {}",
}
LOST = {
    "rcv_errors": "packets received damaged",
    "sequence_errors": "packets out of sequence at the sender's peer",
    "ack_timeouts": "acknowledgements that did not come in time",
    "retransmits": "packets sent again",
}


def advise(auxiliary: Auxiliary) -> list[Advice]:
    if auxiliary.system is None:
        return []
    wrong = [test for test in auxiliary.system.link_tests if test.num_wrong]
    every = [_of_wrong(wrong) if wrong else None, judge_ports(auxiliary.system.ports)]
    return [each for each in every if each is not None]


def _of_wrong(tests: Sequence[LinkTest]) -> Advice:
    first = tests[0]
    sizes = "1 size" if first.num_wrong == 1 else f"{first.num_wrong} sizes"
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{first.kind} over {first.num_ranks} ranks gave wrong results at {sizes}.",
        action="train on none of these devices before it is found: the test on halves of them "
        "(-g 4, other nodes) names the one, dmesg its Xid errors, NCCL_PROTO=Simple whether it is "
        "the library's",
        evidence=tuple(
            f"{test.path}: {test.kind}, #wrong at {test.num_wrong} of "
            f"{test.num_wrong + len(test.rows)} sizes"
            for test in tests[:8]
        ),
        weight=first.num_wrong / (first.num_wrong + len(first.rows)),
        weight_of="the sizes tested",
    )


def advise_run(run: RunFacts) -> Advice | None:
    """Advise by what the run itself sampled."""
    return judge_ports(run.ports)


def judge_ports(ports: Sequence[PortSeries]) -> Advice | None:
    """The faults of all ports, the port with the most of them first."""
    faults = [(port, list(_faults(port, ports))) for port in ports]
    faulty = sorted(
        ((port, words) for port, words in faults if words), key=lambda pair: -len(pair[1])
    )
    if not faulty:
        return None
    port, words = faulty[0]
    others = f"; {len(faulty) - 1} more ports have faults" if len(faulty) > 1 else ""
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"Port {port.name} is at fault: {words[0]}{others}.",
        action="the cable or transceiver of that port: mlxlink -d DEVICE -m, reseat, replace; "
        "another node meanwhile",
        evidence=tuple(f"{port.name}: {fault}" for port, words in faulty for fault in words)[:12],
    )


def _faults(port: PortSeries, ports: Sequence[PortSeries]) -> Iterator[str]:
    over = "" if port.span_s is None else f" in {port.span_s:,.0f} s"
    for name, words in ALWAYS.items():
        grown = port.growth(name)
        if grown:
            yield words.format(times(grown)) + over + _when(port, name)
    errors = port.per_s("symbol_errors")
    allowed = POLICY.bit_error_rate * 8 * (port.rate_bytes_per_s or POLICY.unknown_rate)
    if errors is not None and errors > allowed:
        yield (
            f"{errors:.3g} symbol errors a second, where {allowed:.2g} are allowed"
            f"{_when(port, 'symbol_errors')}"
        )
    for name, words in LOST.items():
        lost = port.per_s(name)
        if lost is not None and lost >= POLICY.least_lost_per_s:
            yield f"{lost:.3g} {words} a second{_when(port, name)}"
    if port.state is not None and port.state.lower() not in ("active", "up"):
        yield f"it is {port.state}"
    rates = [
        each.rate_bytes_per_s
        for each in ports
        if each.rate_bytes_per_s and each.layer == port.layer
    ]
    rate = port.rate_bytes_per_s
    if rate is not None and len(rates) > 2 and rate < POLICY.slower * median(rates):
        yield f"it came up at {rate * 8e-9:.0f} Gb/s, its peers at {median(rates) * 8e-9:.0f}"


def _when(port: PortSeries, name: str) -> str:
    """When it was worst, where it was not all the time."""
    counter = port.counters[name]
    if counter.most_at_s is None or port.num_samples < 4:
        return ""
    if counter.num_grew > (port.num_samples - 1) / 2:
        return ", all the time"
    return f", most at {counter.most_at_s:,.0f} s"


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise, advise_run=advise_run)
