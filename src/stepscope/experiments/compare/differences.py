"""Where two runs differ: accounts whose rows sum to the whole difference, and the work that
changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from stepscope.core.experiments.comparison import OVERLAP, Account, Changed, DeviceChange, Row, Work
from stepscope.experiments.compare.pairing import Pair, pair
from stepscope.experiments.compare.pieces import Detail, Pieces, Share, WorkKey, plain_name

MAX_ROWS = 40
"""Rows kept of each account; the rest is one row."""
MAX_NAMES = 8
"""Operators, kernels and shapes named for one side of a pair."""
MIN_SHARE = 0.0005
"""Share of the busy time below which work that merely took another time is left to the rest."""
MIN_TIME = 0.02
"""A change of a pair's time below this share of it is none; recorded kernels repeat to about a
hundredth."""


def account(
    before: Mapping[str, float],
    after: Mapping[str, float],
    totals: tuple[int, int] | None = None,
) -> Account:
    """The rows with the largest changes; the rest takes what they leave of the totals, roundings
    too."""
    names = dict.fromkeys((*before, *after))
    rows = [
        Row(
            name=name,
            before_ns=round(before[name]) if name in before else None,
            after_ns=round(after[name]) if name in after else None,
        )
        for name in names
    ]
    rows.sort(key=lambda row: (-abs(row.change_ns), -(row.before_ns or 0), row.name))
    kept = rows[:MAX_ROWS]
    first, second = (
        totals if totals is not None else (round(sum(before.values())), round(sum(after.values())))
    )
    rest = Row(
        name="rest",
        before_ns=first - sum(row.before_ns or 0 for row in kept),
        after_ns=second - sum(row.after_ns or 0 for row in kept),
    )
    return Account(
        before_ns=first,
        after_ns=second,
        rows=tuple(kept),
        rest=rest,
        num_left_out=max(0, len(rows) - MAX_ROWS),
    )


def device_accounts(before: Pieces, after: Pieces) -> dict[str, Account]:
    """The busy time by phase, by kind of kernel, by kernel and by module."""
    totals = round(before.busy_ns), round(after.busy_ns)
    splits: list[tuple[str, Callable[[Pieces], dict[str, float]]]] = [("phase", _by_phase)]
    if before.where == "device":
        splits += [("category", _by_category), ("kernel", _by_kernel)]
    if tells_modules(before) and tells_modules(after):
        splits.append(("module", _by_module))
    return {
        by: account(_with_overlap(split, before), _with_overlap(split, after), totals)
        for by, split in splits
    }


def tells_modules(pieces: Pieces) -> bool:
    """Whether stacks were recorded. Beside a run that has none, every module of the other would
    seem to have gone."""
    return any(sort.module for sort in pieces.sorts)


def _with_overlap(split: Callable[[Pieces], dict[str, float]], pieces: Pieces) -> dict[str, float]:
    return split(pieces) | {OVERLAP: pieces.busy_ns - sum(share.ns for share in pieces.shares)}


def _by_phase(pieces: Pieces) -> dict[str, float]:
    return _by_sort(pieces, lambda sort: sort.phase or "not known")


def _by_module(pieces: Pieces) -> dict[str, float]:
    return _by_sort(pieces, lambda sort: sort.module or "in no module")


def _by_sort(pieces: Pieces, name: Callable[[WorkKey], str]) -> dict[str, float]:
    pairs = zip(pieces.sorts, pieces.shares, strict=True)
    return _summed((name(sort), share.ns) for sort, share in pairs)


def _by_category(pieces: Pieces) -> dict[str, float]:
    return _summed(
        (detail.category, detail.share.ns)
        for kernels in pieces.details
        for detail in kernels.values()
    )


def _by_kernel(pieces: Pieces) -> dict[str, float]:
    return _summed(
        (plain_name(name), detail.share.ns)
        for kernels in pieces.details
        for name, detail in kernels.items()
    )


def _summed(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for name, ns in values:
        totals[name] += ns
    return dict(totals)


def device_change(before: Pieces, after: Pieces) -> tuple[DeviceChange, tuple[Changed, ...]]:
    """The busy time by pairs of work, and those that changed. The others are in the rest."""
    least = MIN_SHARE * max(before.busy_ns, after.busy_ns)
    differing = list(_alike(_changed(changed, before, after) for changed in pair(before, after)))
    differing = [
        changed
        for changed in differing
        if changed.how != ("time",) or abs(changed.change_ns) > least
    ]
    differing.sort(key=lambda changed: (-abs(changed.change_ns), -changed.before_ns, changed.name))
    kept = tuple(differing[:MAX_ROWS])
    totals = round(before.busy_ns), round(after.busy_ns)
    overlap = Row(
        name=OVERLAP,
        before_ns=round(before.busy_ns - sum(share.ns for share in before.shares)),
        after_ns=round(after.busy_ns - sum(share.ns for share in after.shares)),
    )
    rest = Row(
        name="rest",
        before_ns=totals[0] - (overlap.before_ns or 0) - sum(changed.before_ns for changed in kept),
        after_ns=totals[1] - (overlap.after_ns or 0) - sum(changed.after_ns for changed in kept),
    )
    change = DeviceChange(
        where=before.where,
        ranks=before.ranks,
        before_ns=totals[0],
        after_ns=totals[1],
        rest=rest,
        overlap=overlap,
    )
    return change, kept


def _alike(made: Iterable[Changed]) -> Iterable[Changed]:
    """Operators that changed, one entry where all shapes of one changed in the same way."""
    groups: dict[tuple[object, ...], list[Changed]] = defaultdict(list)
    for changed in made:
        if changed.how:
            groups[changed.name, changed.phase, changed.how, changed.paired_by].append(changed)
    for group in groups.values():
        modules = {changed.module for changed in group}
        yield replace(
            group[0],
            module=modules.pop() if len(modules) == 1 else None,
            before=_together([changed.before for changed in group]),
            after=_together([changed.after for changed in group]),
        )


def _together(works: Sequence[Work | None]) -> Work | None:
    present = sorted((work for work in works if work is not None), key=lambda work: -work.ns)
    if not present:
        return None

    def names(field: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for work in present for name in getattr(work, field)))[
            :MAX_NAMES
        ]

    return Work(
        ops=names("ops"),
        kernels=names("kernels"),
        shapes=names("shapes"),
        precisions=names("precisions"),
        count=sum(work.count for work in present),
        ns=sum(work.ns for work in present),
    )


def _changed(paired: Pair, before: Pieces, after: Pieces) -> Changed:
    # No operator launched a graph's kernels: kernels are counted on both sides, or a call would
    # stand against its kernels.
    is_by_kernel = paired.paired_by == "kernel"
    first, second = (
        _work(shares, pieces, by_kernel=is_by_kernel)
        for shares, pieces in ((paired.before, before), (paired.after, after))
    )
    # Those of both sides.
    sorts = [
        *(before.sorts[sort] for sort in paired.before),
        *(after.sorts[sort] for sort in paired.after),
    ]
    phases, modules = {sort.phase for sort in sorts}, {sort.module for sort in sorts}
    how = _how(paired, first, second, before, after)
    return Changed(
        name=_launched_name(sorts) if how == ("launcher",) else _name(first, second),
        phase=_only(phases),
        module=modules.pop() if len(modules) == 1 else None,
        how=how,
        paired_by=paired.paired_by,
        before=first,
        after=second,
    )


def _only(phases: set[str | None]) -> str | None:
    """The one phase; a graph's kernels do not tell theirs."""
    stated = phases - {None}
    return stated.pop() if len(stated) == 1 else None


