"""Compiled code is compiled again in steady steps.

What it sees: spans of TorchDynamo, Inductor or Triton compiling inside measured steps, not before
them.

Why it costs: torch.compile specializes on shapes, strides and Python values. One that changes from
step to step fails a guard and the whole frame is compiled anew, for seconds, while the device
stands idle.

Evidence it needs: the compiler's own marks, which the profiler records by itself.
`TORCH_LOGS=recompiles` or `TORCH_TRACE`, given beside the trace or alone, names the function and
the guard that failed, and the functions that were given up as a limit was hit. A run recorded by
`stepscope run` counts them: a function that is compiled 8 times (`recompile_limit`) runs eagerly
from then on, and no step shows a compilation any more.

What to do: `torch.compile(dynamic=True)` or `torch._dynamo.mark_dynamic(t, dim)` for the size that
changes; pad or bucket lengths; keep Python numbers that change out of compiled code.

Example: fourteen sequence lengths under `dynamic=False` took 3.3 s a step; with `dynamic=True` it
was 11 ms.
"""

from __future__ import annotations

from stepscope.analyses.host.activity import COMPILE_RANGE
from stepscope.core.diagnosis import Abstention
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.recordings.compiler import FEWER_COMPILES
from stepscope.core.run import RunFacts
from stepscope.core.trace import Kind
from stepscope.replay.changes import without_host_parts
from stepscope.replay.graph import Graph
from stepscope.replay.profiler_cost import USUAL_COST_NS, without_cost
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.between_operators import per_step_ns
from stepscope.rules.shared.host_ranges import named_events

CODE = "recompilation"
BOUND = "host"


def propose(case: Case) -> Proposal | Abstention | None:
    """Take the compiling out of the steps."""
    if not case.facts.host.compile:
        return None
    compiling_ns = per_step_ns(case.graph, case.graph.call_parts["compile"])
    if compiling_ns == 0:
        return None
    rows = case.facts.host.compile
    return Proposal(
        summary=f"The model is compiled again while it trains: {compiling_ns / 1e6:.1f} ms a step.",
        action=FEWER_COMPILES,
        evidence=tuple(
            f"{row.count} x {row.name}, the longest {row.longest_ns / 1e6:.1f} ms"
            for row in rows[:3]
        ),
        events=named_events(case, COMPILE_RANGE, Kind.OP, Kind.MARK, Kind.PYTHON),
        change=lambda graph: _compiled_once(case, graph),
        cautious=lambda graph: without_host_parts(graph, "compile"),
        hopeful=lambda graph: _compiled_once(case, graph),
    )


def _compiled_once(case: Case, graph: Graph) -> Graph:
    """No compiling; and where a step of seconds hid what the profiler cost the host, its usual cost
    taken off the rest."""
    left = without_host_parts(graph, "compile")
    is_fitted = case.facts.replayed is None or case.facts.replayed.cost_ns > 0
    return left if is_fitted else without_cost(left, USUAL_COST_NS)


def advise_run(run: RunFacts) -> Advice | None:
    """Advise by the compiler's counts over the whole run: what it gave up runs as it is written."""
    given_up = [rank for rank in run.ranks if rank.num_given_up]
    if not given_up:
        return None
    worst = max(given_up, key=lambda rank: rank.num_given_up or 0)
    num, again = worst.num_given_up, worst.num_recompiles
    which = "A function was" if num == 1 else f"{num} functions were"
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{which} given up at torch._dynamo's recompile_limit: calls that fit no compiled "
        "version run eagerly.",
        action=FEWER_COMPILES,
        evidence=(f"rank {worst.rank}: compiled again {again} times, given up {num}",),
        ranks=tuple(rank.rank for rank in given_up) if len(given_up) < len(run.ranks) else (),
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose, advise_run=advise_run)
