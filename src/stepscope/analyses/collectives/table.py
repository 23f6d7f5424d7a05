"""The job's collectives by operation, group, type and size: how often, how long, how fast.

    all_reduce  4 ranks  fp32   65.5 MB  1 a step  130 ms  busbw 0.75 GB/s
    all_reduce  4 ranks  fp32   29.4 MB  2 a step  ...

Bandwidths count from the moment the last rank arrived (nccl-tests, doc/PERFORMANCE.md); where not
all ranks of a group were recorded, from the rank's own arrival, and the row says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from stepscope.analyses.collectives.group_families import Families, Family, stride_of
from stepscope.analyses.collectives.link_fit import bus_factor, fit
from stepscope.analyses.collectives.records import in_windows
from stepscope.analyses.grouping import distinct
from stepscope.core.comms import Collective, CollectiveRecords, CollectiveRow, LinkFit, Matched
from stepscope.core.numbers import number_ranges
from stepscope.core.trace import NONE, Bool, Float64, Int64

MANY_SIZES = frozenset({"all_to_all", "sendrecv"})
"""Operations whose sizes differ from call to call: one row for all of them."""

Key = tuple[str, Family, str | None, int | None, bool]


class Entries(Struct, frozen=True, kw_only=True):
    """The measured entries of all ranks' records, one after the other."""

    keys: tuple[Key, ...]
    key: Int64
    rank_index: Int64
    number: Int64
    """Number of the matched collective, or NONE."""
    group: Int64
    dur_ns: Float64
    wait_ns: Float64
    exposed_ns: Float64
    bytes: Float64
    unevenness: Float64
    labels: tuple[tuple[int, ...] | str, ...]
    """What `group` counts: ranks, or a name."""
    num_steps: Int64
    """Number of steps, by rank."""


def gather_entries(
    rank_records: Sequence[CollectiveRecords], matched: Matched, families: Families
) -> Entries:
    """Every entry that ended in its rank's measured windows; all of a rank without windows."""
    keys: dict[Key, int] = {}
    groups: dict[tuple[int, ...] | str, int] = {}
    codes, figures = [np.empty((4, 0), np.int64)], [np.empty((5, 0), np.float64)]
    for index, records in enumerate(rank_records):
        chosen = in_windows(records) if records.windows else np.arange(len(records))
        kinds = np.array(
            [keys.setdefault(_key(k, families), len(keys)) for k in records.kinds], np.int64
        )
        group_codes = np.array(
            [groups.setdefault(families.key(k), len(groups)) for k in records.kinds], np.int64
        )
        kind = records.kind[chosen]
        codes.append(
            np.stack(
                (
                    kinds[kind],
                    np.full(len(kind), index),
                    matched.of[records.rank][chosen],
                    group_codes[kind],
                )
            )
        )
        figures.append(_figures(records, matched)[:, chosen])
    key, rank_index, number, group = np.concatenate(codes, axis=1)
    dur, wait, exposed, size, uneven = np.concatenate(figures, axis=1)
    return Entries(
        keys=tuple(keys),
        key=key,
        rank_index=rank_index,
        number=number,
        group=group,
        dur_ns=dur,
        wait_ns=wait,
        exposed_ns=exposed,
        bytes=size,
        unevenness=uneven,
        labels=tuple(groups),
        num_steps=np.array([len(records.windows) for records in rank_records], np.int64),
    )


def _figures(records: CollectiveRecords, matched: Matched) -> Float64:
    """Figures of each entry: duration, wait, exposed time, size, unevenness of its splits."""
    sizes = np.array(
        [np.nan if kind.bytes is None else kind.bytes for kind in records.kinds], np.float64
    )
    rows: Float64 = np.full((5, len(records)), np.nan)
    rows[0] = records.end_ns - records.start_ns
    rows[1] = matched.wait_ns(records)
    rows[2] = np.bincount(
        records.exposed_of,
        records.exposed_end_ns - records.exposed_start_ns,
        len(records),
    )
    rows[3] = sizes[records.kind]
    if len(records.unevenness):
        rows[4] = records.unevenness
    return rows


