"""A model without a device computes in double precision.

What it sees: on a run without a device, operators that read tensors of 64-bit numbers, large enough
that computing on them is what they take their time for.

Why it costs: a number of 64 bits takes twice the memory's bandwidth and half of a vector register's
lanes: products and pointwise operators take about twice as long as in fp32. It is mostly an
accident: numpy makes float64 unless told, `torch.from_numpy` keeps it, and `model.double()` makes
the error go away that this leads to.

Evidence it needs: shapes (`record_shapes=True`), which have the types too; `stepscope run` records
them.

What to do: `torch.from_numpy(x).float()` or `dtype=np.float32` where the data are made, no
`model.double()` and no `torch.set_default_dtype(torch.float64)`. Where the numbers need 64 bits
(second derivatives, solvers), keep them for that part.

Example: an MLP of 0.8 million parameters trained by Adam on float64 features took 49.7 ms of a core
a step; 27.9 in fp32.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import is_among
from stepscope.core.trace import Int64, Kind, Trace
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import ranges_of, with_shorter_operators
from stepscope.workload.inputs import inputs_of
from stepscope.workload.operands import operands

CODE = "double-precision"
BOUND = "compute"


class Policy(Struct, frozen=True, kw_only=True):
    spared: float = 0.5
    """Share of such an operator's time that fp32 spares: half the bytes, twice the numbers in a
    register."""
    cautious: float = 0.3
    least_numbers: int = 4096
    """Elements of the largest tensor that an operator reads (32 KiB, a core's nearest cache): with
    fewer, being called is what takes its time."""
    least_share: float = 0.25
    """Share of the step in such operators below which nothing is reported: features that one
    operator converts are not meant."""


POLICY = Policy()


def propose(case: Case) -> Proposal | None:
    """The same operators over numbers half as wide."""
    graph, events = case.graph, _over_doubles(case.context.trace)
    if not len(events):
        return None
    ranges = ranges_of(case, events)
    gone = with_shorter_operators(case, graph, ranges, 1.0)
    spent_ms = float((graph.task_ns - gone.task_ns).sum()) / max(graph.num_steps, 1) / 1e6
    if spent_ms * 1e6 < POLICY.least_share * case.step_interval_ns:
        return None
    return Proposal(
        summary=f"The model computes in double precision: {spent_ms:.1f} ms a step in operators "
        "over 64-bit numbers.",
        action="fp32: torch.from_numpy(x).float() or dtype=np.float32 where the data are made, no "
        "model.double(), no torch.set_default_dtype(torch.float64)",
        evidence=(
            (
                f"{len(events) / max(graph.num_steps, 1):.0f} operators a step read "
                f"{POLICY.least_numbers} and more of them"
            ),
        ),
        events=events,
        change=lambda before: with_shorter_operators(case, before, ranges, POLICY.spared),
        cautious=lambda before: with_shorter_operators(case, before, ranges, POLICY.cautious),
        changes_numerics=True,
    )


def _over_doubles(trace: Trace) -> Int64:
    """Operators that read many numbers of 64 bits."""
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & (trace.detail >= 0))
    details, first = np.unique(trace.detail[ops], return_index=True)
    wide = np.array([_reads_doubles(trace, op) for op in ops[first].tolist()], np.bool_)
    chosen: Int64 = ops[is_among(trace.detail[ops], details[wide])] if len(ops) else ops
    return chosen


def _reads_doubles(trace: Trace, op: int) -> bool:
    inputs = inputs_of(trace, op)
    return inputs is not None and any(
        tensor.dtype == "fp64" and tensor.numel >= POLICY.least_numbers
        for tensor in operands(inputs, range(len(inputs.dims)))
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
