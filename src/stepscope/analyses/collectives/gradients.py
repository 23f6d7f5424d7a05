"""When gradients and parameters travel within a step: DDP's buckets, FSDP's gathers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from stepscope.analyses.collectives.group_families import Families, Family
from stepscope.analyses.collectives.records import in_windows
from stepscope.core.comms import BACKWARD, FORWARD, CollectiveRecords
from stepscope.core.comms_facts import Buckets, Gathers
from stepscope.core.trace import NONE, Bool

MIN_ALIKE = 0.5
"""Share of steps that must have the same buckets for them to be the run's."""
PHASES = {FORWARD: "forward", BACKWARD: "backward"}


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
