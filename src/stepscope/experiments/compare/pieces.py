"""The device's work of a step as pieces that can be paired: which operator launched it, in which
phase, on what shapes, where.

Without a device, the operators of the host are the work. Figures are means over the measured steps
of the ranks read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from stepscope.analyses.collectives.step_parts import step_parts
from stepscope.analyses.grouping import matching
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.host.source_locations import origins
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.projection import BACKWARD_RANGE, MODULE_FRAME, OPTIMIZER_RANGE
from stepscope.core.facts import RankFacts
from stepscope.core.trace import NONE, Int64, Kind, OpInputs
from stepscope.protocol.untrusted import parse_json

PHASES = ("forward", "backward", "optimizer", "recompute")
"""Phases in the order of core.comms' FORWARD, BACKWARD, OPTIMIZER; recompute is of backward:
forward operators run again."""
RECOMPUTE = 3
_NUMBERED = re.compile(
    r"^(?:triton_\w*?|(?:CompiledFunction|Torch-Compiled Region|## Call CompiledFxGraph).*)$"
)
_GIVEN = re.compile(r"(?:_\d{1,20}){1,20}$|[: ]{1,20}\d{1,20}/\d{1,20}$| \w{20,200}(?= ##$)")
"""Bounded: a stranger's name may repeat any part of it, and an end that is missing would be looked
for from every place on."""


class WorkKey(Struct, frozen=True, kw_only=True):
    """What calls that are alike have in common."""

    phase: str | None
    op: str | None
    """The innermost operator; None where none launched it, and then `kernel` tells sorts apart."""
    kernel: str | None
    home: str | None
    """The forward operator that backward work belongs to."""
    shapes: str | None
    module: str | None
    collective: bool = False

    @property
    def label(self) -> str:
        return self.op or self.kernel or "(no name)"


@dataclass(slots=True, kw_only=True)
class Share:
    """How much there is of a sort, a step."""

    count: float = 0.0
    ns: float = 0.0

    def add(self, other: Share) -> None:
        self.count += other.count
        self.ns += other.ns


@dataclass(slots=True, kw_only=True)
class Detail:
    """One kernel of a sort."""

    category: str
    precision: str | None
    share: Share


class Pieces(Struct, frozen=True, kw_only=True):
    """The work of one run's step."""

    where: str
    sorts: tuple[WorkKey, ...]
    details: tuple[dict[str, Detail], ...]
    """Kernels of each sort by name; empty on the host."""
    calls: tuple[tuple[int, float], ...]
    """Calls in order: the sort of each and its time, in a step's nanoseconds. Empty where the order
    is not known."""
    each: float
    """Calls a step that one of `calls` stands for."""
    shares: tuple[Share, ...]
    """Shares of each sort, all of it."""
    busy_ns: float
    ranks: tuple[int, ...]


def plain_name(name: str) -> str:
    """A name without the numbers that a compiler gives anew each time: `triton_poi_fused_add_3` is
    `triton_poi_fused_add`."""
    return _GIVEN.sub("", name) if _NUMBERED.match(name) else name


def join(parts: Sequence[Pieces]) -> Pieces | None:
    """The mean over ranks."""
    if not parts:
        return None
    num = len(parts)
    sorts: dict[WorkKey, int] = {}
    shares: list[Share] = []
    details: list[dict[str, Detail]] = []
    calls: list[tuple[int, float]] = []
    for part in parts:
        codes = []
        for sort, share, kernels in zip(part.sorts, part.shares, part.details, strict=True):
            code = sorts.setdefault(sort, len(sorts))
            if code == len(shares):
                shares.append(Share())
                details.append({})
            shares[code].add(Share(count=share.count / num, ns=share.ns / num))
            for name, detail in kernels.items():
                mine = details[code].setdefault(
                    name,
                    Detail(category=detail.category, precision=detail.precision, share=Share()),
                )
                mine.share.add(Share(count=detail.share.count / num, ns=detail.share.ns / num))
            codes.append(code)
        calls += [(codes[sort], ns / num) for sort, ns in part.calls]
    return Pieces(
        where=parts[0].where,
        sorts=tuple(sorts),
        details=tuple(details),
        calls=tuple(calls),
        each=parts[0].each / num,
        shares=tuple(shares),
        busy_ns=sum(part.busy_ns for part in parts) / num,
        ranks=tuple(rank for part in parts for rank in part.ranks),
    )


