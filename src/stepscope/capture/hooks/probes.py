"""What stands in a function of torch that the capture watches: two calls, at its beginning and at
its end."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.guard import Guard
from stepscope.capture.hooks.rewrite import MARK, rewritten

INERT = """type("Inert", (), dict(
    dict.fromkeys(("enter", "leave"), lambda *_: None),
    **dict.fromkeys(("out", "back", "through"), lambda self, _, value: value),
    __reduce__=lambda self: (eval, (inert, {"inert": inert})), __deepcopy__=lambda self, _: self,
))()"""
"""What becomes of a probe where it is pickled by value, with a class of the job: it is of use in
this process alone, and where it goes nothing of ours need be installed. It can be hashed, as all
constants of a code can, and pickled again."""


def _nothing(*_: Any) -> None:
    pass


class Probe:
    """Called from within the function: `enter` with its first arguments, `leave` with what that
    returned and with what the function returns."""

    __slots__ = ("enter", "leave")

    def __init__(
        self,
        enter: Callable[..., Any] = _nothing,
        leave: Callable[[Any, Any], Any] = _nothing,
    ) -> None:
        self.enter, self.leave = enter, leave

    def __reduce__(self) -> Any:
        return eval, (INERT, {"inert": INERT})

    def __deepcopy__(self, _: Any) -> Probe:
        return self


def watch(
    guard: Guard, function: Any, probe: Probe, *, inner: tuple[str, Probe] | None = None
) -> bool:
    """Has a function call the probe, until the capture ends; whether it could be done. `inner`:
    the function that it makes and returns, which calls another one."""
    if not isinstance(function, types.FunctionType):
        return False
    asker = compiling_question(function.__globals__)

    def change(definition: ast.FunctionDef, twin: ast.FunctionDef) -> None:
        if inner is None:
            surround(definition, twin, f"{MARK}0", asker)
            return
        for part, other in zip(definition.body, twin.body, strict=True):
            if isinstance(part, ast.FunctionDef) and part.name == inner[0]:
                surround(part, other, f"{MARK}1", asker)
        surround(definition, None, f"{MARK}0", None)

    made = rewritten(function, change, probe, *(inner or ())[1:])
    if made is not None:
        put_in(guard, function, made)
    return made is not None


def put_in(guard: Guard, function: types.FunctionType, made: types.CodeType) -> None:
    """Put the code in until the capture ends. Where somebody put another code in since, that
    stays."""
    before, function.__code__ = function.__code__, made

    def undo() -> None:
        if function.__code__ is made:
            function.__code__ = before

    guard.at_end(undo)


def timed(guard: Guard, on_call: Callable[[Any, int, int], None]) -> Probe:
    """Reports the first argument, and when a function ran, also when it raised."""
    watched, clock = guard.watch(on_call), clocks.perf_counter_ns

    def enter(first: Any = None, *_: Any) -> tuple[Any, int] | None:
        return (first, clock()) if guard.is_on else None

    def leave(token: tuple[Any, int] | None, _: Any) -> None:
        if token is not None:
            watched(token[0], token[1], clock())

    return Probe(enter, leave)


def surround(definition: ast.FunctionDef, twin: Any, mark: str, asker: str | None) -> None:
    """Puts a function's body between the two calls; with `asker`, a question that its module can
    ask, without them where the compiler reads it, for which a second copy is needed. The body may
    have room on the stack where a call of ours has none: that is not counted then."""
    body = definition.body
    start = 1 if ast.get_docstring(definition, clean=False) is not None else 0
    names = [arg.arg for arg in (*definition.args.posonlyargs, *definition.args.args)][:3]
    if definition.args.vararg is not None:
        names.append(f"*{definition.args.vararg.arg}")
    lines = [
        f"stepscope_probe = {mark!r}",
        "stepscope_token = stepscope_result = None",
        "try:",
        "  try:",
        f"    stepscope_token = stepscope_probe.enter({', '.join(names)})",
        "  except RecursionError: pass",
        "finally:",
        "  try:",
        "    stepscope_probe.leave(stepscope_token, stepscope_result)",
        "  except RecursionError: pass",
    ]
    made = parsed("\n".join(lines), body[start])
    watched = body if asker is None else twin.body
    kept = _Returns(is_second=asker is not None).visit(
        ast.Module(body=watched[start:], type_ignores=[])
    )
    made[2].body += kept.body
    if asker is not None:
        (branch,) = parsed(f"if {asker}: pass\nelse: pass", body[start])
        branch.body, branch.orelse, made = body[start:], made, [branch]
    definition.body = [*body[:start], *made]


def parsed(text: str, at: ast.AST) -> list[Any]:
    """Statements at the place of another one."""
    made: list[Any] = ast.parse(text).body
    for part in made:
        for node in ast.walk(part):
            ast.copy_location(node, at)
    return made


class _Returns(ast.NodeTransformer):
    """What the function returns is kept for the probe."""

    def __init__(self, *, is_second: bool) -> None:
        self._is_second = is_second

    def visit_Return(self, node: ast.Return) -> Any:
        if node.value is None:
            return node
        kept, back = parsed("stepscope_result = 0\nreturn stepscope_result", node)
        kept.value = node.value
        return [kept, back]

    def visit_Global(self, node: ast.Global) -> Any:
        # Said once, in the copy above.
        return parsed("pass", node) if self._is_second else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # type: ignore[assignment] # noqa: N815


def compiling_question(names: dict[str, Any]) -> str | None:
    """How a function asks whether the compiler reads it: then it must see nothing of ours."""
    torch = sys.modules.get("torch")
    if torch is None or names.get("torch") is not torch:
        return None
    compiler = getattr(torch, "compiler", None)
    for name in ("is_dynamo_compiling", "is_compiling"):
        # The narrower question where it can be asked: it costs half.
        if callable(getattr(compiler, name, None)):
            return f"torch.compiler.{name}()"
    return None
