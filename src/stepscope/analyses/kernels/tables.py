"""Kernel tables: by name and operator, by category,
each with its work and its floor where shapes were recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from stepscope.analyses.grouping import sums
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.analyses.steps.projection import Charges
from stepscope.core.facts import CategoryRow, KernelRow
from stepscope.core.kernel_names import category_of, rounds_to_tf32, uses_tensor_cores
from stepscope.core.trace import NONE, Bool, Int16, Int64, Kind, OpInputs, Trace
from stepscope.workload.model import Work, parse_inputs, work_of

Float64 = NDArray[np.float64]

CATEGORY_OF_WORK = {"batched-gemm": "gemm"}
"""Where an operator's kind of work has another name among the categories."""
TRUSTED_WORK = frozenset({
    "gemm", "batched-gemm", "attention", "convolution", "optimizer", "softmax", "embedding", "norm",
    "pointwise", "reduction",
})  # fmt: skip
"""Kinds of work that name a kernel better than its own name does."""
SIDE_KERNELS = frozenset({"layout", "copy", "sort", "random"})
"""What an operator may launch besides the kernel that does its work."""


class KernelWork(Struct, frozen=True, kw_only=True):
    """Work that each kernel of the measured windows is charged with.

    An operator may launch several kernels; its work goes to the longest of them, so that sums over
    kernels are sums over operators. NaN: not known.
    """

    kernels: Int64
    category: Int16
    """Codes into `categories`."""
    categories: tuple[str, ...]
    precision: Int16
    """Codes into `precisions`; NONE: not known."""
    precisions: tuple[str, ...]
    flops: Float64
    hardware_flops: Float64
    bytes: Float64
    floor_ns: Float64
    tensor_core: Int16
    """1, 0, or NONE where the name does not say."""
    group_ns: Int64
    """Time of all kernels of the same operator call,
    on the one that carries the work; 0 on the others."""
    is_matrix: Bool
    """Carries the work of a GEMM, a convolution or an attention."""
    works: dict[tuple[int, int], Work | None]
    """Work by an operator's name and inputs, as numbers of the trace."""

    def only(self, chosen: slice) -> KernelWork:
        """Work of the chosen kernels, as views."""
        columns: dict[str, Any] = {
            name: value[chosen]
            for name in self.__struct_fields__
            if isinstance(value := getattr(self, name), np.ndarray)
        }
        return replace(self, **columns)

    def of_category(self, *names: str) -> Bool:
        """Mask of the kernels of these categories."""
        mask: Bool = np.isin(
            self.category, [i for i, name in enumerate(self.categories) if name in names]
        )
        return mask


class _KernelKind(Struct, frozen=True, kw_only=True):
    """What all kernels of one name,
    launched by one operator with one set of inputs, have in common."""

    category: str
    tensor_core: int
    precision: str | None
    work: Work | None
    floor_ns: float


def kernel_work(
    trace: Trace, charges: Charges, collective: Bool, roofs: DevicePeaks | None
) -> KernelWork:
    """Work and category of every kernel in the windows."""
    chosen = trace.kind[charges.work] == Kind.KERNEL
    kernels, op = charges.work[chosen], charges.op[chosen]
    by_inputs: dict[tuple[int, int], Work | None] = {}
    kind_of, kinds = _kernel_kinds(trace, kernels, op, collective, roofs, by_inputs)
    categories = tuple(dict.fromkeys(kind.category for kind in kinds))
    precisions = tuple(
        dict.fromkeys(kind.precision for kind in kinds if kind.precision is not None)
    )
    leads = _leads(op, trace.dur_ns[kernels])

    def spread(values: list[float]) -> Float64:
        if not len(kernels):
            return np.empty(0)
        return np.where(leads, np.array(values, np.float64)[kind_of], np.nan)

    def codes(values: list[int]) -> Int16:
        return np.array(values, np.int16)[kind_of] if len(kernels) else np.empty(0, np.int16)

    def figures(name: str) -> Float64:
        return spread([np.nan if work is None else _or_nan(getattr(work, name)) for work in works])

    works = [kind.work if kind.category != "collective" else None for kind in kinds]
    return KernelWork(
        kernels=kernels,
        category=codes([categories.index(kind.category) for kind in kinds]),
        categories=categories,
        precision=codes(
            [NONE if kind.precision is None else precisions.index(kind.precision) for kind in kinds]
        ),
        precisions=precisions,
        flops=figures("flops"),
        hardware_flops=figures("hardware_flops"),
        bytes=figures("bytes"),
        floor_ns=spread([kind.floor_ns for kind in kinds]),
        tensor_core=codes([kind.tensor_core for kind in kinds]),
        group_ns=_group_time(op, trace.dur_ns[kernels], leads),
        is_matrix=leads
        & (codes([int(work is not None and work.is_matrix) for work in works]) == 1),
        works=by_inputs,
    )


