"""The tasks of a graph: who launched each, with which inputs, and what work it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, field

from stepscope.analyses.rank_context import RankContext
from stepscope.core.trace import NONE, Bool, Float64, Int16, Int64, Trace
from stepscope.replay.graph import Graph
from stepscope.workload.inputs import inputs_of
from stepscope.workload.model import ParsedInputs, Work, work_of

Column = TypeVar("Column", Bool, Float64, Int16, Int64)
Answer = TypeVar("Answer")


class TaskTable(Struct, frozen=True, kw_only=True):
    """One entry per task of the graph; NONE and NaN where not known."""

    trace: Trace
    op: Int64
    """The innermost operator that launched it."""
    alike: Int64
    """The place in `example` of that operator's name and inputs."""
    example: Int64
    """An operator of each name and inputs; NONE where no operator launched the task."""
    home: Int64
    """Operator of each task, or the forward operator that backward work belongs to."""
    backward: Bool
    optimizer: Bool
    recomputed: Bool
    category: Int16
    """A place in `categories`; NONE for what is no kernel."""
    categories: tuple[str, ...]
    precision: tuple[str, ...]
    """"" for what is no kernel."""
    tensor_core: Int16
    flops: Float64
    bytes: Float64
    leads: Bool
    """Carries the work of its operator call."""
    is_matrix: Bool
    _inputs: dict[int, ParsedInputs | None] = field(default_factory=dict)
    _works: dict[tuple[int, int], Work | None] = field(default_factory=dict)
    _answers: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def of_category(self, *names: str) -> Bool:
        chosen = np.array([category in names for category in (*self.categories, "")], np.bool_)
        mask: Bool = chosen[self.category]
        return mask

    def where(self, holds: Callable[[int], bool]) -> Bool:
        """Tasks whose operator matches, asked once for each name and inputs, and for NONE."""
        by_example = np.array([holds(op) for op in self.example.tolist()], np.bool_)
        mask: Bool = by_example[self.alike]
        return mask

    def examples(self, mask: Bool) -> list[int]:
        """Last operator of each name and inputs that the masked tasks have, in order."""
        last = np.full(len(self.example), NONE, np.int64)
        np.maximum.at(last, self.alike[mask], self.op[mask])
        ops: list[int] = np.sort(last[last != NONE]).tolist()
        return ops

    def op_name(self, op: int) -> str:
        return "" if op == NONE else self.trace.names[self.trace.name[op]]

    def inputs(self, op: int) -> ParsedInputs | None:
        """The operator's recorded inputs."""
        detail = NONE if op == NONE else int(self.trace.detail[op])
        if detail not in self._inputs:
            self._inputs[detail] = None if detail == NONE else inputs_of(self.trace, op)
        return self._inputs[detail]

    def key(self, op: int) -> tuple[int, int]:
        """The operator's name and inputs: what it does."""
        return int(self.trace.name[op]), int(self.trace.detail[op])

    def once(self, ask: Callable[[TaskTable, int], Answer], op: int) -> Answer:
        """Answer about an operator, asked once for each name and inputs, and for NONE."""
        key = (ask, NONE) if op == NONE else (ask, *self.key(op))
        if key not in self._answers:
            self._answers[key] = ask(self, op)
        answer: Answer = self._answers[key]
        return answer

    def work(self, op: int) -> Work | None:
        """The operator's work."""
        if op == NONE:
            return None
        key = self.key(op)
        if key not in self._works:
            inputs = self.inputs(op)
            self._works[key] = None if inputs is None else work_of(self.op_name(op), inputs)
        return self._works[key]


def task_table(context: RankContext, graph: Graph, trace: Trace) -> TaskTable:
    """Look every task up among the charges and the kernels' work. `trace` has its events at
    least."""
    tasks, charges, kernels = graph.task_event, context.charges, context.kernels
    charged = np.searchsorted(charges.work, tasks)
    row = np.minimum(np.searchsorted(kernels.kernels, tasks), max(len(kernels.kernels) - 1, 0))

    def of_tasks(values: Column, missing: float) -> Column:
        if not len(kernels.kernels):
            return np.full(len(tasks), missing)
        return np.where(kernels.kernels[row] == tasks, values[row], missing)

    precision, op = of_tasks(kernels.precision, NONE), charges.op[charged]
    alike, example = _by_work(trace, op)
    return TaskTable(
        trace=trace,
        op=op,
        alike=alike,
        example=example,
        home=charges.home[charged],
        backward=charges.backward[charged],
        optimizer=charges.optimizer[charged],
        recomputed=charges.recomputed[charged],
        category=of_tasks(kernels.category, NONE),
        categories=kernels.categories,
        precision=tuple(
            "" if code == NONE else kernels.precisions[code] for code in precision.tolist()
        ),
        tensor_core=of_tasks(kernels.tensor_core, NONE),
        flops=of_tasks(kernels.hardware_flops, np.nan),
        bytes=of_tasks(kernels.bytes, np.nan),
        leads=of_tasks(kernels.group_ns, 0) > 0,
        is_matrix=of_tasks(kernels.is_matrix, False),
        _works=kernels.works,
    )


def _by_work(trace: Trace, op: Int64) -> tuple[Int64, Int64]:
    """Number of each task's operator's name and inputs, and an operator of each number."""
    work = trace.name[op].astype(np.int64) * (len(trace.details) + 1) + trace.detail[op]
    _, first, alike = np.unique(
        np.where(op == NONE, np.iinfo(np.int64).min, work), return_index=True, return_inverse=True
    )
    return alike, op[first]


def per_step_ms(graph: Graph, mask: Bool) -> float:
    """Device time of the masked tasks, a step."""
    return float(graph.task_ns[mask].sum()) / max(graph.num_steps, 1) / 1e6