def pieces_of(context: RankContext, facts: RankFacts) -> Pieces | None:
    """One rank's pieces, from its trace; None where no step was measured."""
    num = len(facts.steps.windows)
    if num == 0 or facts.partition is None:
        return None
    if facts.steps.where == "device":
        return _on_device(context, facts, num)
    return _on_host(context, facts, num)


def _on_device(context: RankContext, facts: RankFacts, num: int) -> Pieces:
    trace, charges = context.trace, context.charges
    low, high = context.window
    inside = (trace.start_ns[charges.work] >= low) & (trace.start_ns[charges.work] < high)
    work, op, home = charges.work[inside], charges.op[inside], charges.home[inside]
    launch = context.links.launch[work]
    moment = np.where(launch == NONE, trace.start_ns[work], trace.start_ns[np.maximum(launch, 0)])
    order = np.argsort(moment, kind="stable")
    kernel_at = {event: index for index, event in enumerate(context.kernels.kernels.tolist())}
    rows = zip(
        work[order].tolist(),
        op[order].tolist(),
        home[order].tolist(),
        np.where(charges.recomputed[inside], RECOMPUTE, step_parts(context, work))[order].tolist(),
        _modules(context, work)[order].tolist(),
        strict=True,
    )
    table = _Table(context, num)
    for event, at, from_op, phase, module in rows:
        index = kernel_at.get(event)
        table.add(event, at, from_op, phase, module, index)
    return table.pieces("device", sum(facts.busy_ns) / num, facts.rank)


def _on_host(context: RankContext, facts: RankFacts, num: int) -> Pieces:
    """Every operator's own time, without those that it called."""
    trace, parent = context.trace, context.links.parent
    low, high = context.cut.host_window
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & (trace.start_ns >= low) & (trace.start_ns < high))
    own = trace.dur_ns.copy()
    nested = parent[ops] != NONE
    np.subtract.at(own, parent[ops][nested], trace.dur_ns[ops[nested]])
    backward = ancestor_with(parent, ops, matching(trace, BACKWARD_RANGE)) != NONE
    optimizer = ancestor_with(parent, ops, matching(trace, OPTIMIZER_RANGE)) != NONE
    has_phases = bool(backward.any() or optimizer.any())
    phase = (
        np.where(optimizer, 2, np.where(backward, 1, 0)) if has_phases else np.full(len(ops), NONE)
    )
    table = _Table(context, num)
    for event, step_part, ns in zip(
        ops.tolist(), phase.tolist(), np.maximum(own[ops], 0).tolist(), strict=True
    ):
        table.add_op(event, step_part, ns)
    assert facts.partition is not None
    busy = sum(facts.partition.parts["compute"]) + sum(facts.partition.parts["comms_transfer"])
    return table.pieces("host", busy / num, facts.rank)


def _modules(context: RankContext, work: Int64) -> Int64:
    stacks = context.stacks
    return np.full(len(work), NONE, np.int64) if stacks is None else origins(stacks, work).module


