"""A call in a script's text, with other keywords: the script is read, and never run.

    loader = DataLoader(data, batch_size=64, num_workers=2)
    loader = DataLoader(data, batch_size=64, num_workers=7, persistent_workers=True)

What cannot surely be rewritten is left alone: a value that another part of the script makes,
`*args` and `**options` that may hold it. That the new text differs in these keywords and in nothing
else is checked by parsing it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from stepscope.core.diagnosis import CodeChange

MAX_CHARS = 2_000_000
"""Characters of a script that is parsed, at most."""
POSITIONAL: Mapping[str, tuple[str, ...]] = {
    "DataLoader": (
        *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers"),
        *("collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn"),
    )
}
"""Arguments that may be given by their place. Those of other classes that are set stand far behind
their first five."""
MAX_POSITIONAL = 5


class NotSureError(Exception):
    """Why a call is left as it is."""


def with_keywords(
    text: str,
    line: int,
    name: str,
    keywords: Mapping[str, Any],
    raised: frozenset[str] = frozenset(),
) -> str:
    """The script with these keywords in the call of `name` that begins on the line. A number among
    `raised` is never taken down."""
    tree = _parsed(text)
    call = _call(tree, line, name)
    _refuse_unsure(call, name, keywords)
    given = {each.arg: each.value for each in call.keywords if each.arg is not None}
    changed = {
        key: value
        for key, value in keywords.items()
        if key not in given or not _is_enough(given[key], value, is_raised=key in raised)
    }
    if not changed:
        raise NotSureError(f"line {line} has it already")
    made = _written(text, call, given, changed)
    _check(tree, made, call, changed)
    return made


def code_change(path: str, before: str, after: str) -> CodeChange:
    """The lines that differ; with the one before them where lines are only added."""
    old, new = before.split("\n"), after.split("\n")
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    if first == len(old) - last:
        first -= 1
    return CodeChange(
        path=path,
        line=first + 1,
        before=tuple(line.rstrip("\r") for line in old[first : len(old) - last]),
        after=tuple(line.rstrip("\r") for line in new[first : len(new) - last]),
    )


def _parsed(text: str) -> ast.Module:
    if len(text) > MAX_CHARS:
        raise NotSureError("the script is too long")
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise NotSureError("the script is no Python that can be parsed") from problem


def _call(tree: ast.Module, line: int, name: str) -> ast.Call:
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno == line and _name(node.func, tree) == name
    ]
    if len(found) != 1:
        raise NotSureError(f"line {line} does not call {name} once, by that name")
    return found[0]


def _name(function: ast.expr, tree: ast.Module) -> str | None:
    """Name of what is called: the last of a dotted name, or what an import renamed."""
    if isinstance(function, ast.Attribute):
        return function.attr
    if not isinstance(function, ast.Name):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.asname == function.id:
                    return alias.name
    return function.id


def _refuse_unsure(call: ast.Call, name: str, keywords: Mapping[str, Any]) -> None:
    starred = any(isinstance(each, ast.Starred) for each in call.args)
    if starred or any(each.arg is None for each in call.keywords):
        raise NotSureError(f"line {call.lineno} takes options from elsewhere")
    by_place = POSITIONAL.get(name, ())[: len(call.args)]
    if any(key in by_place for key in keywords) or (
        name not in POSITIONAL and len(call.args) > MAX_POSITIONAL
    ):
        raise NotSureError(f"line {call.lineno} gives it by its place")
    for each in call.keywords:
        if each.arg in keywords and _literal(each.value) is _NONE:
            raise NotSureError(
                f"line {call.lineno} takes {each.arg} from {ast.unparse(each.value)[:60]}"
            )


_NONE = object()


def _literal(value: ast.expr) -> Any:
    """What a constant is; `_NONE` of what is none."""
    return value.value if isinstance(value, ast.Constant) else _NONE


def _is_enough(given: ast.expr, wanted: Any, *, is_raised: bool) -> bool:
    now = _literal(given)
    if is_raised and type(now) in (int, float) and type(wanted) in (int, float):
        return bool(now >= wanted)
    return type(now) is type(wanted) and bool(now == wanted)


def _written(
    text: str, call: ast.Call, given: Mapping[str, ast.expr], changed: Mapping[str, Any]
) -> str:
    """The new text. Columns count bytes of UTF-8."""
    data = text.encode()
    starts = [0]
    starts += [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]

    def place(line: int, column: int) -> int:
        return starts[line - 1] + column

    edits: list[tuple[int, int, str]] = []
    added = {key: value for key, value in changed.items() if key not in given}
    for key in changed:
        if key in given:
            old = given[key]
            assert old.end_lineno is not None
            assert old.end_col_offset is not None
            edits.append(
                (
                    place(old.lineno, old.col_offset),
                    place(old.end_lineno, old.end_col_offset),
                    repr(changed[key]),
                )
            )
    if added:
        parts: list[Any] = [*call.args, *call.keywords]
        if not parts:
            raise NotSureError(f"line {call.lineno} has no argument")
        last = max(parts, key=lambda part: (part.end_lineno, part.end_col_offset))
        before = data[starts[last.lineno - 1] : place(last.lineno, last.col_offset)].decode()
        newline = "\r\n" if "\r\n" in text else "\n"
        is_own_line = last.lineno > call.lineno and not before.strip()
        between = f",{newline}{before}" if is_own_line else ", "
        at = place(last.end_lineno, last.end_col_offset)
        edits.append((at, at, "".join(f"{between}{key}={value!r}" for key, value in added.items())))
    for start, end, put in sorted(edits, reverse=True):
        data = data[:start] + put.encode() + data[end:]
    return data.decode()


def _check(tree: ast.Module, made: str, call: ast.Call, changed: Mapping[str, Any]) -> None:
    """Check that the new text is the old one with these keywords in this call."""
    new = _parsed(made)
    place = (call.lineno, call.col_offset, ast.dump(call.func))
    found = [
        node
        for node in ast.walk(new)
        if isinstance(node, ast.Call)
        and (node.lineno, node.col_offset, ast.dump(node.func)) == place
    ]
    wanted = {each.arg: ast.dump(each.value) for each in call.keywords}
    wanted |= {key: ast.dump(ast.Constant(value)) for key, value in changed.items()}
    is_so = len(found) == 1 and {k.arg: ast.dump(k.value) for k in found[0].keywords} == wanted
    if is_so:
        found[0].keywords = call.keywords
    if not is_so or ast.dump(new) != ast.dump(tree):
        raise NotSureError(f"line {call.lineno} is written in a way that cannot be changed surely")
