"""How a job is divided over its ranks,
by its groups' descriptions and the pattern of its collectives.

    DDP                     all-reduce in backward alone
    FSDP, ZeRO-3            all-gather in forward (and in backward, unless parameters are kept),
                            reduce-scatter in backward
    ZeRO-1/2                reduce-scatter in backward, all-gather in the optimizer
    tensor (Megatron)       all-reduce in forward and in backward
                            (Shoeybi et al. 2019, section 3)
    tensor with sequence    all-gather and reduce-scatter in forward
                            (Korthikanti et al. 2022, section 4.2.2)
    pipeline                sends and receives outside autograd;
                            inside it they are a ring of context-parallel attention
    expert                  all-to-all of uneven parts; of even ones it may be Ulysses' too

A description names the dimension where there is one. What neither says is "not known".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from stepscope.analyses.collectives.group_families import Families, Family
from stepscope.analyses.grouping import distinct
from stepscope.core.comms import BACKWARD, FORWARD, OPTIMIZER, CollectiveRecords, Dimension
from stepscope.core.trace import NONE

DESCRIBED = (
    (
        "data",
        re.compile(
            r"data_parallel|(^|_)(dp|ddp|fsdp|hsdp)($|_)|dp_(shard|replicate)|data_modulo|zero",
            re.IGNORECASE,
        ),
    ),
    ("pipeline", re.compile(r"pipeline|(^|_)pp($|_)|embedding_group", re.IGNORECASE)),
    ("expert", re.compile(r"expert|(^|_)(ep|moe)($|_)", re.IGNORECASE)),
    ("tensor", re.compile(r"tensor|(^|_)tp($|_)|sequence_parallel|(^|_)sp($|_)", re.IGNORECASE)),
    ("context", re.compile(r"context|ulysses|(^|_)cp($|_)|ring_attention", re.IGNORECASE)),
)
"""What a description says (Megatron's TENSOR_MODEL_PARALLEL_GROUP,
DeviceMesh's mesh_tp); the first that fits."""
SMALL_BYTES = 1 << 16
"""Smaller messages are counters, losses and norms:
they say nothing about the shape where there are larger ones."""
UNEVEN = 1.05
EXCEPTION = 0.05
"""Share of an operation's calls: fewer of them in one part of the step are no pattern."""
P2P = frozenset({"send", "recv", "sendrecv"})
PARTS = (NONE, FORWARD, BACKWARD, OPTIMIZER)
NAMES = {FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "the optimizer"}

Pattern = Counter[tuple[str, int]]
"""How often each operation ran in each part of the steps."""


def parallel_shape(
    rank_records: Sequence[CollectiveRecords], families: Families
) -> list[tuple[Family, Dimension]]:
    """A dimension for each family of groups that divides the job;
    groups of one rank and mere broadcasts do not."""
    patterns, uneven = _patterns(rank_records, families)
    dimensions = []
    for family, groups in families.groups.items():
        pattern = patterns.get(family, Counter())
        if family.num_ranks == 1 or not (pattern or family.description):
            continue
        kind, scheme, because = _judged(family, pattern, uneven.get(family, False))
        if kind is not None:
            dimension = Dimension(
                kind=kind,
                scheme=scheme,
                size=family.num_ranks,
                num_groups=len(groups),
                group=families.label(family),
                because=because,
            )
            dimensions.append((family, dimension))
    return sorted(dimensions, key=lambda row: (-(row[1].size or 0), row[1].kind))


def _patterns(
    rank_records: Sequence[CollectiveRecords], families: Families
) -> tuple[dict[Family, Pattern], dict[Family, bool]]:
    patterns: dict[Family, Pattern] = {}
    uneven: dict[Family, bool] = {}
    for records in rank_records:
        if not len(records):
            continue
        homes = [families.of(kind) for kind in records.kinds]
        large = {
            home
            for home, kind in zip(homes, records.kinds, strict=True)
            if (kind.bytes or 0) >= SMALL_BYTES
        }
        part = records.phase if len(records.phase) else np.full(len(records), NONE, np.int64)
        count = np.bincount(
            records.kind * len(PARTS) + part - NONE, minlength=len(PARTS) * len(records.kinds)
        )
        for code in np.flatnonzero(count).tolist():
            which, phase, times = code // len(PARTS), code % len(PARTS) + NONE, int(count[code])
            kind, home = records.kinds[which], homes[which]
            if kind.op in ("broadcast", "barrier", "other") or not (kind.group or home.num_ranks):
                continue
            if home not in large or kind.bytes is None or kind.bytes >= SMALL_BYTES:
                patterns.setdefault(home, Counter())[kind.op, phase] += times
        if len(records.unevenness):
            for which in distinct(records.kind[records.unevenness > UNEVEN]).tolist():
                uneven[homes[which]] = True
    return patterns, uneven


def _judged(family: Family, pattern: Pattern, uneven: bool) -> tuple[str | None, str | None, str]:
    """Kind, scheme and reason; no kind when the groups do not divide the job."""
    described = next((kind for kind, words in DESCRIBED if words.search(family.description)), None)
    kind, scheme, because = _by_pattern(pattern, uneven) if pattern else (None, None, "")
    if described is not None:
        if described == "expert" and "data" in family.description.lower():
            described = "data"
        if kind != described:
            scheme = None
        described_text = f"its groups are called {family.description}"
        return (
            described,
            scheme,
            f"{described_text}; {because}" if because and kind == described else described_text,
        )
    return kind, scheme, because


def _by_pattern(pattern: Pattern, uneven: bool) -> tuple[str, str | None, str]:
    pattern = _regular(pattern)

    def parts(*ops: str) -> set[int]:
        return {phase for (op, phase) in pattern if op in ops and phase != NONE}

    reason = _pattern_text(pattern)
    p2p, exchange = parts(*P2P), parts("all_to_all")
    gather, scatter, reduce = parts("all_gather"), parts("reduce_scatter"), parts("all_reduce")
    if all(phase == NONE for _, phase in pattern):
        return "not known", None, f"{reason}, but forward and backward cannot be distinguished"
    if p2p and not (gather or scatter or reduce or exchange):
        if BACKWARD in p2p:
            return "context", "ring attention", f"{reason}: autograd itself sends"
        return "pipeline", None, reason
    if exchange:
        if uneven:
            return "expert", None, f"{reason}, in uneven parts"
        return "not known", None, f"{reason}: experts, or attention by Ulysses"
    if scatter or gather:
        return _sharded(gather, scatter, reason)
    if reduce == {BACKWARD}:
        return "data", "DDP", reason
    if FORWARD in reduce and BACKWARD in reduce:
        return "tensor", "Megatron", reason
    return "not known", None, reason


def _regular(pattern: Pattern) -> Pattern:
    """Pattern without the parts of a step in which an operation is an exception."""
    total: Counter[str] = Counter()
    for (op, _), times in pattern.items():
        total[op] += times
    return Counter(
        {
            (op, phase): times
            for (op, phase), times in pattern.items()
            if times >= EXCEPTION * total[op]
        }
    )


def _sharded(gather: set[int], scatter: set[int], reason: str) -> tuple[str, str | None, str]:
    if FORWARD in scatter and FORWARD in gather:
        return "tensor", "with sequence parallelism", reason
    if scatter == {BACKWARD} and FORWARD in gather:
        return (
            "data",
            "FSDP (ZeRO-3)" if BACKWARD in gather else "FSDP without resharding (ZeRO-2)",
            reason,
        )
    if scatter == {BACKWARD} and OPTIMIZER in gather:
        return "data", "ZeRO-1/2", reason
    return "not known", None, reason


def _pattern_text(pattern: Pattern) -> str:
    """all_gather in forward and backward, reduce_scatter in backward."""
    ops: dict[str, list[str]] = {}
    for op, phase in sorted(pattern):
        if phase != NONE or not any(o == op and p != NONE for o, p in pattern):
            ops.setdefault(op, []).append(NAMES.get(phase, "a part not known"))
    return ", ".join(f"{op} in {' and '.join(where)}" for op, where in ops.items())
