"""recompilation: what torch.compile's own logs show."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stepscope.api import Advice, Auxiliary
from stepscope.core.numbers import times
from stepscope.core.recordings.compiler import FEWER_COMPILES, CompiledFunction, CompilerReport
from stepscope.core.recordings.compiler_guard import (
    DEVICE,
    DTYPE,
    GRAD,
    IDENTITY,
    KEYS,
    LENGTH,
    RANK,
    SIZE,
    SIZE_BOUND,
    STATE,
    STRIDE,
    TYPE,
    VALUE,
    GuardCount,
)

CODE = "recompilation"
BOUND = "host"
ACTIONS = {
    SIZE_BOUND: (
        "the code branches on the size of {name} at dimension {index}: keep its sizes on one side "
        "of that, or pad"
    ),
    STRIDE: "hand {name} over in one layout: {name}.contiguous() before the call",
    RANK: "hand {name} over with one number of dimensions",
    DTYPE: (
        "hand {name} over in one dtype; compile what runs under autocast and what does not as two "
        "functions"
    ),
    DEVICE: "hand {name} over on one device",
    GRAD: (
        "call with {name} always requiring gradients, or never: compile training and evaluation "
        "as two functions"
    ),
    KEYS: (
        "make {name} under one mode: tensors of inference_mode, or of a subclass, need a version "
        "of their own"
    ),
    LENGTH: "hand {name} over with one length: pad it, or stack it into a tensor",
    TYPE: "hand {name} over as one type",
    IDENTITY: (
        "make {name} once, outside: a new object (a lambda, a module, a dict) on each call is a "
        "new guard"
    ),
    STATE: (
        "call it under one mode (grad mode, autocast, number of threads): {name} changed between "
        "calls"
    ),
}
"""Actions by the kind of guard."""


class Policy(Struct, frozen=True, kw_only=True):
    least_recompiles: int = 2
    """Recompilations of a function in one process, or of one piece of it after a graph break, from
    which it is reported. One is how torch.compile learns that a size is dynamic, and each piece
    learns by itself."""
    most_advice: int = 4
    """Functions that are spoken of; the recording lists all."""
    most_guards: int = 3
    """Guards of a function that are named."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> tuple[Advice, ...]:
    """One for each function that was compiled again more than it takes to learn what changes, or
    given up."""
    report = auxiliary.compiler
    if report is None:
        return ()
    recompiled = [
        function
        for function in report.functions()
        if function.limit or function.most_again >= POLICY.least_recompiles
    ]
    advice = [_advice(report, function) for function in recompiled[: POLICY.most_advice]]
    if not recompiled and (hits := sum(counted.limit_hits or 0 for counted in report.counted)):
        advice.append(_counted_limit(hits))
    return tuple(advice)


def _advice(report: CompilerReport, function: CompiledFunction) -> Advice:
    guards = (*function.guards, *function.resumed_guards)
    weight = None
    if function.again_s and report.seconds:
        weight = function.again_s / report.seconds
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=_summary(function),
        action=_action(function, guards[0]) if guards else FEWER_COMPILES,
        evidence=tuple(_guard_lines(function)),
        weight=weight,
        weight_of="" if weight is None else "the time spent compiling",
    )


def _summary(function: CompiledFunction) -> str:
    name = f"{function.name or 'A function'} ({function.location or 'line not recorded'})"
    pieces = (
        f", {function.resumed} of them pieces of it after graph breaks" if function.resumed else ""
    )
    seconds = f", for {function.again_s:.1f} s" if function.again_s else ""
    again = ""
    if function.recompiles:
        again = f"was compiled again {times(function.recompiles)}{pieces}{seconds}"
    limit = f"was given up at {function.limit}" if function.limit else ""
    return f"{name} {', and then '.join(part for part in (again, limit) if part)}."


def _guard_lines(function: CompiledFunction) -> Iterator[str]:
    """The guards, each by itself a sentence: they may stand under a finding of the trace."""
    if function.limit:
        part = "" if function.limit_part in ("", function.name) else f", in {function.limit_part}"
        eager = "calls that fit no compiled version run eagerly from there on"
        yield (
            f"{function.name} ({function.location}) hit torch._dynamo's {function.limit}{part}: "
            f"{eager}"
        )
    for guard in (*function.guards, *function.resumed_guards)[: POLICY.most_guards]:
        yield (
            f"{function.name} ({function.location}): {guard.words}; this guard failed "
            f"{times(guard.count)}"
        )


def _action(function: CompiledFunction, failed: GuardCount) -> str:
    """What to do about the guard that fails most often."""
    guard = failed.guard
    name = guard.subject
    if guard.kind == VALUE and "___stack" in name:
        where = f" at {guard.location}" if guard.location else ""
        return (
            f"fix the graph break{where} first: what it hands over to the rest of {function.name} "
            "is a new number each time"
        )
    if guard.kind == VALUE:
        hint = f"; torch says: {guard.hint}" if guard.hint else ""
        return (
            f"keep {name} out of compiled code where it changes: pass it as a tensor, or compute "
            f"with it outside{hint}"
        )
    if guard.kind == SIZE:
        mark = "torch._dynamo.mark_dynamic"
        if name.isidentifier():
            mark = f"torch._dynamo.mark_dynamic({name}, {guard.index})"
        why = f"dimension {guard.index} of {name} changes"
        return (
            f"{mark} before the call ({why}), or torch.compile(dynamic=True), or pad to few sizes"
        )
    return ACTIONS.get(guard.kind, FEWER_COMPILES).format(name=name or "it", index=guard.index)


def _counted_limit(hits: int) -> Advice:
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"The limit on recompilations was hit {times(hits)}: those functions run eagerly "
        "from there on.",
        action="TORCH_LOGS=recompiles names the functions and the guards",
        evidence=(f"torch._dynamo's counters: recompile limit exceeded {times(hits)}",),
    )