class _Table:
    """Collects work, call by call."""

    def __init__(self, context: RankContext, num_steps: int) -> None:
        self._context, self._num = context, num_steps
        self._sorts: dict[WorkKey, int] = {}
        self._shares: list[Share] = []
        self._details: list[dict[str, Detail]] = []
        self._calls: list[tuple[int, float]] = []
        self._call_of: dict[int, int] = {}
        self._known: dict[tuple[int, int, int, int, int, int, bool], int] = {}
        self._shapes: dict[int, str | None] = {}

    def add(
        self, event: int, op: int, home: int, phase: int, module: int, kernel: int | None
    ) -> None:
        """One piece of device work; `kernel` is its place among the kernels, None for a copy or a
        set."""
        trace, work = self._context.trace, self._context.kernels
        name, ns = trace.names[trace.name[event]], int(trace.dur_ns[event]) / self._num
        code = self._code_of(event, op, NONE if home == op else home, phase, module)
        is_first = op == NONE or op not in self._call_of
        self._shares[code].add(Share(count=is_first / self._num, ns=ns))
        category, precision = "copy", None
        if kernel is not None:
            category = work.categories[work.category[kernel]]
            if work.precision[kernel] != NONE:
                precision = work.precisions[work.precision[kernel]]
        detail = self._details[code].setdefault(
            name, Detail(category=category, precision=precision, share=Share())
        )
        detail.share.add(Share(count=1 / self._num, ns=ns))
        if is_first:
            self._call_of[op] = len(self._calls)
            self._calls.append((code, ns))
        else:
            call = self._call_of[op]
            # An operator's kernels may be of several sorts (a copy beside a collective): each is
            # then a call of its own.
            if self._calls[call][0] == code:
                self._calls[call] = (code, self._calls[call][1] + ns)
            else:
                self._shares[code].count += 1 / self._num
                self._calls.append((code, ns))

    def _code_of(self, event: int, op: int, home: int, phase: int, module: int) -> int:
        """The sort of a piece of device work, made once for all that have the same names and
        inputs."""
        trace = self._context.trace
        named = NONE if op == NONE else trace.name.item(op)
        key = (
            phase,
            trace.name.item(event) if op == NONE else NONE,
            named,
            NONE if op == NONE else trace.detail.item(op),
            NONE if home == NONE else trace.name.item(home),
            NONE if module == NONE else trace.name.item(module),
            self._context.collective.item(event),
        )
        if key not in self._known:
            names = trace.names
            self._known[key] = self._code(
                WorkKey(
                    phase=None if phase == NONE else PHASES[phase],
                    op=None if op == NONE else plain_name(names[named]),
                    kernel=plain_name(names[key[1]]) if op == NONE else None,
                    home=None if home == NONE else plain_name(names[key[4]]),
                    shapes=None if op == NONE else self._shapes_of(op),
                    module=None if module == NONE else MODULE_FRAME.sub("", names[key[5]]),
                    collective=key[6],
                )
            )
        return self._known[key]

    def add_op(self, event: int, phase: int, own_ns: int) -> None:
        """One operator of the host."""
        trace = self._context.trace
        sort = WorkKey(
            phase=None if phase == NONE else PHASES[phase],
            op=plain_name(trace.names[trace.name[event]]),
            kernel=None,
            home=None,
            shapes=self._shapes_of(event),
            module=None,
        )
        code = self._code(sort)
        self._shares[code].add(Share(count=1 / self._num, ns=own_ns / self._num))
        self._calls.append((code, own_ns / self._num))

    def pieces(self, where: str, busy_ns: float, rank: int) -> Pieces:
        return Pieces(
            where=where,
            sorts=tuple(self._sorts),
            details=tuple(self._details),
            calls=tuple(self._calls),
            each=1 / self._num,
            shares=tuple(self._shares),
            busy_ns=busy_ns,
            ranks=(rank,),
        )

    def _code(self, sort: WorkKey) -> int:
        code = self._sorts.setdefault(sort, len(self._sorts))
        if code == len(self._shares):
            self._shares.append(Share())
            self._details.append({})
        return code

    def _shapes_of(self, op: int) -> str | None:
        trace = self._context.trace
        detail = int(trace.detail[op])
        if detail not in self._shapes:
            inputs = None if detail == NONE else trace.details[detail]
            self._shapes[detail] = (
                shapes_words(inputs.dims) if isinstance(inputs, OpInputs) and inputs.dims else None
            )
        return self._shapes[detail]


def shapes_words(dims: str) -> str | None:
    """`[[8, 3], [3, 4], []]` as `8x3, 3x4`; None when there is no shape in it."""
    try:
        parsed = parse_json(dims)
    except ValueError:
        return None
    return ", ".join(_shape_words(parsed if isinstance(parsed, list) else [])) or None


def _shape_words(dims: Sequence[object]) -> Iterable[str]:
    for shape in dims:
        if isinstance(shape, list) and shape:
            if all(isinstance(size, int) for size in shape):
                yield "x".join(map(str, shape))
            else:
                yield f"[{', '.join(_shape_words(shape))}]"
