"""Convolutions of fixed shapes run an algorithm that cuDNN guessed, far below the device's rate.

What it sees: convolutions on tensor cores, with the same shapes in every step, that were called
with `benchmark` off and take longer than well-made ones of their FLOPs and bytes.

Why it costs: without benchmarking cuDNN picks an algorithm by rule of thumb. The guess is good on
recent devices: over twelve convolutions in five types and layouts on an H200 the forward pass
gained nothing, all of them together 5 %, single gradients (depthwise, 1 x 1 over large images) two
or three times. Hence a range that begins at nothing.

On ROCm the same flag makes MIOpen try every solver and keep their times in its find-db; without it
MIOpen takes what the find-db holds, or searches among fewer. What a search gains there was not
measured: without the find-db the rule says that it was not tried, and promises nothing. With it
beside the trace, the time of a convolution that runs another solver than the fastest is scaled by
the two solvers' times: derived, not measured in this run, and so the range begins at nothing.
Convolutions that fit several entries, whose kernels fit several solvers, or that take over four
times as long or short as in the find-db, get no figure.

Evidence it needs: shapes and arguments (`record_shapes=True`). On ROCm, MIOpen's find-db of the
same device (`~/.config/miopen/*.ufdb.txt`), given beside the trace; alone it tells for which
convolutions nothing was found but a naive kernel, or one for any size.

What to do: `torch.backends.cudnn.benchmark = True` where shapes hold still: the first step of each
shape tries every algorithm. Leave it off where shapes change, each new one costs that again.
Another algorithm rounds differently. On ROCm a full search without that line is
`MIOPEN_FIND_MODE=NORMAL`; `MIOPEN_FIND_ENFORCE=SEARCH` tunes the solvers too, once, for minutes or
hours.

Example: twelve convolutions in TF32 and channels_last, forward and backward: 7.6 ms, 6.8 ms with
benchmark on; in NCHW nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.diagnosis import Abstention
from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.find_db import Searched, SearchedConvolutions, together_of
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.replay.changes import Change, with_task_ns
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.rule import Rule
from stepscope.rules.shared.rates import matrix_ns
from stepscope.rules.shared.searched_convolutions import ConvolutionLookup, UsedSolver, look_up
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.inputs import flag_at

CODE = "untuned-convolution"
BOUND = "compute"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.02
    """Of the step in such convolutions below which there is nothing to say."""
    unknown_share: float = 0.2
    """Of the step in convolutions, from which it is worth asking for shapes."""
    tuned: float = 0.95
    """Of their time, with the algorithm chosen by trial: what twelve of them took on an H200."""
    best: float = 0.4
    """Of its time, for one convolution: the largest gain measured, 0.34 to 0.48."""
    least_slower: float = 1.1
    """Time of a solver over the fastest's, from which they differ: MIOpen times five launches."""
    most_unlike: float = 4.0
    """Between a kernel's time in the trace and in the find-db, either way, beyond which they are
    not of one device or state. Some versions of MIOpen write 0.4 of the time, for all solvers
    alike."""
    least_generic_share: float = 0.05
    """Of the time of a find-db's convolutions, in those without a solver made for them, from which
    there is a word to say."""
    most_evidence: int = 4


