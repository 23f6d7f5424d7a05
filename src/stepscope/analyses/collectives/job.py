"""The communication of a job: the ranks' records and what was matched in, CommsFacts out; and when
gradients and parameters travel within a step: DDP's buckets, FSDP's gathers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from stepscope.analyses.collectives.group_families import Families, Family
from stepscope.analyses.collectives.lateness import noise_ns
from stepscope.analyses.collectives.parallel_shape import parallel_shape
from stepscope.analyses.collectives.records import in_windows
from stepscope.analyses.collectives.table import gather_entries, link_fits, table
from stepscope.core.comms import (
    BACKWARD,
    FORWARD,
    Buckets,
    CollectiveRecords,
    CommsFacts,
    Gathers,
    Lateness,
    Link,
    Matched,
    RankComms,
)
from stepscope.core.facts import RankFacts
from stepscope.core.recordings.nccl import NcclLog
from stepscope.core.trace import NONE, Bool

MIN_ALIKE = 0.5
"""Share of steps that must have the same buckets for them to be the run's."""
PHASES = {FORWARD: "forward", BACKWARD: "backward"}
MAX_ROWS = 100
OFTEN = 0.5
"""A straggler comes last to more than this share of the collectives."""


def job_comms(
    facts: Sequence[RankFacts],
    rank_records: Sequence[CollectiveRecords],
    matched: Matched,
    late: Sequence[Lateness],
    *,
    nccl: NcclLog | None = None,
) -> CommsFacts:
    """What the collectives of all ranks show together."""
    families = Families(rank_records)
    rows = table(gather_entries(rank_records, matched, families), matched, families)
    shape = parallel_shape(rank_records, families)
    ddp = [family for family, dimension in shape if dimension.scheme == "DDP"]
    sharded = [family for family, dimension in shape if (dimension.scheme or "").startswith("FSDP")]
    family_buckets = (buckets(rank_records, families, family) for family in ddp)
    link = next((records.link for records in rank_records if records.link is not None), None)
    world, noise = families.world_size, noise_ns(rank_records, matched)
    return CommsFacts(
        world_size=world,
        rows=tuple(
            replace(row, crosses_nodes=_crosses(row.num_ranks, world, nccl))
            for _, row in rows[:MAX_ROWS]
        ),
        num_rows_left_out=max(0, len(rows) - MAX_ROWS),
        fits=link_fits(rows),
        ranks=_ranks(facts, rank_records, matched, late, noise),
        shape=tuple(dimension for _, dimension in shape),
        buckets=next(filter(None, family_buckets), None),
        gathers=tuple(row for family in sharded for row in gathers(rank_records, families, family)),
        link=None if link is None else Link(name=link[0], bytes_per_s=link[1], source=link[2]),
        clock_noise_ns=noise if matched.num and len(rank_records) > 1 else None,
    )


def _crosses(num_ranks: int | None, world: int | None, nccl: NcclLog | None) -> bool | None:
    """Whether groups of so many ranks reach over several nodes, where NCCL's log settles it."""
    spans = None if nccl is None else nccl.is_inter_node
    if spans is False:
        return False
    return True if spans and num_ranks is not None and num_ranks == world else None


def _ranks(
    facts: Sequence[RankFacts],
    rank_records: Sequence[CollectiveRecords],
    matched: Matched,
    late: Sequence[Lateness],
    noise: int,
) -> tuple[RankComms, ...]:
    is_compared = len(rank_records) > 1
    tied = {rank for rank, ids in matched.of.items() if is_compared and bool((ids != NONE).any())}
    lateness = {rank_late.rank: rank_late for rank_late in late if rank_late.rank in tied}
    most_read = 2 * len(rank_records) > max(
        (records.world_size or 0 for records in rank_records), default=0
    )
    rows = []
    for rank in sorted(facts, key=lambda rank: rank.rank):
        parts, mine = rank.typical_parts_ns, lateness.get(rank.rank)
        is_aligned = mine is not None and rank.rank not in matched.unaligned
        split = rank.partition is not None and rank.partition.waits_split
        rows.append(
            RankComms(
                rank=rank.rank,
                wait_ns=parts["comms_wait"] if parts is not None and split else None,
                transfer_ns=parts["comms_transfer"] if parts is not None and split else None,
                late_ns=None if mine is None else mine.median_ns,
                share_last=None if mine is None else mine.share_last,
                offset_ns=matched.offset_ns[rank.rank] if is_aligned else None,
                overlap_efficiency=overlap_efficiency(rank),
                replayed=False,  # the judging of the job says which
                is_straggler=most_read
                and mine is not None
                and mine.share_last > OFTEN
                and mine.median_ns > noise,
            )
        )
    return tuple(rows)


