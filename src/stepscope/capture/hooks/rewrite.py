"""Functions that report when they run, and stay what they are.

A function's code is compiled anew from its own source with a few calls around its body, and put
in its place. It is the same object, under the same name, with the same lines: it is pickled,
inspected, subclassed and replaced as before, no frame is added to a traceback or to what counts
frames, and a class of the job that has it is pickled by value as before. Where the source is not
what the function was compiled from, it is left alone.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import tokenize
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

Change = Callable[[ast.FunctionDef, ast.FunctionDef], None]
"""Changes a definition, of which it is given a second copy. The strings MARK + "0", MARK + "1",
... stand for the probes."""
MARK = "stepscope probe "
_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
"""The flags by which `from __future__ import ...` changes what source means."""
_SHAPE = (
    *("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
)


def rewritten(function: FunctionType, change: Change, *probes: object) -> CodeType | None:
    """The function's code with `change` made and the probes in it; None where it cannot be had."""
    with suppress(OSError, SyntaxError, ValueError, IndexError, tokenize.TokenError):
        text = _text(function.__code__)
        definition = _definition(text)
        for imported in _imports(function):
            if _is_same(function.__code__, _compiled(function, definition, imported)):
                change(definition, _definition(text))
                made = _compiled(function, definition, imported)
                return _with_probes(made, {f"{MARK}{n}": probe for n, probe in enumerate(probes)})
    return None


def _imports(function: FunctionType) -> list[list[str]]:
    """Guesses which names its module has imported: calls of what they hold are compiled in another
    way."""
    names, codes = set[str](), [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    held = {name: function.__globals__[name] for name in names if name in function.__globals__}
    modules = [name for name, value in held.items() if isinstance(value, ModuleType)]
    home = function.__globals__.get("__name__")
    strange = [name for name, value in held.items() if getattr(value, "__module__", home) != home]
    return [modules, modules + strange] if strange else [modules]


def _text(code: CodeType) -> str:
    """The function's source, at its own line."""
    with tokenize.open(code.co_filename) as file:
        lines = file.readlines()
    block = inspect.getblock(lines[code.co_firstlineno - 1 :])
    # Not dedented: that would change strings of several lines.
    above = "\n" * (code.co_firstlineno - 1)
    return (above[:-1] + "if 1:\n" if block[0][:1].isspace() else above) + "".join(block)


def _definition(text: str) -> ast.FunctionDef:
    part: Any = ast.parse(text).body[0]
    found = part.body[0] if isinstance(part, ast.If) else part
    if not isinstance(found, ast.FunctionDef):
        raise ValueError(text)
    found.decorator_list = []
    return found


def _compiled(function: FunctionType, definition: ast.FunctionDef, imported: list[str]) -> CodeType:
    """Compile as it would stand in its class, and inside the function whose names it holds."""
    code = function.__code__
    body: list[Any] = [definition]
    owner = (function.__qualname__.split(".")[-2:-1] or ["<locals>"])[0]
    if owner != "<locals>":
        body = _around(f"class {owner}:\n pass", body)
    held = [name for name in code.co_freevars if name != "__class__"]
    if held:
        # Where the module's own name is meant it stays the module's.
        mine = "pass" if body[0].name in held else f"global {body[0].name}"
        body = _around(f"def outer({', '.join(held)}):\n {mine}", body)
    tree = ast.parse("".join(f"import {name}\n" for name in imported))
    tree.body += body
    flags = code.co_flags & _FUTURE
    made: CodeType = compile(tree, code.co_filename, "exec", flags=flags, dont_inherit=True)
    depth = 1 + (owner != "<locals>") + bool(held)
    for _ in range(depth):
        made = next(const for const in made.co_consts if isinstance(const, CodeType))
    nested = code.co_flags & inspect.CO_NESTED
    return _renamed(
        made, getattr(made, "co_qualname", ""), getattr(code, "co_qualname", "")
    ).replace(
        co_firstlineno=code.co_firstlineno, co_flags=made.co_flags & ~inspect.CO_NESTED | nested
    )


def _around(text: str, body: list[Any]) -> list[Any]:
    holder: Any = ast.parse(text).body[0]
    holder.body += body
    return [holder]


def _renamed(code: CodeType, before: str, now: str) -> CodeType:
    """Rename to the qualified names of where it really stands; Python 3.10 has none in its
    codes."""
    if not before:
        return code
    consts = tuple(
        _renamed(const, before, now) if isinstance(const, CodeType) else const
        for const in code.co_consts
    )
    name = now + code.co_qualname.removeprefix(before)  # type: ignore[attr-defined,unused-ignore]
    return code.replace(co_consts=consts, co_qualname=name)  # type: ignore[call-arg,unused-ignore]


def _is_same(one: CodeType, other: CodeType) -> bool:
    if any(getattr(one, name) != getattr(other, name) for name in _SHAPE):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _is_same(a, b)
        if isinstance(a, CodeType) and isinstance(b, CodeType)
        else type(a) is type(b) and repr(a) == repr(b)
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


def _with_probes(code: CodeType, probes: dict[str, object]) -> CodeType:
    consts = tuple(
        _with_probes(const, probes)
        if isinstance(const, CodeType)
        else probes.get(const, const)
        if isinstance(const, str)
        else const
        for const in code.co_consts
    )
    return code.replace(co_consts=consts)
