"""Bytes cross between ranks far more slowly than the links a training machine has.

What it sees: the bus bandwidth of large collectives, timed from the moment the last rank has
arrived, without what a message's start costs where messages of several sizes tell it. It is held
against what collectives reached on this machine where it was calibrated (`stepscope calibrate`
under torchrun, `--hardware FILE`), else against the link that such devices are joined by where the
ranks are known to be on one node (NVLink, xGMI, PCIe) or on several (the usual network card), else
against the slowest link such machines are built with; with an NCCL log, the transport that was
chosen. Where neither says that there is a faster link, what the job's own code makes of its
messages is said first.

Why it costs: NCCL falls back to TCP sockets, or to one slow card, without an error: a wrong
interface, InfiniBand disabled, peer access off. Every byte then takes ten to a hundred times as
long.

Evidence it needs: traces of two ranks at least; collectives of a megabyte and more with their sizes
(c10d records them by itself). `NCCL_DEBUG=INFO` logs given beside the traces name the transport and
say whether there are several nodes, as do the traces' own names (host_process.time.pt.trace.json);
`nvidia-smi topo -m` names the links there are; a log given alone says what NCCL fell back to, and
the output of nccl-tests what the link reaches at each size.

What to do: read NCCL's log for NET/Socket where NET/IB or P2P should stand; set NCCL_SOCKET_IFNAME
to the fast interface, NCCL_IB_HCA to the right cards; remove NCCL_P2P_DISABLE and NCCL_IB_DISABLE;
check the topology with `nvidia-smi topo -m`.

Example: ranks that took each other for different hosts talked over the loopback socket: 1.8 GB/s.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from stepscope.analyses.collectives.link_fit import Cost, bus_factor, cost_of, ring_steps
from stepscope.core.comms import Collective, CollectiveRecords
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.nccl import NcclLog
from stepscope.core.recordings.nccl_notes import slow_links
from stepscope.core.recordings.system import Topology
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.hardware.link_tests import advice_of, judge_test
from stepscope.hardware.links import ACROSS, LINK_SHARE, Tier, usual_tiers
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.messages import Messages, messages, with_times_ns

CODE = "slow-link"
BOUND = "comms"
COLLECTIVE = re.compile(r"[nr]ccl(?:Dev)?Kernel", re.IGNORECASE)
THROUGH_HOST = ("PHB", "NODE", "SYS", "SOC")
"""Links of nvidia-smi topo -m that pass the host's bridges, or the link between its sockets."""


class Policy(Struct, frozen=True, kw_only=True):
    least_bytes: int = 1_000_000
    """Smaller messages tell of latency, not of the link."""
    least_starts: float = 10.0
    """Times the hops of a known link that a message's bytes must take on it, for the same
    reason."""
    expected_bytes_per_s: float = 12.5e9
    """One 100 Gb/s port, or PCIe 3.0 x16 in practice: the slowest link that training machines of
    the last years have."""
    slow: float = 0.4
    """Share of the expected rate below which a link is slow."""
    least_share: float = 0.05
    """Share of the step in collectives from which it matters which way their bytes go."""


POLICY = Policy()
OWN_CODE = (
    "sync-every-microbatch", "tiny-buckets", "oversized-buckets", "buffer-broadcast",
    "unused-parameter-scan", "resharded-forward", "unprefetched-gather", "late-rank", "uneven-work",
)  # fmt: skip
"""Findings about messages that the job's own code mends, with the numbers that it had."""


def propose_job(job: JobCase) -> JobProposal | None:
    """Large messages at the expected rate. One rank alone cannot tell a slow link from a late
    peer."""
    if len(job.cases) < 2:
        return None
    link, costs = _expected(job), _costs(job)
    measured = [_rates(job, index, link, costs) for index in range(len(job.cases))]
    rates, masks = np.concatenate([rates for rates, _ in measured]), [mask for _, mask in measured]
    if len(rates) == 0:
        return None
    rate = float(np.median(rates))
    if rate > POLICY.slow * link.bytes_per_s:
        return None
    sent = [messages(job, index, lambda _: True) for index in range(len(job.cases))]
    large = [own.at(np.flatnonzero(mask[own.task])) for own, mask in zip(sent, masks, strict=True)]
    factor = rate / link.bytes_per_s
    transports = {} if job.nccl is None else job.nccl.transports
    return JobProposal(
        summary=f"Large collectives move {rate / 1e9:.2f} GB/s; {link.words}.",
        action="NCCL_DEBUG=INFO shows the transport: where it says NET/Socket set "
        "NCCL_SOCKET_IFNAME or NCCL_IB_HCA to the fast cards, remove NCCL_IB_DISABLE and "
        "NCCL_P2P_DISABLE",
        evidence=(
            (
                f"{len(rates)} large collectives, bus bandwidth {rate / 1e9:.2f} GB/s in the "
                f"middle: {factor:.0%} of {link.bytes_per_s / 1e9:.3g}"
            ),
            *(
                f"of each {op} {cost.alpha_ns / 1e6:.2f} ms are its start, and stay"
                for (op, _), cost in costs.items()
                if cost.alpha_ns > 0
            ),
            *(
                f"NCCL's log names {kind}: {count} connections"
                for kind, count in transports.items()
            ),
        ),
        change=lambda job_graph: _with_bytes(job_graph, large, costs, factor),
        cautious=lambda job_graph: _with_bytes(job_graph, large, costs, min(1.0, 2 * factor)),
        after=() if link.is_known or transports else OWN_CODE,
    )