def overlap_efficiency(facts: RankFacts) -> float | None:
    """1 - (T - max(C, M)) / (C + M - max(C, M)),
    with T the time in which compute or collectives ran; 1 when the smaller is zero.

    T leaves idle time out: it is no fault of the overlap. None without collectives or steps.
    """
    parts = facts.typical_parts_ns
    hidden = facts.steps.typical(facts.comms_hidden_ns) if facts.comms_hidden_ns else None
    if parts is None or hidden is None:
        return None
    compute, exposed = parts["compute"], parts["comms_wait"] + parts["comms_transfer"]
    comms = exposed + hidden
    if comms == 0:
        return None
    larger = max(compute, comms)
    rest = compute + comms - larger
    return 1.0 if rest == 0 else 1 - (compute + exposed - larger) / rest


def buckets(
    rank_records: Sequence[CollectiveRecords], families: Families, family: Family
) -> Buckets | None:
    """The all-reduces of backward passes in the order they fire;
    None when most steps do not have the same ones."""
    seen: list[tuple[tuple[int | None, ...], list[int], int, int]] = []
    for records in rank_records:
        mine = _of(records, families, family, "all_reduce", BACKWARD)
        for step, begin, end in records.backward:
            chosen = np.flatnonzero(mine & (records.step == step))
            if len(chosen):
                sizes = tuple(records.kinds[kind].bytes for kind in records.kind[chosen].tolist())
                fired = (records.start_ns[chosen] - begin).tolist()
                seen.append((sizes, fired, end - begin, int(records.end_ns[chosen].max()) - end))
    if not seen:
        return None
    sizes, times = Counter(row[0] for row in seen).most_common(1)[0]
    if times < MIN_ALIKE * len(seen):
        return None
    alike = [row for row in seen if row[0] == sizes]
    return Buckets(
        group=families.label(family),
        bytes=sizes,
        fired_ns=tuple(int(ns) for ns in np.median([row[1] for row in alike], axis=0)),
        backward_ns=int(np.median([row[2] for row in alike])),
        tail_ns=int(np.median([row[3] for row in alike])),
    )


def gathers(
    rank_records: Sequence[CollectiveRecords], families: Families, family: Family
) -> tuple[Gathers, ...]:
    """The all-gathers of sharded parameters, in forward and in backward."""
    rows = []
    for phase, name in PHASES.items():
        total, hidden, count, size, ahead = 0.0, 0.0, [], [], []
        for records in rank_records:
            chosen = np.flatnonzero(_of(records, families, family, "all_gather", phase))
            if not len(chosen) or not records.windows:
                continue
            lasted = (records.end_ns - records.start_ns)[chosen]
            exposed = np.bincount(
                records.exposed_of,
                records.exposed_end_ns - records.exposed_start_ns,
                len(records),
            )[chosen]
            total += float(lasted.sum())
            hidden += float(np.maximum(lasted - exposed, 0).sum())
            count.append(len(chosen) / len(records.windows))
            size.append(
                sum(records.kinds[kind].bytes or 0 for kind in records.kind[chosen].tolist())
                / len(records.windows)
            )
            if len(records.ahead):
                ahead += records.ahead[chosen][records.ahead[chosen] != NONE].tolist()
        if count and total:
            rows.append(
                Gathers(
                    phase=name,
                    group=families.label(family),
                    count_per_step=float(np.mean(count)),
                    bytes_per_step=float(np.mean(size)) or None,
                    hidden_share=hidden / total,
                    ahead=float(np.median(ahead)) if ahead else None,
                )
            )
    return tuple(rows)


def _of(
    records: CollectiveRecords, families: Families, family: Family, op: str, phase: int
) -> Bool:
    """Mask of the measured entries of one operation in one family,
    launched in one part of the step."""
    mask = np.zeros(len(records), np.bool_)
    if not len(records.phase) or not len(records):
        return mask
    wanted = np.array([kind.op == op and families.of(kind) == family for kind in records.kinds])
    mask[in_windows(records)] = True
    mask &= wanted[records.kind] & (records.phase == phase)
    return mask
