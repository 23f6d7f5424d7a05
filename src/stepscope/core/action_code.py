"""The code in a finding's advice, apart from the words around it: what is copied can be pasted."""

from __future__ import annotations

import ast
import re

MAX_CHARS = 300
"""Characters of advice that are looked at, at most; what a rule says is shorter."""
_END = re.compile(r"[;,:]? |$")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+=[^\s,;]+")
"""An environment variable with its value."""
_JOINED = re.compile(r" and (?=[\w.]+\()")


def action_code(action: str) -> tuple[str, str]:
    """Code that the advice begins with, each statement on its line, and the words after it; no code
    where it begins with words."""
    if len(action) > MAX_CHARS:
        return "", action
    for match in reversed(list(_END.finditer(action))):
        first = action[: match.start()]
        lines = _JOINED.split(first)
        if all(map(_is_code, lines)):
            rest = action[match.end() :].strip()
            return "\n".join(lines), rest.removeprefix("and ") if rest else ""
    return "", action


def _is_code(text: str) -> bool:
    """One call or assignment. Parsing runs nothing."""
    if _VARIABLE.fullmatch(text):
        return True
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if len(body) != 1:
        return False
    statement = body[0]
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call)
    return isinstance(statement, ast.Assign | ast.AugAssign)