def _launched_name(sorts: Sequence[WorkKey]) -> str:
    """The operators, which one side names."""
    return ", ".join(_few(list(dict.fromkeys(sort.op for sort in sorts if sort.op is not None))))


def _name(before: Work | None, after: Work | None) -> str:
    """The operators of both sides: `aten::mul, aten::add -> triton_poi_fused`."""
    first, second = (
        ", ".join(_few(work.ops)) if work is not None else "" for work in (before, after)
    )
    if not first or not second or first == second:
        return first or second
    return f"{first} -> {second}"


def _few(names: Sequence[str]) -> list[str]:
    return [*names[:4], *([f"{len(names) - 4} more"] if len(names) > 4 else [])]


def _work(shares: Mapping[int, Share], pieces: Pieces, *, by_kernel: bool) -> Work | None:
    if not shares:
        return None
    ops: Counter[str] = Counter()
    shapes: Counter[str] = Counter()
    for sort, share in shares.items():
        ops[pieces.sorts[sort].label] += _weight(share.ns)
        if pieces.sorts[sort].shapes:
            shapes[pieces.sorts[sort].shapes or ""] += _weight(share.ns)
    kernels, precisions = _details(shares, pieces)
    count = sum(share.count for share in shares.values())
    return Work(
        ops=tuple(name for name, _ in ops.most_common(MAX_NAMES)),
        kernels=tuple(name for name, _ in kernels.most_common(MAX_NAMES)),
        shapes=tuple(name for name, _ in shapes.most_common(MAX_NAMES)),
        precisions=tuple(name for name, _ in precisions.most_common()),
        count=_num_kernels(shares, pieces) if by_kernel else count,
        ns=round(sum(share.ns for share in shares.values())),
    )


