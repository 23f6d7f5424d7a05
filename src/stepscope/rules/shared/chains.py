"""Runs of small operators as chains that can be timed: one after the other, and compiled.

A trace has sizes, not addresses: an operator reads what its run last wrote in that size, as
`fusible_runs` has it. Of what is read in a size that the run has read before, and may be the same
tensor or another, every second one is the same; one operator reads no tensor twice.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from msgspec import Struct

from stepscope.core.hardware import OperatorCall
from stepscope.core.trace import Float64
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.fusible_runs import FusibleRuns, runs_of
from stepscope.rules.shared.measured import AS_IS, COMPILED, is_reproduced, probed_time
from stepscope.rules.shared.operator_traffic import FILLING, Tensor, Traffic, bytes_of, traffic_of
from stepscope.rules.task_table import TaskTable
from stepscope.workload.inputs import DTYPES
from stepscope.workload.operands import Operand, is_shape, operand

CHAIN = "chain"


class Policy(Struct, frozen=True, kw_only=True):
    most: int = 12
    """Chains that are asked for: each takes a second or two to compile."""
    least_share: float = 0.01
    """Share of the device's time that all runs of a chain must take."""
    same: float = 1.5
    """Ratio between the recorded time of a chain and the measured one, at most: its operators
    choose no kernels, but find in the cache what others have just written (44 chains in 32
    recordings of an H200: 34 lie within it, the median takes 1.15 of what was recorded)."""
    longest: int = 100
    """Operators: more is no chain of small operations but a model without products."""


POLICY = Policy()


class TimedRuns(Struct, frozen=True, kw_only=True):
    """An entry for each run; NaN where it was not timed."""

    ns: Float64
    """Compiled: the recorded time by the ratio of the two measured ones."""
    share: Float64
    """Fraction of `may_come_in` that was read when the run was timed."""


class Chain(Struct, frozen=True, kw_only=True):
    """Operators that can be timed one after the other."""

    call: OperatorCall
    again_bytes: float
    """Input bytes of a size that was read before."""


@once_a_case
def timed_runs(case: Case) -> TimedRuns:
    """Measured times of the replayed steps' runs."""
    runs, roofs = runs_of(case), case.context.roofs
    assert runs is not None
    ns, share = np.full(len(runs.lead), np.nan), np.full(len(runs.lead), np.nan)
    if roofs is None or roofs.probed is None:
        return TimedRuns(ns=ns, share=share)
    for chain, alike, weight in _heaviest(case, runs):
        now = probed_time(roofs, chain.call, AS_IS, weight)
        after = probed_time(roofs, chain.call, f"{AS_IS}+{COMPILED}", weight)
        if now is None or after is None or not is_reproduced(now, runs.now_ns[alike], POLICY.same):
            continue
        ns[alike] = runs.now_ns[alike] * after.ns / now.ns
        share[alike] = chain.again_bytes / np.maximum(runs.may_come_in[alike], 1.0)
    return TimedRuns(ns=ns, share=np.minimum(share, 1.0))


def _heaviest(case: Case, runs: FusibleRuns) -> list[tuple[Chain, list[int], float]]:
    """Chains with the runs that are such a chain, and the device's time for them in a step."""
    steps, table = max(case.graph.num_steps, 1), case.table
    first = np.flatnonzero(runs.begins_op)
    order = first[np.argsort(runs.run[first], kind="stable")]
    ops = np.split(table.op[runs.task[order]], np.cumsum(runs.num_ops)[:-1])
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for run in np.flatnonzero(runs.several & (runs.num_ops <= POLICY.longest)).tolist():
        key = tuple(table.key(op) for op in ops[run].tolist())
        alike.setdefault(key, []).append(run)
    weights = {key: float(runs.now_ns[same].sum()) / steps for key, same in alike.items()}
    least = POLICY.least_share * float(case.graph.task_ns.sum()) / steps
    found = list[tuple[Chain, list[int], float]]()
    for key in sorted(alike, key=lambda key: -weights[key]):
        if weights[key] < least or len(found) == POLICY.most:
            break
        chain = chain_of(table, ops[alike[key][0]].tolist())
        if chain is not None:
            found.append((chain, alike[key], weights[key]))
    return found


class _Flow(Struct, kw_only=True):
    """What the operators of a chain so far have written and read."""

    live: dict[Tensor, list[int]]
    """Operators whose result is not taken up yet, by size."""
    last: dict[Tensor, str]
    """Name of what was read or written last, by size."""
    given: int = 0
    again: int = 0
    again_bytes: float = 0.0

    def read(self, operand: Operand, beside: Collection[str]) -> str:
        """Where a tensor of this size comes from; not from where those beside it do."""
        tensor = (operand.numel, operand.dtype)
        waiting = self.live.get(tensor)
        if waiting:
            self.last[tensor] = f"@{waiting.pop()}"
            return self.last[tensor]
        before = self.last.get(tensor)
        if before is not None and before not in beside:
            self.again += 1
            if self.again % 2:
                return before
        if before is not None:
            self.again_bytes += bytes_of((operand.stored, operand.dtype))
        self.last[tensor] = self.outside()
        return self.last[tensor]

    def outside(self) -> str:
        self.given += 1
        return f"#{self.given - 1}"

    def write(self, part: int, traffic: Traffic) -> None:
        if traffic.writes is None:
            return
        self.live.setdefault(traffic.writes, []).append(part)
        if traffic.writes_alike:
            self.last[traffic.writes] = f"@{part}"


def chain_of(table: TaskTable, ops: list[int]) -> Chain | None:
    """Chain of these operators, each with where its tensors come from; None where the record does
    not tell."""
    flow, parts = _Flow(live={}, last={}), []
    for place, op in enumerate(ops):
        part = _part(table, op, flow)
        if part is None:
            return None
        flow.write(place, traffic_of(table, op))
        parts.append(part)
    left = sorted(part for waiting in flow.live.values() for part in waiting)
    call = OperatorCall(
        op=CHAIN,
        dims=(),
        types=(),
        strides=(),
        concrete=tuple(str(part) for part in left or [len(parts) - 1]),
        parts=tuple(parts),
    )
    return Chain(call=call, again_bytes=flow.again_bytes)


def _part(table: TaskTable, op: int, flow: _Flow) -> OperatorCall | None:
    inputs, name = table.inputs(op), table.op_name(op)
    if inputs is None or not inputs.strides or not name.startswith("aten::"):
        return None
    if any(not is_shape(dims) for dims in (*inputs.dims, *inputs.strides)):
        return None
    types = tuple(DTYPES.get(each, each) for each in inputs.types)
    known = tuple(DTYPES.values())
    sources = list(inputs.concrete)
    for index, dtype in enumerate(types):
        if dtype not in known:
            continue
        tensor = operand(inputs, index)
        if tensor is None:
            return None
        if index == 0 and FILLING.search(name):
            sources[0] = "empty"
        elif tensor.numel > 1:
            sources[index] = flow.read(tensor, sources)
        else:
            sources[index] = flow.outside()
    return OperatorCall(
        op=name, dims=inputs.dims, types=types, strides=inputs.strides, concrete=tuple(sources)
    )