def _kernel_kinds(
    trace: Trace,
    kernels: Int64,
    op: Int64,
    collective: Bool,
    roofs: DevicePeaks | None,
    works: dict[tuple[int, int], Work | None],
) -> tuple[Int64, list[_KernelKind]]:
    """The distinct kinds of kernel, and which of them each kernel is. Fills `works`."""
    launcher = np.where(op == NONE, NONE, trace.name[np.maximum(op, 0)]).astype(np.int64)
    inputs = np.where(op == NONE, NONE, trace.detail[np.maximum(op, 0)]).astype(np.int64)
    key = (
        (trace.name[kernels].astype(np.int64) * (len(trace.names) + 1) + launcher + 1)
        * (len(trace.details) + 1)
        + inputs
        + 1
    )
    _, first, kind_of = np.unique(key, return_index=True, return_inverse=True)
    kinds = []
    for index in first.tolist():
        pair = (int(launcher[index]), int(inputs[index]))
        if pair not in works:
            works[pair] = None if NONE in pair else _work(trace, *pair)
        kinds.append(
            _kernel_kind(
                trace.names[trace.name[kernels[index]]],
                works[pair],
                bool(collective[kernels[index]]),
                roofs,
            )
        )
    return kind_of, kinds


def _kernel_kind(
    name: str, work: Work | None, collective: bool, roofs: DevicePeaks | None
) -> _KernelKind:
    precision = work.precision if work is not None else None
    if work is not None and work.is_matrix and precision == "fp32" and rounds_to_tf32(name):
        precision = "tf32"
    floor = np.nan
    if roofs is not None and work is not None and not collective:
        floor = roofs.floor_ns(work.hardware_flops, work.bytes, precision, matrix=work.is_matrix)
    cores = uses_tensor_cores(name)
    return _KernelKind(
        category=_category(category_of(name), work, collective),
        tensor_core=NONE if cores is None else int(cores),
        precision=precision,
        work=work,
        floor_ns=floor,
    )


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def _work(trace: Trace, name: int, detail: int) -> Work | None:
    inputs = trace.details[detail]
    parsed = parse_inputs(inputs) if isinstance(inputs, OpInputs) else None
    return None if parsed is None else work_of(trace.names[name], parsed)


def _leads(op: Int64, dur: Int64) -> Bool:
    """Mask of the kernels that are the longest of their operator call; kernels without an operator
    lead themselves."""
    leads: Bool = op == NONE
    order = np.lexsort((-dur, op))
    first = (
        np.concatenate([[True], np.diff(op[order]) != 0]) if len(order) else np.zeros(0, np.bool_)
    )
    leads[order[first]] = True
    return leads


def _group_time(op: Int64, dur: Int64, leads: Bool) -> Int64:
    groups, inverse = np.unique(op, return_inverse=True)
    totals = sums(inverse, dur, len(groups))
    return np.where(op == NONE, dur, np.where(leads, totals[inverse], 0))


def _category(by_name: str, work: Work | None, collective: bool) -> str:
    if collective:
        return "collective"
    if by_name in SIDE_KERNELS or work is None or work.kind not in TRUSTED_WORK:
        return by_name if by_name != "other" or work is None else work.kind
    return CATEGORY_OF_WORK.get(work.kind, work.kind)


def category_rows(trace: Trace, work: KernelWork) -> tuple[CategoryRow, ...]:
    """Device time per category, the largest first; sums of durations."""
    counts = np.bincount(work.category, minlength=len(work.categories))
    totals = sums(work.category, trace.dur_ns[work.kernels], len(work.categories))
    columns = zip(work.categories, counts.tolist(), totals.tolist(), strict=True)
    rows = (
        CategoryRow(category=name, count=count, total_ns=ns) for name, count, ns in columns if count
    )
    return tuple(sorted(rows, key=lambda row: -row.total_ns))


def kernel_rows(trace: Trace, charges: Charges, work: KernelWork) -> tuple[KernelRow, ...]:
    """One row per kernel name and launching operator, the largest total first."""
    op = charges.op[trace.kind[charges.work] == Kind.KERNEL]
    op_name = np.where(op == NONE, NONE, trace.name[np.maximum(op, 0)]).astype(np.int64)
    key = trace.name[work.kernels].astype(np.int64) * (len(trace.names) + 1) + op_name + 1
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    dur = trace.dur_ns[work.kernels]
    totals = sums(inverse, dur, len(first))
    known = {
        name: _sum_known(inverse, getattr(work, name), len(first))
        for name in ("flops", "bytes", "floor_ns")
    }
    counts = np.bincount(inverse, minlength=len(first))
    precision = np.full(len(first), NONE, np.int64)
    np.maximum.at(precision, inverse, work.precision)
    return tuple(
        KernelRow(
            name=trace.names[trace.name[work.kernels[first[row]]]],
            category=work.categories[work.category[first[row]]],
            op=None if op_name[first[row]] == NONE else trace.names[op_name[first[row]]],
            count=int(counts[row]),
            total_ns=int(totals[row]),
            tensor_core={1: True, 0: False}.get(int(work.tensor_core[first[row]])),
            precision=None if precision[row] == NONE else work.precisions[precision[row]],
            **{name: values[row] for name, values in known.items()},
        )
        for row in np.argsort(-totals, kind="stable").tolist()
    )


def _sum_known(rows: Int64, values: Float64, num_rows: int) -> list[float | None]:
    """Sums per row; None where nothing is known."""
    has_value = ~np.isnan(values)
    sums = np.bincount(rows[has_value], weights=values[has_value], minlength=num_rows)
    is_summed = np.bincount(rows[has_value], minlength=num_rows) > 0
    return [float(total) if summed else None for total, summed in zip(sums, is_summed, strict=True)]
