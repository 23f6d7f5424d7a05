"""The tasks of a graph: who launched each, with which inputs, and what work it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from stepscope.analyses.rank_context import RankContext
from stepscope.core.trace import NONE, Bool, Float64, Int64, OpInputs, Trace
from stepscope.replay.graph import Graph
from stepscope.workload.model import ParsedInputs, Work, parse_inputs, work_of
from stepscope.workload.operands import Operand

Column = TypeVar("Column", Bool, Float64, Int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTable:
    """One entry per task of the graph; NONE and NaN where not known."""

    trace: Trace
    op: Int64
    """The innermost operator that launched it."""
    home: Int64
    """That operator, or the forward operator that backward work belongs to."""
    backward: Bool
    optimizer: Bool
    recomputed: Bool
    category: tuple[str, ...]
    """"" for what is no kernel."""
    precision: tuple[str, ...]
    tensor_core: Int64
    flops: Float64
    bytes: Float64
    leads: Bool
    """Carries the work of its operator call."""
    is_matrix: Bool
    tensors: dict[tuple[int, int], tuple[list[Operand], float]] = field(default_factory=dict)
    """By operator and inputs: what it reads and how many bytes it writes, as far as a rule has
    asked."""
    _inputs: dict[int, ParsedInputs | None] = field(default_factory=dict)
    _works: dict[tuple[int, int], Work | None] = field(default_factory=dict)

    def of_category(self, *names: str) -> Bool:
        return np.array([category in names for category in self.category], np.bool_)

    def op_name(self, op: int) -> str:
        return "" if op == NONE else self.trace.names[self.trace.name[op]]

    def inputs(self, op: int) -> ParsedInputs | None:
        """The operator's recorded inputs."""
        detail = NONE if op == NONE else int(self.trace.detail[op])
        if detail not in self._inputs:
            recorded = None if detail == NONE else self.trace.details[detail]
            self._inputs[detail] = (
                parse_inputs(recorded) if isinstance(recorded, OpInputs) else None
            )
        return self._inputs[detail]

    def key(self, op: int) -> tuple[int, int]:
        """The operator's name and inputs: what it does."""
        return int(self.trace.name[op]), int(self.trace.detail[op])

    def work(self, op: int) -> Work | None:
        """The operator's work."""
        if op == NONE:
            return None
        key = self.key(op)
        if key not in self._works:
            inputs = self.inputs(op)
            self._works[key] = None if inputs is None else work_of(self.op_name(op), inputs)
        return self._works[key]


def task_table(context: RankContext, graph: Graph) -> TaskTable:
    """Look every task up among the charges and the kernels' work."""
    tasks, charges, kernels = graph.task_event, context.charges, context.kernels
    charged = np.searchsorted(charges.work, tasks)
    row = np.minimum(np.searchsorted(kernels.kernels, tasks), max(len(kernels.kernels) - 1, 0))

    def of_tasks(values: Column, missing: float) -> Column:
        if not len(kernels.kernels):
            return np.full(len(tasks), missing)
        return np.where(kernels.kernels[row] == tasks, values[row], missing)

    category, precision = of_tasks(kernels.category, NONE), of_tasks(kernels.precision, NONE)
    return TaskTable(
        trace=context.trace,
        op=charges.op[charged],
        home=charges.home[charged],
        backward=charges.backward[charged],
        optimizer=charges.optimizer[charged],
        recomputed=charges.recomputed[charged],
        category=tuple(
            "" if code == NONE else kernels.categories[code] for code in category.tolist()
        ),
        precision=tuple(
            "" if code == NONE else kernels.precisions[code] for code in precision.tolist()
        ),
        tensor_core=of_tasks(kernels.tensor_core, NONE),
        flops=of_tasks(kernels.hardware_flops, np.nan),
        bytes=of_tasks(kernels.bytes, np.nan),
        leads=of_tasks(kernels.group_ns, 0) > 0,
        is_matrix=of_tasks(kernels.is_matrix, False),
    )


def per_step_ms(graph: Graph, mask: Bool) -> float:
    """Device time of the masked tasks, a step."""
    return float(graph.task_ns[mask].sum()) / max(graph.num_steps, 1) / 1e6