def _key(kind: Collective, families: Families) -> Key:
    size = None if kind.op in MANY_SIZES else kind.bytes
    return kind.op, families.of(kind), kind.dtype, size, kind.on_device


def table(
    entries: Entries, matched: Matched, families: Families
) -> list[tuple[Family, CollectiveRow]]:
    """A row per kind, most costly first."""
    order = np.argsort(entries.key, kind="stable")
    edges = np.searchsorted(entries.key[order], np.arange(len(entries.keys) + 1))
    rows = [
        (key[1], _row(key, entries, order[low:high], matched, families))
        for key, low, high in zip(entries.keys, edges, edges[1:], strict=False)
        if high > low
    ]
    return sorted(rows, key=lambda row: -(row[1].ns_per_step or row[1].moving_ns))


def _row(
    key: Key, entries: Entries, mine: Int64, matched: Matched, families: Families
) -> CollectiveRow:
    op, family, dtype, _, on_device = key
    n = family.num_ranks
    has_id = entries.number[mine] != NONE
    complete = has_id.copy()
    complete[has_id] = matched.complete[entries.number[mine][has_id]] & _all_recorded(
        family, families, len(entries.num_steps)
    )
    numbers, moving, size, group = _moved(entries, mine, complete, matched)
    includes_waits = len(numbers) == 0
    if includes_waits:
        moving, size, group = entries.dur_ns[mine], entries.bytes[mine], entries.group[mine]
    algbw = _rate(moving, size)
    factor = None if n is None or n < 1 else bus_factor(op, n)
    slowest = None if includes_waits else _slowest_group(moving, size, group)
    sizes = entries.bytes[mine][~np.isnan(entries.bytes[mine])]
    has_steps = bool((entries.num_steps[entries.rank_index[mine]] > 0).all())
    total = float(entries.dur_ns[mine].sum())
    wait_ns = exposed_share = slowest_busbw = None
    if has_steps and not includes_waits:
        wait_ns = _per_step(entries, mine, entries.wait_ns[mine])
    if on_device and total:
        exposed_share = min(1.0, float(entries.exposed_ns[mine].sum()) / total)
    if slowest is not None and factor is not None:
        slowest_busbw = slowest[0] * factor
    return CollectiveRow(
        op=op,
        group=families.label(family),
        num_groups=len(distinct(entries.group[mine])),
        num_ranks=n,
        dtype=dtype,
        bytes=int(np.median(sizes)) if len(sizes) else None,
        num_sizes=len(np.unique(sizes)),
        count_per_step=_per_step(entries, mine, np.ones(len(mine))) if has_steps else None,
        ns_per_step=_per_step(entries, mine, entries.dur_ns[mine]) if has_steps else None,
        wait_ns_per_step=wait_ns,
        exposed_share=exposed_share,
        moving_ns=int(np.median(moving)),
        includes_waits=includes_waits,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=None if algbw is None or factor is None else algbw * factor,
        slowest_group=None if slowest is None else _group_text(entries.labels[slowest[1]]),
        slowest_busbw_bytes_per_s=slowest_busbw,
        imbalance=_imbalance(entries, mine, complete) if op == "all_to_all" else None,
        on_device=on_device,
    )


def _slowest_group(moving: Float64, size: Float64, group: Int64) -> tuple[float, int] | None:
    """The lowest rate and the group that has it; None where there are fewer than two groups."""
    groups = distinct(group).tolist()
    rates = [(_rate(moving[group == code], size[group == code]), code) for code in groups]
    measured = [(rate, code) for rate, code in rates if rate is not None]
    return min(measured, default=None) if len(groups) > 1 else None


def _all_recorded(family: Family, families: Families, num_ranks_read: int) -> bool:
    """Whether all ranks of a group can be among those recorded.
    Where its ranks are not known, matching counts those it saw."""
    is_listed = any(isinstance(group, tuple) for group in families.groups[family])
    return is_listed or (family.num_ranks or families.world_size or 0) <= num_ranks_read