def _costs(job: JobCase) -> dict[tuple[str, str], Cost]:
    """What a message of each operation and group costs, where its start is told from its bytes."""
    taken: dict[tuple[str, str], list[Float64]] = defaultdict(list)
    for records in job.rank_records:
        size, took = _sizes(records), _moving_ns(job, records)
        for at, kind in enumerate(records.kinds):
            mine = (records.kind == at) & (size > 0) & (took > 0)
            taken[kind.op, kind.group].append(np.stack((size[mine], took[mine])))
    costs = {key: cost_of(*np.concatenate(each, axis=1)) for key, each in taken.items()}
    return {key: cost for key, cost in costs.items() if cost is not None and cost.measured}


def _sizes(records: CollectiveRecords) -> Float64:
    return np.array([kind.bytes or 0 for kind in records.kinds], np.float64)[records.kind]


def _moving_ns(job: JobCase, records: CollectiveRecords) -> Float64:
    """Time from the last rank's arrival on."""
    took = records.end_ns - records.start_ns - job.matched.wait_ns(records)
    return took.astype(np.float64)


def _share_of_bytes(kind: Collective, cost: Cost | None) -> float:
    """Share of a message's time that its bytes take: a link is not slow because messages are
    small."""
    if cost is None or not kind.bytes:
        return 1.0
    return 1.0 - cost.alpha_ns / cost.of(kind.bytes)


def _with_bytes(
    job_graph: JobGraph,
    sent: Sequence[Messages],
    costs: Mapping[tuple[str, str], Cost],
    factor: float,
) -> JobGraph:
    """The bytes of these messages take `factor` of their time, their starts what they do."""

    def new_ns(own: Messages, now_ns: Float64) -> Float64:
        shares = [_share_of_bytes(kind, costs.get((kind.op, kind.group))) for kind in own.kind]
        after: Float64 = now_ns * (1.0 - np.array(shares, np.float64) * (1.0 - factor))
        return after

    return with_times_ns(job_graph, sent, new_ns)


class _Link(Struct, frozen=True, kw_only=True):
    """What the bytes should cross."""

    bytes_per_s: float
    """Bus bandwidth as collectives reach it."""
    words: str
    latency_s: float = 0.0
    """Latency of one hop."""
    is_known: bool = True
    """Whether something says that this machine has it."""


def _expected(job: JobCase) -> _Link:
    """Link as calibrated here, else the usual one of such devices where they are, else the
    slowest."""
    roofs = job.cases[0].context.roofs
    reached = None
    if roofs is not None and roofs.measured is not None:
        reached = roofs.measured.bus_bytes_per_s(job.num_ranks)
    if reached is not None:
        return _Link(
            bytes_per_s=reached, words=f"calibrated, they reached {reached / 1e9:.3g} here"
        )
    tier = _tier(job)
    if tier is None:
        return _Link(
            bytes_per_s=POLICY.expected_bytes_per_s,
            words="one 100 Gb/s port moves 12.5",
            is_known=False,
        )
    reached = tier.bytes_per_s * LINK_SHARE
    return _Link(
        bytes_per_s=reached,
        words=f"the usual link {_place(tier)} is {tier.bytes_per_s / 1e9:.3g}, of which they reach "
        f"{reached / 1e9:.3g}",
        latency_s=tier.latency_s,
    )


def _tier(job: JobCase) -> Tier | None:
    """The slowest link that the ranks' messages must cross; None where it is not known on how many
    nodes they are, or what the device is."""
    roofs = job.cases[0].context.roofs
    # By NCCL's log, else by the names of the traces.
    several = None if job.nccl is None else job.nccl.is_inter_node
    nodes = {records.node for records in job.rank_records}
    if several is None and "" not in nodes and len(job.rank_records) == job.num_ranks:
        several = len(nodes) > 1
    if roofs is None or several is None:
        return None
    tiers = usual_tiers(roofs.spec)
    return tiers[-1] if several else tiers[0]


def _place(tier: Tier) -> str:
    return "between nodes of such devices" if tier.name == ACROSS else "of such devices in a node"


