"""The gate's small language: conditions on what a diagnosis measured, such as `step_ms > baseline * 1.05 or share.data > 0.1`.

    condition   comparison, joined by `and` (binds first) and `or`
    comparison  sum  > >= < <= == !=  sum
    sum         products joined by + and -, products of factors joined by * and /
    factor      a number, a name, `any finding`, `baseline`, `baseline.NAME`, -factor, or something in parentheses

`baseline` alone is the one quantity that its comparison names, on the baseline. What was not measured is never a number: a
comparison with it is undecided, and so is a condition that hangs on it.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from stepscope.errors import UsageError

ANY_FINDING = "any finding"
MAX_CHARS = 500
MAX_DEPTH = 40
"""Parentheses and minus signs inside one another."""
COMPARISONS = (">=", "<=", "==", "!=", ">", "<")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))"
    r"|(?P<name>any\s+finding\b|(?:baseline\.)?finding\.[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*|[A-Za-z_][\w.]*)"
    r"|(?P<sign>>=|<=|==|!=|[-+*/()<>]))",
    re.ASCII,
)
_COMPUTED = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_COMPARED = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne}
_OPPOSITE = {">": "<=", "<=": ">", "<": ">=", ">=": "<", "==": "!=", "!=": "=="}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A piece of an expression: a number, a quantity, or two pieces joined."""

    at: int
    """Where it stands in the text."""
    sign: str
    """number, name, baseline, + - * /, a comparison, and, or."""
    value: float = 0.0
    name: str = ""
    of_baseline: bool = False
    sides: tuple[Node, ...] = ()

    @property
    def is_condition(self) -> bool:
        return self.sign in _COMPARED or self.sign in ("and", "or")

    @property
    def label(self) -> str:
        return f"baseline.{self.name}" if self.of_baseline else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """What one diagnosis measured, by name. None is "not measured", and `why` says why where that is known."""

    values: Mapping[str, float | None]
    why: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition of a gate."""

    text: str
    source: str
    """Where it was given: `--fail-if`, or the place in the budget."""
    condition: Node
    fails_when: bool = True
    """What the condition's answer is where the check fails: a limit states what is allowed, and fails when that is false."""

    @property
    def needs_baseline(self) -> bool:
        return any(node.of_baseline for node in walk(self.condition))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One condition, answered."""

    check: str
    source: str
    status: str
    """passed, failed or undecided."""
    values: Mapping[str, float | None]
    """Every quantity it names."""
    compared: tuple[str, ...]
    """`65.5 > 62.2`, for each comparison that could be made, as it turned out."""
    missing: tuple[str, ...]
    """What kept it from being decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """All conditions, answered."""

    results: tuple[Result, ...]
    missing: str = "fail"
    """What becomes of an undecided check: fail or pass."""
    baseline: str | None = None
    """What was compared with."""

    @property
    def stopped_by(self) -> tuple[Result, ...]:
        return tuple(r for r in self.results if r.status == "failed" or (r.status == "undecided" and self.missing == "fail"))

    @property
    def is_passed(self) -> bool:
        return not self.stopped_by


def parse(text: str, where: str, names: Collection[str]) -> Node:
    """The condition that `text` states; UsageError with a caret under the place where it states none."""
    flat = re.sub(r"\s", " ", text)
    if len(flat) > MAX_CHARS:
        raise UsageError(f"{where}: the condition is {len(flat)} characters long; {MAX_CHARS} are allowed. Split it in several")
    return _Parser(flat, where, names).whole()


def walk(node: Node) -> Iterator[Node]:
    yield node
    for side in node.sides:
        yield from walk(side)


def decide(check: Check, run: Quantities, baseline: Quantities | None) -> Result:
    """The check's answer for this run."""
    answer = _Answer(run, baseline)
    told = answer.condition(check.condition)
    status = "undecided" if told is None else "failed" if told == check.fails_when else "passed"
    return Result(
        check=check.text,
        source=check.source,
        status=status,
        values=answer.values,
        compared=tuple(answer.compared),
        missing=tuple(dict.fromkeys(answer.missing)) if told is None else (),
    )


class _Answer:
    """Walks a condition once and keeps what it saw."""

    def __init__(self, run: Quantities, baseline: Quantities | None) -> None:
        self._run, self._baseline = run, baseline
        self.values: dict[str, float | None] = {}
        self.compared: list[str] = []
        self.missing: list[str] = []

    def condition(self, node: Node) -> bool | None:
        """True, false, or None when it hangs on something that is not known."""
        if node.sign in _COMPARED:
            left, right = (self.number(side) for side in node.sides)
            if left is None or right is None:
                return None
            holds = bool(_COMPARED[node.sign](left, right))
            self.compared.append(f"{left:.6g} {node.sign if holds else _OPPOSITE[node.sign]} {right:.6g}")
            return holds
        answers = [self.condition(side) for side in node.sides]
        decisive = node.sign == "or"
        if decisive in answers:
            return decisive
        return None if None in answers else not decisive

    def number(self, node: Node) -> float | None:
        if node.sign == "number":
            return node.value
        if node.sign == "name":
            return self._quantity(node)
        left, right = (self.number(side) for side in node.sides)
        if left is None or right is None:
            return None
        if node.sign == "/" and right == 0:
            self.missing.append("it divides by zero")
            return None
        result = left / right if node.sign == "/" else float(_COMPUTED[node.sign](left, right))
        if not math.isfinite(result):
            self.missing.append("it comes to a number too large")
            return None
        return result

    def _quantity(self, node: Node) -> float | None:
        told = self._baseline if node.of_baseline else self._run
        assert told is not None, "a check of a baseline needs one"
        value = told.values.get(node.name)
        self.values[node.label] = value
        if value is None:
            self.missing.append(f"{node.label} {told.why.get(node.name, 'was not measured')}")
        return value