def _group_text(label: tuple[int, ...] | str) -> str:
    """A group's name, or its ranks: 0-7; 0-504 by 8."""
    if isinstance(label, str):
        return label
    stride = stride_of(label)
    if len(label) > 2 and stride is not None and stride > 1:
        return f"{label[0]}-{label[-1]} by {stride}"
    return number_ranges(label)


def _moved(
    entries: Entries, mine: Int64, complete: Bool, matched: Matched
) -> tuple[Int64, Float64, Float64, Int64]:
    """Collectives that all of their ranks recorded: number, time after the last arrival, size and
    group of each."""
    which = mine[complete]
    numbers, first, inverse = np.unique(
        entries.number[which], return_index=True, return_inverse=True
    )
    moving = (matched.end_ns[numbers] - matched.last_ns[numbers]).astype(np.float64)
    size = np.bincount(inverse, entries.bytes[which], len(numbers)) / np.bincount(
        inverse, minlength=len(numbers)
    )
    good = moving > 0
    return numbers[good], moving[good], size[good], entries.group[which][first][good]


def _rate(moving_ns: Float64, size: Float64) -> float | None:
    """Bytes a second: of the median collective, or of all together where sizes differ."""
    good = (size > 0) & (moving_ns > 0)
    if not good.any():
        return None
    if float(np.ptp(size[good])) == 0:
        return float(size[good][0] / np.median(moving_ns[good]) * 1e9)
    return float(size[good].sum() / moving_ns[good].sum() * 1e9)


def _per_step(entries: Entries, mine: Int64, values: Float64) -> float:
    """The sum over a step on one rank: the mean over the ranks that have any."""
    rank_index = entries.rank_index[mine]
    total = np.bincount(rank_index, values, len(entries.num_steps))
    has = distinct(rank_index)
    return float((total[has] / entries.num_steps[has]).mean())


def _imbalance(entries: Entries, mine: Int64, complete: Bool) -> float | None:
    """The greatest part over the mean:
    of the recorded splits, else of what the ranks of one collective send."""
    split = entries.unevenness[mine]
    if not np.isnan(split).all():
        return float(np.nanmedian(split))
    which = mine[complete & ~np.isnan(entries.bytes[mine])]
    if not len(which):
        return None
    numbers, inverse = np.unique(entries.number[which], return_inverse=True)
    most = np.zeros(len(numbers))
    np.maximum.at(most, inverse, entries.bytes[which])
    mean = np.bincount(inverse, entries.bytes[which]) / np.bincount(inverse)
    return float(np.median(most[mean > 0] / mean[mean > 0])) if (mean > 0).any() else None


def link_fits(rows: Sequence[tuple[Family, CollectiveRow]]) -> tuple[LinkFit, ...]:
    """A line per operation and family, from the rows that are free of waits;
    none where no line makes sense."""
    points: dict[tuple[str, Family, bool], list[CollectiveRow]] = {}
    for family, row in rows:
        if not row.includes_waits and row.bytes and row.num_sizes == 1 and row.moving_ns > 0:
            points.setdefault((row.op, family, row.on_device), []).append(row)
    fits = []
    for (op, family, _), group_rows in points.items():
        line = fit(
            op,
            family.num_ranks or 0,
            [row.bytes or 0 for row in group_rows],
            [float(row.moving_ns) for row in group_rows],
        )
        if line is not None and family.num_ranks is not None:
            fits.append(
                LinkFit(
                    op=op,
                    group=group_rows[0].group,
                    num_ranks=family.num_ranks,
                    alpha_ns=line.alpha_ns,
                    beta_bytes_per_s=line.beta,
                    num_sizes=len({row.bytes for row in group_rows}),
                    min_bytes=min(row.bytes or 0 for row in group_rows),
                    max_bytes=max(row.bytes or 0 for row in group_rows),
                    goodness=line.goodness,
                    worst=line.worst,
                    worst_bytes=line.worst_bytes,
                )
            )
    return tuple(fits)
