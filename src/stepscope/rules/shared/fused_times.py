"""How long runs of small operators take as one kernel each: as their compiled chain was timed, or
by what they move and compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.analyses.grouping import distinct, is_among
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.trace import Float64
from stepscope.replay.changes import Change
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.chains import timed_runs
from stepscope.rules.shared.fusible_runs import (
    FusibleRuns,
    picked_in_place,
    prepared_to_add,
    runs_of,
    sums_by,
)
from stepscope.rules.shared.rates import STREAM_FIXED_NS, STREAM_SHARE, fixed_ns

BATCH_NORM_SHARE = 0.7
"""Share of a stream's rate reached by compiled batch norms, which sum over all dimensions but the
innermost (resnet50 in channels_last on an H200: 1.44 times as fast compiled)."""


def fused_ns(
    runs: FusibleRuns, roofs: DevicePeaks, share: float | Float64, *, again: bool = True
) -> Float64:
    """One kernel for each run, of whose inputs this fraction is read. It moves bytes no
    faster than its parts do now. `again`: forward runs may be done again rather than read."""
    vector = roofs.peak_flops("fp32", matrix=False) or float("inf")
    rate = roofs.spec.bandwidth_bytes_per_s.value * 1e-9 * roofs.stream_share(STREAM_SHARE)
    rates = np.where(
        runs.over_batches,
        rate * BATCH_NORM_SHARE,
        np.minimum(rate, np.maximum(runs.traffic, 1.0) / np.maximum(runs.now_ns, 1.0)),
    )

    def time(size: Float64, instructions: Float64) -> Float64:
        return fixed_ns(roofs, STREAM_FIXED_NS) + np.maximum(
            size / rates, instructions / (vector / 2) * 1e9
        )

    def of_homes(values: Float64) -> Float64:
        return sums_by(runs.child, values[runs.home], len(runs.lead))

    reads = runs.comes_in + share * runs.may_come_in
    alone = time(reads + runs.goes_out, runs.instructions)
    if not again:
        return alone
    # Or the forward runs are done again, from what they read.
    redone = time(
        runs.grad_in + of_homes(reads) + runs.goes_out,
        runs.instructions + of_homes(runs.instructions),
    )
    has_home = np.bincount(runs.child, minlength=len(runs.lead)) > 0
    return np.where(has_home, np.minimum(alone, redone), alone)


def _with_timed(case: Case, runs: FusibleRuns, roofs: DevicePeaks, modelled: Float64) -> Float64:
    """The timed ones in place of the model's, which tells how much more or less comes in than into
    the chains that were timed, and what is done again in place of being read."""
    timed = timed_runs(case)
    if np.isnan(timed.ns).all():
        return modelled
    built = fused_ns(runs, roofs, timed.share, again=False)
    return np.where(np.isnan(timed.ns), modelled, timed.ns * modelled / built)


@once_a_case
def timed_share(case: Case) -> float:
    """Share of the time of operators that one kernel could replace which was timed so."""
    runs = runs_of(case)
    if runs is None or not runs.several.any():
        return 0.0
    known = ~np.isnan(timed_runs(case).ns)
    return float(runs.now_ns[known].sum() / runs.now_ns[runs.several].sum())


@once_a_case
def fused_tasks(case: Case, share: float) -> Change:
    """Each run that gains by it is one kernel, of whose inputs this fraction is read; none
    where the device's rates are not known."""
    runs, roofs = runs_of(case), case.context.roofs
    if runs is None or roofs is None:
        return lambda before: before
    new_ns = _with_timed(case, runs, roofs, fused_ns(runs, roofs, share))
    gains = runs.several & (new_ns < runs.now_ns)
    leads, new_ns = runs.lead[gains], new_ns[gains]
    tasks = runs.tasks_of(gains)
    left = tasks[~is_among(tasks, leads)]
    if case.context.trace.meta.has_shapes:
        prepared = distinct(prepared_to_add(case))
        prepared = prepared[~is_among(prepared, leads)]
        left = np.concatenate((left, picked_in_place(case), prepared))

    def change(before: Graph) -> Graph:
        task_ns, gaps = before.task_ns.copy(), before.task_gap_ns.copy()
        task_ns[leads], task_ns[left], gaps[left] = new_ns, 0.0, 0.0
        return replace(before, task_ns=task_ns, task_gap_ns=gaps)

    return change