def _num_kernels(shares: Mapping[int, Share], pieces: Pieces) -> float:
    return sum(detail.share.count for sort in shares for detail in pieces.details[sort].values())


def _weight(ns: float) -> int:
    return round(ns * 1000)


def _details(shares: Mapping[int, Share], pieces: Pieces) -> tuple[Counter[str], Counter[str]]:
    kernels: Counter[str] = Counter()
    precisions: Counter[str] = Counter()
    for sort in shares:
        for name, detail in pieces.details[sort].items():
            kernels[plain_name(name)] += _weight(detail.share.ns)
            if detail.precision is not None:
                precisions[detail.precision] += _weight(detail.share.ns)
    return kernels, precisions


def _how(
    paired: Pair, first: Work | None, second: Work | None, before: Pieces, after: Pieces
) -> tuple[str, ...]:
    """What is different about a pair; empty when nothing is."""
    if second is None:
        return ("went",)
    if first is None:
        return ("came",)
    if paired.paired_by == "kernel":
        return ("launcher",)
    if set(first.ops) != set(second.ops):
        return ("replaced",)
    changes: list[str] = []
    if set(first.precisions) != set(second.precisions):
        changes.append("precision")
    if _shapes(paired.before, before.sorts) != _shapes(paired.after, after.sorts):
        changes.append("shape")
    if abs(first.count - second.count) > 0.01 * max(first.count, second.count):
        changes.append("count")
    if _lasting(paired.before, before.details) != _lasting(paired.after, after.details):
        changes.append("kernels")
    if not changes and abs(second.ns - first.ns) > MIN_TIME * max(first.ns, second.ns):
        changes.append("time")
    return tuple(changes)


def _shapes(shares: Mapping[int, Share], sorts: Sequence[WorkKey]) -> set[str | None]:
    return {sorts[sort].shapes for sort in shares}


def _lasting(shares: Mapping[int, Share], details: Sequence[Mapping[str, Detail]]) -> set[str]:
    """The names of the kernels that matter: one that takes a hundredth of the pair is no change."""
    total = sum(share.ns for share in shares.values())
    spent = _summed(
        (plain_name(name), detail.share.ns)
        for sort in shares
        for name, detail in details[sort].items()
    )
    return {name for name, ns in spent.items() if ns > 0.01 * total}
