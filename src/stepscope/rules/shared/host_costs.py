"""What compiled code and CUDA graphs cost the host: as they do on others, or as they were timed on
the run's own kind of machine.

The host that is timed runs small models forward and backward. Their operators are not those of
other models, so that what is taken from it is how it differs from the host that the figures below
are of: where compiled code there costs a third more of an eager operator, it does here. What
launching a graph takes is told in nanoseconds, and taken as it is.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.hardware import OperatorCall
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.measured import AS_IS, probed_time

EAGER, ENTRY, LAUNCHES = "eager-layer", "compiled-entry", "compiled-launches"
GRAPH, GRAPH_KERNEL, CAPTURED = "graph-launch", "graph-kernel", "captured-entry"
ENTRY_TIMES, LAUNCHES_TIMES, CAPTURED_TIMES = 1.70, 0.265, 2.60
"""An eager layer's time, on the host of one H200 (torch 2.11, an eager layer 256 us): what the
figures of `HostCosts` stand beside."""
REFERENCE = {ENTRY: ENTRY_TIMES, LAUNCHES: LAUNCHES_TIMES, CAPTURED: CAPTURED_TIMES}
GRAPH_KERNELS = 4
"""Kernels of the graph of `graph-launch`."""
MAX_OTHER = 3.0
"""Times the reference, or a part of it, beyond which the host was busy with something else."""


class HostCosts(Struct, frozen=True, kw_only=True):
    """Costs in launches of an operator before compiling, of 26 host-bound models before and after
    `torch.compile`, 18 of them in `reduce-overhead` too (H200 hosts, torch 2.11); of graphs in
    nanoseconds. An operator of the small models is 1.35 of those models'."""

    per_launch: float = 0.75
    """Cost of launching a kernel from compiled code."""
    entering: float = 20.0
    """Guards, wrappers and autograd's bookkeeping, forward and backward (recordings of two models
    in `reduce-overhead`)."""
    entering_captured: float = 27.5
    """The same around CUDA graphs: one H200's host took 666 us for a model with one parameter, two
    graphs and an eager sum among it."""
    graph_launch_ns: float = 5_450.0
    """The host's time for one cudaGraphLaunch, besides what grows with the graph (one H200's host,
    timed; while a profiler records it is 10 us and 0.4 more for each kernel)."""
    graph_kernel_ns: float = 13.0
    """What each kernel of the graph adds to it: the same, from 40 kernels to 160."""
    timed: tuple[str, ...] = ()
    """Names of the costs that were timed."""


@once_a_case
def host_costs(case: Case) -> HostCosts:
    """Costs of the run's host, as far as they are known."""
    replayed = case.facts.replayed
    share = 0.0 if replayed is None else replayed.shares.get("host", 0.0)
    weight_ns = share * case.step_interval_ns

    def ns(name: str) -> float | None:
        found = probed_time(case.context.roofs, host_call(name), AS_IS, weight_ns)
        return None if found is None else found.ns

    costs, eager = _of_graphs(HostCosts(), ns(GRAPH), ns(GRAPH_KERNEL)), ns(EAGER)
    times = {name: ns(name) for name in REFERENCE}
    return costs if eager is None else _of_compiled(costs, eager, times)


def host_call(name: str) -> OperatorCall:
    """Call that is timed of the host."""
    return OperatorCall(op=f"host:{name}", dims=(), types=(), strides=(), concrete=())


def timed_words(costs: HostCosts) -> tuple[str, ...]:
    """Words for the evidence; nothing where none was timed."""
    return (f"timed on this host: {', '.join(costs.timed)}",) if costs.timed else ()


def _of_graphs(costs: HostCosts, launch_ns: float | None, kernel_ns: float | None) -> HostCosts:
    if launch_ns is None or kernel_ns is None:
        return costs
    return replace(
        costs,
        graph_launch_ns=max(launch_ns - GRAPH_KERNELS * kernel_ns, 0.0),
        graph_kernel_ns=kernel_ns,
        timed=(*costs.timed, "launching a graph"),
    )


def _of_compiled(costs: HostCosts, eager_ns: float, times: dict[str, float | None]) -> HostCosts:
    """Costs that are as many times those of the reference host as was timed."""
    fields = {
        LAUNCHES: ("per_launch", "a compiled launch"),
        ENTRY: ("entering", "entering compiled code"),
        CAPTURED: ("entering_captured", "entering captured code"),
    }
    for name, (field, words) in fields.items():
        found = times[name]
        if found is None:
            continue
        factor = found / eager_ns / REFERENCE[name]
        if 1 / MAX_OTHER < factor < MAX_OTHER:
            changed = {field: factor * getattr(costs, field)}
            costs = replace(costs, **changed, timed=(*costs.timed, words))
    return costs