POLICY = Policy()
FLAG_AT = {
    "aten::cudnn_convolution": 6,
    "aten::cudnn_convolution_transpose": 7,
    "aten::_convolution": 9,
}
"""Where these operators have `benchmark`."""
MIOPEN_FLAG_AT = {
    "aten::miopen_convolution": 7,
    "aten::miopen_depthwise_convolution": 7,
    "aten::miopen_convolution_transpose": 8,
}
"""The same on ROCm."""
MIOPEN_ACTION = (
    "Try torch.backends.cudnn.benchmark = True: the first step of each shape searches, and "
    "MIOpen's find-db keeps what it found."
)
MIOPEN_READS = (
    "see that the job reads this find-db (the same user or MIOPEN_USER_DB_PATH, the same version "
    "of MIOpen), has the memory for"
    " the workspace, and that no MIOPEN_DEBUG_CONV_ variable leaves solvers out"
)
MIOPEN_SEARCH = (
    "search again in full, with no MIOPEN_DEBUG_CONV_ variable set: torch.backends.cudnn.benchmark "
    "= True or MIOPEN_FIND_MODE=NORMAL, and MIOPEN_FIND_ENFORCE=SEARCH to tune too. Where that "
    "lists no more, try channels_last"
)
PRECISIONS = ("bf16", "fp16", "tf32")


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Slow convolutions a little faster; at best at the rate well-made ones reach."""
    graph, roofs = case.graph, case.context.roofs
    table = case.table
    lookup = None if case.searched is None else look_up(graph, table, case.searched)
    if lookup is not None and case.searched is not None:
        return _by_find_db(case, graph, lookup, case.searched)
    convolutions = table.of_category("convolution")
    if roofs is None or not case.context.trace.meta.has_shapes:
        much = (
            per_step_ms(graph, convolutions) * 1e6 >= POLICY.unknown_share * case.step_interval_ns
        )
        if not much:
            return None
        if roofs is None:
            return Abstention(
                code=CODE,
                reason="the peaks of this device are not known",
                needs="--hardware FILE, as `stepscope calibrate` writes it",
            )
        return Abstention(
            code=CODE, reason="convolutions of unknown size", needs="record_shapes=True"
        )
    reach = _reach_ns(table, roofs, convolutions)
    slow = graph.task_ns > reach
    spent_ms = per_step_ms(graph, slow)
    if spent_ms * 1e6 < POLICY.least_share * case.step_interval_ns or not _holds_still(
        graph, table, convolutions
    ):
        return None
    if _flags(table, MIOPEN_FLAG_AT) == {False}:
        return Remark(
            code=CODE,
            text=f"{spent_ms:.1f} ms of convolutions a step without MIOpen's search. "
            f"{MIOPEN_ACTION}",
        )
    if _flags(table, FLAG_AT) != {False}:
        return None
    steps = max(graph.num_steps, 1)
    reach_ms = float(reach[slow].sum()) / max(graph.num_steps, 1) / 1e6
    return Proposal(
        summary=f"{spent_ms:.1f} ms of convolutions a step with algorithms that cuDNN guessed.",
        action="try torch.backends.cudnn.benchmark = True: one line, and it may give nothing",
        evidence=(
            (
                f"{int(slow.sum()) // steps} convolutions a step, of the same shapes in each, with "
                "benchmark off"
            ),
            f"well-made ones of their size take {reach_ms:.1f} ms",
        ),
        change=_at(slow, POLICY.tuned * graph.task_ns),
        cautious=lambda before: before,
        hopeful=_at(slow, np.maximum(reach, POLICY.best * graph.task_ns)),
        changes_numerics=True,
    )


def _by_find_db(
    case: Case, graph: Graph, lookup: ConvolutionLookup, searched: SearchedConvolutions
) -> Proposal | Remark | None:
    """Those that run a slower solver than the find-db lists; where that is not known, or promises
    nothing, a remark."""
    least_ms = POLICY.least_share * case.step_interval_ns / 1e6
    slower = [used for used in lookup.used if used.slower >= POLICY.least_slower]
    alike = [used for used in slower if _is_alike(used, graph.num_steps)]
    if (
        lookup.is_deterministic
        or sum(used.step_ms * (1 - 1 / used.slower) for used in alike) < least_ms
    ):
        return _remark(graph, lookup, slower, alike, least_ms)
    times = graph.task_ns.astype(np.float64)
    chosen = np.zeros(len(times), np.bool_)
    for used in alike:
        chosen |= used.tasks
        times = np.where(used.tasks, times / used.slower, times)
    spent_ms = sum(used.step_ms for used in alike)
    paths = ", ".join(searched.paths[:2])
    rest = len(alike) - POLICY.most_evidence
    is_on = _flags(case.table, MIOPEN_FLAG_AT) == {True}
    first = "benchmark was on:" if is_on else "torch.backends.cudnn.benchmark = True, or"
    return Proposal(
        summary=f"{spent_ms:.1f} ms of convolutions a step run slower solvers than MIOpen's "
        "find-db has (gain derived from it).",
        action=f"{first} {MIOPEN_READS}",
        evidence=(
            *(_used_words(used, graph.num_steps) for used in alike[: POLICY.most_evidence]),
            *([f"and {rest} more"] if rest > 0 else []),
            (
                f"derived from {paths}: these kernels' time, scaled by the two solvers' times "
                "there; not measured in this run"
            ),
            *_left_out(graph, lookup),
        ),
        change=_at(chosen, times),
        cautious=lambda before: before,
        changes_numerics=True,
    )


def _is_alike(used: UsedSolver, steps: int) -> bool:
    """Whether the kernels take about as long as the find-db says of their solver."""
    ratio = used.per_call_ms(steps) / used.solver.time_ms
    return 1 / POLICY.most_unlike <= ratio <= POLICY.most_unlike


def _used_words(used: UsedSolver, steps: int) -> str:
    best, solver, called = used.searched.best, used.solver, used.per_call_ms(steps)
    workspace = ""
    if best.workspace_bytes:
        workspace = f" with {best.workspace_bytes / 1e6:,.1f} MB of workspace"
    return (
        f"{used.searched.problem.words}: {used.step_ms:.2f} ms a step by {solver.name}"
        f" ({called:.3f} ms a call, {solver.time_ms:.3f} in the find-db);"
        f" {best.name} takes {best.time_ms:.3f} there{workspace}, 1/{used.slower:.1f}"
    )


def _remark(
    graph: Graph,
    lookup: ConvolutionLookup,
    slower: Sequence[UsedSolver],
    alike: Sequence[UsedSolver],
    least_ms: float,
) -> Remark | None:
    sentences = []
    unlike = [used for used in slower if used not in alike]
    spent_ms = sum(used.step_ms for used in slower)
    if lookup.is_deterministic and spent_ms >= least_ms:
        words = (
            f"{spent_ms:.1f} ms of convolutions a step run slower solvers than MIOpen's find-db has"
        )
        sentences.append(
            f"{words}; deterministic ones were asked for, which leaves solvers out: no gain is "
            "promised."
        )
    elif sum(used.step_ms for used in unlike) >= least_ms:
        words = (
            f"{len(unlike)} convolutions take over {POLICY.most_unlike:.0f} times as long or "
            "short as in the find-db"
        )
        sentences.append(
            f"{words}: is it of this device, at these clocks? No gain is promised by it."
        )
    if per_step_ms(graph, lookup.lost) >= least_ms:
        sentences += [f"{line[0].upper()}{line[1:]}." for line in _left_out(graph, lookup)]
        sentences += [MIOPEN_ACTION] if lookup.missing else []
    return Remark(code=CODE, text=" ".join(sentences)) if sentences else None


def _left_out(graph: Graph, lookup: ConvolutionLookup) -> Iterator[str]:
    num, lost_ms = lookup.num_problems, per_step_ms(graph, lookup.lost)
    if lookup.missing:
        words = (
            f"{len(lookup.missing)} of {num} convolutions are not in the find-db, such as "
            f"{lookup.missing[0].words}"
        )
        yield f"{words}: MIOpen has not searched for them"
    if lookup.unsure:
        yield (
            f"{len(lookup.unsure)} of {num} fit several of its entries or solvers, or kernels of "
            "none, and were not judged"
        )
    if lookup.missing or lookup.unsure:
        yield f"these take {lost_ms:.1f} ms a step"


def advise(auxiliary: Auxiliary) -> Advice | None:
    """Convolutions of a user's find-db that MIOpen found no solver for but a naive one, or one for
    any size."""
    if auxiliary.kernels is None:
        return None
    files = tuple(file for file in auxiliary.kernels.find_dbs if not file.is_system)
    whole = together_of(files)
    if whole is None:
        return None
    searched = [convolution for layouts in whole.by_sizes.values() for convolution in layouts]
    generic = [convolution for convolution in searched if convolution.is_generic]
    poor = sorted(generic, key=lambda convolution: -convolution.best.time_ms)
    share = sum(convolution.best.time_ms for convolution in poor) / sum(
        convolution.best.time_ms for convolution in searched
    )
    if share < POLICY.least_generic_share:
        return None
    naive = sum(convolution.best.is_naive for convolution in poor)
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"For {len(poor):,} of {len(searched):,} convolutions MIOpen's find-db has no "
        f"solver made for them: the naive kernel is the fastest of {naive:,}, one for any size of "
        f"{len(poor) - naive:,}.",
        action=f"move the file away and {MIOPEN_SEARCH}",
        evidence=tuple(
            _poor_words(convolution, whole) for convolution in poor[: POLICY.most_evidence]
        ),
        weight=share,
        weight_of="the time of the find-db's convolutions, each once",
    )


def _poor_words(convolution: Searched, whole: SearchedConvolutions) -> str:
    problem, best = convolution.problem, convolution.best
    words = (
        f"{problem.words}: {best.name} takes {best.time_ms:.3f} ms, the fastest of "
        f"{len(convolution.solvers)}"
    )
    fastest = min(whole.by_sizes[problem.sizes], key=lambda entry: entry.best.time_ms)
    if fastest.best.time_ms * POLICY.least_slower > best.time_ms:
        return words
    other = fastest.best
    return f"{words}; in {fastest.problem.layout} {other.name} takes {other.time_ms:.3f} ms"


def _reach_ns(table: TaskTable, roofs: DevicePeaks, convolutions: Bool) -> Float64:
    """Per task how long a well-made convolution takes; infinite where it is not known."""
    reach = np.full(len(table.op), np.inf)
    for task in np.flatnonzero(convolutions & table.is_matrix & ~np.isnan(table.flops)).tolist():
        if table.precision[task] in PRECISIONS:
            time_ns = matrix_ns(
                roofs, float(table.flops[task]), float(table.bytes[task]), table.precision[task]
            )
            reach[task] = np.inf if np.isnan(time_ns) else time_ns
    return reach


def _flags(table: TaskTable, positions: Mapping[str, int]) -> set[bool | None]:
    """What `benchmark` was, over all of these operators; None among it where that was not
    recorded."""
    flags: set[bool | None] = set()
    for op in distinct(table.op).tolist():
        position = None if op == NONE else positions.get(table.op_name(op))
        inputs = table.inputs(op) if position is not None else None
        if position is not None and inputs is not None:
            flags.add(flag_at(inputs, position))
    return flags


def _holds_still(graph: Graph, table: TaskTable, convolutions: Bool) -> bool:
    """Whether every step has the same convolutions."""
    kinds: list[set[tuple[int, int]]] = []
    for step in distinct(graph.task_step).tolist():
        ops = distinct(table.op[convolutions & (graph.task_step == step)])
        kinds.append({table.key(op) for op in ops.tolist() if op != NONE})
    return all(kind == kinds[0] for kind in kinds)


def _at(slow: Bool, times: Float64) -> Change:
    return lambda graph: with_task_ns(graph, slow, times)


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    propose=propose,
    advise=advise,
)