class _Parser:
    """Reads from left to right, one method per level of the grammar."""

    def __init__(self, text: str, where: str, names: Collection[str]) -> None:
        self._text, self._where, self._names = text, where, names
        self._at = 0
        self._depth = 0
        self._next: tuple[str, str, int] = ("", "", 0)
        self._advance()

    def whole(self) -> Node:
        node = self._joined("or")
        kind, word, at = self._next
        if kind != "end":
            self._refuse(f"{word!r} is one too many here", at)
        if not node.is_condition:
            self._refuse("this is a quantity, not a condition: compare it with something, as in `step_ms > 100`", node.at)
        return node

    def _advance(self) -> None:
        rest = self._text[self._at :]
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            start = self._at + len(rest) - len(rest.lstrip())
            if start < len(self._text):
                self._refuse(f"{self._text[start]!r} means nothing here", start)
            self._next = ("end", "", len(self._text))
            return
        kind = match.lastgroup or ""
        word = " ".join(match[kind].split())
        if word in ("and", "or"):
            kind = "sign"
        self._next = (kind, word, match.start(kind))
        self._at = match.end()

    def _joined(self, sign: str) -> Node:
        node = self._joined("and") if sign == "or" else self._comparison()
        while self._next[1] == sign:
            at = self._next[2]
            self._advance()
            other = self._joined("and") if sign == "or" else self._comparison()
            for side in (node, other):
                if not side.is_condition:
                    self._refuse(f"`{sign}` joins conditions, and this is a quantity: compare it with something", side.at)
            node = Node(at=at, sign=sign, sides=(node, other))
        return node

    def _comparison(self) -> Node:
        left = self._sum()
        _, word, at = self._next
        if word not in COMPARISONS:
            return left
        self._advance()
        right = self._sum()
        if self._next[1] in COMPARISONS:
            self._refuse("one comparison at a time: join two with `and`", self._next[2])
        for side in (left, right):
            self._want_number(side)
        return self._with_baseline(Node(at=at, sign=word, sides=(left, right)))

    def _sum(self) -> Node:
        return self._chain(("+", "-"), lambda: self._chain(("*", "/"), self._factor))

    def _chain(self, signs: tuple[str, ...], part: Callable[[], Node]) -> Node:
        node = part()
        while self._next[1] in signs:
            _, sign, at = self._next
            self._advance()
            other = part()
            for side in (node, other):
                self._want_number(side)
            node = Node(at=at, sign=sign, sides=(node, other))
        return node

    def _factor(self) -> Node:
        kind, word, at = self._next
        if kind == "number":
            self._advance()
            if not math.isfinite(float(word)):
                self._refuse("this number is too large", at)
            return Node(at=at, sign="number", value=float(word))
        if kind == "name":
            self._advance()
            return self._quantity(word, at)
        if word not in ("-", "("):
            self._refuse("a number or a name is missing here" if kind == "end" else "a number or a name was expected here", at)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(f"more than {MAX_DEPTH} parentheses or signs inside one another", at)
        self._advance()
        node = self._negative(at) if word == "-" else self._closed(at)
        self._depth -= 1
        return node

    def _negative(self, at: int) -> Node:
        node = self._factor()
        self._want_number(node)
        return Node(at=at, sign="-", sides=(Node(at=at, sign="number"), node))

    def _closed(self, at: int) -> Node:
        node = self._joined("or")
        if self._next[1] != ")":
            self._refuse("this parenthesis is not closed", at)
        self._advance()
        return node

    def _quantity(self, word: str, at: int) -> Node:
        if word == "baseline":
            return Node(at=at, sign="baseline")
        of_baseline = word.startswith("baseline.")
        name = word.removeprefix("baseline.")
        if name not in self._names:
            near = difflib.get_close_matches(name, sorted(self._names), n=1)
            self._refuse(f"{name!r} is not a quantity of a diagnosis" + (f"; is {near[0]} meant?" if near else ""), at)
        return Node(at=at, sign="name", name=name, of_baseline=of_baseline)

    def _want_number(self, node: Node) -> None:
        if node.is_condition:
            self._refuse("this is a condition; a quantity or a number was expected on both sides", node.at)

    def _with_baseline(self, comparison: Node) -> Node:
        """The comparison with its bare `baseline` made the quantity that it names."""
        bare = next((node for node in walk(comparison) if node.sign == "baseline"), None)
        if bare is None:
            return comparison
        named = list(dict.fromkeys(node.name for node in walk(comparison) if node.sign == "name"))
        if len(named) != 1:
            what = f"this comparison names {' and '.join(named)}" if named else "this comparison names no quantity"
            self._refuse(f"baseline of what? {what}: write baseline.{named[0] if named else 'step_ms'} or the like", bare.at)
        return _filled(comparison, named[0])

    def _refuse(self, problem: str, at: int) -> NoReturn:
        known = ", ".join(sorted(name for name in self._names if "." not in name and " " not in name))
        bounds = ", ".join(sorted(name.removeprefix("share.") for name in self._names if name.startswith("share.")))
        raise UsageError(
            f"{self._where}: {problem}\n\n    {self._text}\n    {' ' * at}^\n\n"
            f"{textwrap.fill(f'names: {known};', 100)}\n"
            f"share.BOUND ({bounds});\n"
            f"finding.CODE (`stepscope explain --list` has the codes), any finding;\n"
            f"baseline for the same quantity of --baseline, baseline.NAME for another"
        )


def _filled(node: Node, name: str) -> Node:
    if node.sign == "baseline":
        return replace(node, sign="name", name=name, of_baseline=True)
    return replace(node, sides=tuple(_filled(side, name) for side in node.sides))