def _rates(
    job: JobCase, index: int, link: _Link, costs: Mapping[tuple[str, str], Cost]
) -> tuple[Float64, Bool]:
    """Bus bandwidth of each large collective's bytes, and the mask of their tasks."""
    records, matched = job.rank_records[index], job.matched
    if len(records) == 0:
        return np.empty(0), np.zeros(len(job.job_graph.parts[index].graph), np.bool_)
    dur, size = _moving_ns(job, records), _sizes(records)
    shares = [_share_of_bytes(kind, costs.get((kind.op, kind.group))) for kind in records.kinds]
    dur *= np.array(shares, np.float64)[records.kind]
    group_sizes = [max(kind.group_size or len(kind.group_ranks), 2) for kind in records.kinds]
    factors = np.array(
        [bus_factor(kind.op, num) for kind, num in zip(records.kinds, group_sizes, strict=True)],
        np.float64,
    )
    hops = np.array(
        [ring_steps(kind.op, num) for kind, num in zip(records.kinds, group_sizes, strict=True)],
        np.float64,
    )
    starts_s = POLICY.least_starts * hops * link.latency_s
    least = np.maximum(POLICY.least_bytes, starts_s * link.bytes_per_s / factors)
    large = (size >= least[records.kind]) & (dur > 0) & (matched.of[records.rank] != NONE)
    rates = size[large] * factors[records.kind[large]] / (dur[large] * 1e-9)
    return rates, job.tasks(index, large)


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    """Advise by nccl-tests' own figures; and by the machine's topology, where a trace says that
    collectives weigh: devices that reach each other through the host."""
    if auxiliary.system is None:
        return []
    tests = [
        advice_of(judge_test(test), CODE, BOUND)
        for test in auxiliary.system.link_tests
        if test.rows
    ]
    return [each for each in tests if each is not None] + _by_topologies(auxiliary)


def _by_topologies(auxiliary: Auxiliary) -> list[Advice]:
    kernels = [name for name in auxiliary.kernel_shares if COLLECTIVE.search(name)]
    share = sum(auxiliary.kernel_shares[name] for name in kernels)
    is_alone = not auxiliary.kernel_shares
    if auxiliary.system is None or (share < POLICY.least_share and not is_alone):
        return []
    topologies = [each for each in auxiliary.system.topologies if _far_pairs(each)]
    return [_by_topology(each, None if is_alone else share, kernels) for each in topologies]


def _far_pairs(topology: Topology) -> Counter[str]:
    return Counter(kind for kind in topology.pairs.values() if kind in THROUGH_HOST)


def _by_topology(topology: Topology, share: float | None, kernels: Sequence[str]) -> Advice:
    far, every = _far_pairs(topology), len(topology.pairs)
    words = ", ".join(f"{count} {kind}" for kind, count in far.most_common())
    rest = "; keep the ranks that talk most on devices that are joined directly"
    if far.total() == every:
        rest = ""
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{far.total()} of {every} pairs of devices reach each "
        "other through the host alone.",
        action="fewer and smaller exchanges (gradient accumulation, bf16 gradients), or devices "
        f"with NVLink{rest}",
        evidence=(
            f"{topology.path}: {words}, of {every} pairs",
            "what it costs, traces of all ranks say (stepscope run -- torchrun ...)"
            if share is None
            else f"collectives take {share:.0%} of the step, waiting for others too",
        ),
        weight=share,
        weight_of="" if share is None else "the step",
        kernels=tuple(kernels),
    )


def _log_action(log: NcclLog) -> str:
    """Inside one node no network card can help."""
    if any(kind.startswith("NET/") for kind in log.transports) or log.is_inter_node:
        return (
            "NCCL_SOCKET_IFNAME or NCCL_IB_HCA for the fast cards; remove NCCL_IB_DISABLE and "
            "NCCL_P2P_DISABLE"
        )
    return (
        "let the devices reach each other: remove NCCL_P2P_DISABLE, ACS off in the BIOS, IOMMU in "
        "pass-through, --ipc=host for a container; nvidia-smi topo -p2p r shows what is allowed"
    )


def advise_by_log(log: NcclLog) -> Advice | None:
    """Advise by NCCL's log alone: what it fell back to. No trace says what that costs."""
    slow = slow_links(log)
    if not slow:
        return None
    transports = ", ".join(f"{count} {kind}" for kind, count in log.transports.items())
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{log.library.upper()} does not use the fastest way: {slow[0]}.",
        action=f"{_log_action(log)}; traces of two ranks say what it costs",
        evidence=(*([f"connections: {transports}"] if transports else []), *slow[1:]),
    )


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    advise_by_log=advise_by_log,
    propose_job=propose_job,
    advise=advise,
)
