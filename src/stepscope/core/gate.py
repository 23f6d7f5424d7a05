"""The gate's small language: conditions on what a diagnosis measured, such as `step_ms > baseline *
1.05 or share.data > 0.1`.

    condition   comparison, joined by `and` (binds first) and `or`
    comparison  sum  > >= < <= == !=  sum
    sum         products joined by + and -, products of factors joined by * and /
    factor      a number, a name, `any finding`, `baseline`, `baseline.NAME`, -factor, or something
                in parentheses

`baseline` alone is the one quantity that its comparison names, on the baseline. What was not
measured is never a number: a comparison with it is undecided, and so is a condition that hangs on
it.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr, replace

from stepscope.core.codec import one_of
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
_WIDTH = 4
"""Columns of a word in what Python's parser gets: a column in it names the word."""
_WRONG_ORDER = re.compile(r"(?<=[\^(o-])[o)$]|(?<=[q)])[q(]")
"""Words as letters (q a number or quantity, o a sign between two, ^ and $ the ends): one that may
not follow what stands before it."""
_COMPUTED = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_COMPARED = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
_OPPOSITE = {">": "<=", "<=": ">", "<": ">=", ">=": "<", "==": "!=", "!=": "=="}


class Node(Struct, frozen=True, kw_only=True):
    """A piece of an expression: a number, a quantity, or two pieces joined."""

    column: int
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


class Quantities(Struct, frozen=True, kw_only=True):
    """What one diagnosis measured, by name. None is "not measured", and `why` says why where that
    is known."""

    values: Mapping[str, float | None]
    why: Mapping[str, str] = field(default_factory=dict)


class Check(Struct, frozen=True, kw_only=True):
    text: str
    source: str
    """Where it was given: `--fail-if`, or the place in the budget."""
    condition: Node
    fails_when: bool = True
    """What the condition's answer is where the check fails: a limit states what is allowed, and
    fails when that is false."""

    @property
    def needs_baseline(self) -> bool:
        return any(node.of_baseline for node in walk(self.condition))


class Result(Struct, frozen=True, kw_only=True):
    """One check, answered."""

    check: str
    source: str
    """--fail-if, or the place in the budget."""
    status: Annotated[str, one_of("passed", "failed", "undecided")]
    reason: str
    """The figures behind it, or what was not measured."""
    values: Mapping[str, float | None]
    """The quantities it names; null where one was not measured."""


class Gate(Struct, frozen=True, kw_only=True, rename={"is_passed": "passed", "results": "checks"}):
    """What the gate found: the key `gate` of a diagnosis or a comparison."""

    is_passed: bool = False
    missing: Annotated[str, one_of("fail", "pass")] = "fail"
    """What becomes of an undecided check."""
    baseline: str | None = None
    """File or run that was compared with."""
    results: Annotated[tuple[Result, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        force_setattr(self, "is_passed", not self.stopped_by)

    @property
    def stopped_by(self) -> tuple[Result, ...]:
        return tuple(
            r
            for r in self.results
            if r.status == "failed" or (r.status == "undecided" and self.missing == "fail")
        )


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file of `--budget` holds."""

    fail_if: Annotated[
        str | list[str],
        Meta(description='a condition in quotes, or a list of them: fail_if = ["step_ms > 100"]'),
    ] = msgspec.field(default_factory=list)
    limits: Annotated[
        dict[str, Any],
        Meta(description="a table: write [limits], and a line for each, such as step_ms = 70"),
    ] = msgspec.field(default_factory=dict)
    missing: Annotated[Literal["fail", "pass"], Meta(description="'fail' or 'pass'")] = "fail"
    baseline: Annotated[str, Meta(min_length=1, description="a path in quotes")] | None = None


def parse(text: str, where: str, names: Collection[str]) -> Node:
    """The condition that `text` states; UsageError with a caret under the place where it states
    none."""
    flat = re.sub(r"\s", " ", text)
    if len(flat) > MAX_CHARS:
        raise UsageError(
            f"{where}: the condition is {len(flat)} characters long; {MAX_CHARS} are allowed. "
            "Split it in several"
        )
    return _Reader(flat, where, names).whole()


def walk(node: Node) -> Iterator[Node]:
    yield node
    for side in node.sides:
        yield from walk(side)


def decide(check: Check, run: Quantities, baseline: Quantities | None) -> Result:
    """The check's answer for this run."""
    answer = _Answer(run, baseline)
    holds = answer.condition(check.condition)
    status = "passed"
    if holds is None:
        status = "undecided"
    elif holds == check.fails_when:
        status = "failed"
    return Result(
        check=check.text,
        source=check.source,
        status=status,
        reason=_reason(answer, is_open=holds is None),
        values=answer.values,
    )


def _reason(answer: _Answer, *, is_open: bool) -> str:
    """The figures behind an answer: `step_ms 65.48, baseline.step_ms 59.2; 65.48 > 62.16`."""
    if is_open:
        return "; ".join(dict.fromkeys(answer.missing))
    named = ", ".join(
        f"{name} {value:.6g}" for name, value in answer.values.items() if value is not None
    )
    return "; ".join(words for words in (named, ", ".join(answer.compared)) if words)


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
            self.compared.append(
                f"{left:.6g} {node.sign if holds else _OPPOSITE[node.sign]} {right:.6g}"
            )
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
        quantities = self._baseline if node.of_baseline else self._run
        assert quantities is not None, "a check of a baseline needs one"
        value = quantities.values.get(node.name)
        self.values[node.label] = value
        if value is None:
            self.missing.append(f"{node.label} {quantities.why.get(node.name, 'was not measured')}")
        return value


class _Token(Struct, frozen=True, kw_only=True):
    word: str
    column: int
    leaf: Node | None = None
    """Node of a number or a quantity."""


class _Reader:
    """Checks every word itself, and leaves to Python's parser what binds what. Nothing is compiled
    or run."""

    def __init__(self, text: str, where: str, names: Collection[str]) -> None:
        self._text, self._where, self._names = text, where, names
        self._tokens = [self._token(match) for match in self._words()]

    def whole(self) -> Node:
        self._check_order()
        self._check_depth()
        leaves_as_names = ("q" if token.leaf else token.word for token in self._tokens)
        try:
            tree = ast.parse("".join(word.ljust(_WIDTH) for word in leaves_as_names), mode="eval")
        except SyntaxError as problem:
            # In this order words can be wrong by their parentheses alone.
            token = self._tokens[((problem.offset or 1) - 1) // _WIDTH]
            what = (
                "this parenthesis is not closed"
                if token.word == "("
                else "')' is one too many here"
            )
            raise self._wrong(what, token.column) from None
        node = self._node(tree.body)
        if not node.is_condition:
            raise self._wrong(
                "this is a quantity, not a condition: compare it with something, as in `step_ms > "
                "100`",
                node.column,
            )
        return node

    def _words(self) -> Iterator[re.Match[str]]:
        end = 0
        while (match := _TOKEN.match(self._text, end)) is not None:
            yield match
            end = match.end()
        rest = self._text[end:].lstrip()
        if rest:
            raise self._wrong(f"{rest[0]!r} means nothing here", len(self._text) - len(rest))

    def _token(self, match: re.Match[str]) -> _Token:
        kind = match.lastgroup or ""
        word, column = " ".join(match[kind].split()), match.start(kind)
        if kind == "number":
            if not math.isfinite(float(word)):
                raise self._wrong("this number is too large", column)
            return _Token(
                word=word, column=column, leaf=Node(column=column, sign="number", value=float(word))
            )
        if kind == "name" and word not in ("and", "or"):
            return _Token(word=word, column=column, leaf=self._quantity(word, column))
        return _Token(word=word, column=column)

    def _quantity(self, word: str, column: int) -> Node:
        if word == "baseline":
            return Node(column=column, sign="baseline")
        name = word.removeprefix("baseline.")
        if name not in self._names:
            near = difflib.get_close_matches(name, sorted(self._names), n=1)
            raise self._wrong(
                f"{name!r} is not a quantity of a diagnosis"
                + (f"; is {near[0]} meant?" if near else ""),
                column,
            )
        return Node(column=column, sign="name", name=name, of_baseline=name != word)

    def _check_order(self) -> None:
        kinds = "".join("q" if t.leaf else t.word if t.word in "()-" else "o" for t in self._tokens)
        wrong = _WRONG_ORDER.search(f"^{kinds}$")
        if wrong is None:
            return
        if wrong[0] == "$":
            raise self._wrong("a number or a name is missing here", len(self._text))
        token = self._tokens[wrong.start() - 1]
        is_more = wrong[0] in "q("
        raise self._wrong(
            f"{token.word!r} is one too many here"
            if is_more
            else "a number or a name was expected here",
            token.column,
        )

    def _check_depth(self) -> None:
        opened = minuses = 0
        for token in self._tokens:
            opened += (token.word == "(") - (token.word == ")")
            minuses = minuses + 1 if token.word == "-" else 0
            if opened + minuses > MAX_DEPTH:
                raise self._wrong(
                    f"more than {MAX_DEPTH} parentheses or signs inside one another", token.column
                )

    def _node(self, tree: ast.expr) -> Node:
        match tree:
            case ast.Name():
                leaf = self._tokens[tree.col_offset // _WIDTH].leaf
                assert leaf is not None
                return leaf
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                column = self._tokens[tree.col_offset // _WIDTH].column
                return Node(
                    column=column,
                    sign="-",
                    sides=(Node(column=column, sign="number"), self._number(operand)),
                )
            case ast.BinOp(
                left=left, right=right, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()
            ):
                sign = self._sign_before(right)
                return Node(
                    column=sign.column,
                    sign=sign.word,
                    sides=(self._number(left), self._number(right)),
                )
            case ast.Compare(left=left, comparators=[right]):
                sign = self._sign_before(right)
                return self._with_baseline(
                    Node(
                        column=sign.column,
                        sign=sign.word,
                        sides=(self._number(left), self._number(right)),
                    )
                )
            case ast.Compare(comparators=[_, second, *_]):
                raise self._wrong(
                    "one comparison at a time: join two with `and`",
                    self._sign_before(second).column,
                )
            case ast.BoolOp(values=values):
                sign = self._sign_before(values[1])
                sides = tuple(self._condition(value, sign.word) for value in values)
                return Node(column=sign.column, sign=sign.word, sides=sides)
        raise self._wrong("this means nothing here", self._tokens[tree.col_offset // _WIDTH].column)

    def _sign_before(self, tree: ast.expr) -> _Token:
        """The sign that the right side of two stands after, perhaps in parentheses."""
        index = tree.col_offset // _WIDTH - 1
        while self._tokens[index].word == "(":
            index -= 1
        return self._tokens[index]

    def _number(self, tree: ast.expr) -> Node:
        node = self._node(tree)
        if node.is_condition:
            raise self._wrong(
                "this is a condition; a quantity or a number was expected on both sides",
                node.column,
            )
        return node

    def _condition(self, tree: ast.expr, sign: str) -> Node:
        node = self._node(tree)
        if not node.is_condition:
            raise self._wrong(
                f"`{sign}` joins conditions, and this is a quantity: compare it with something",
                node.column,
            )
        return node

    def _with_baseline(self, comparison: Node) -> Node:
        """The comparison with its bare `baseline` made the quantity that it names."""
        bare = next((node for node in walk(comparison) if node.sign == "baseline"), None)
        if bare is None:
            return comparison
        named = list(dict.fromkeys(node.name for node in walk(comparison) if node.sign == "name"))
        if len(named) != 1:
            what = (
                f"this comparison names {' and '.join(named)}"
                if named
                else "this comparison names no quantity"
            )
            raise self._wrong(
                f"baseline of what? {what}: write baseline.{named[0] if named else 'step_ms'} or "
                "the like",
                bare.column,
            )
        return _filled(comparison, named[0])

    def _wrong(self, problem: str, column: int) -> UsageError:
        names = ", ".join(
            sorted(name for name in self._names if "." not in name and " " not in name)
        )
        bounds = ", ".join(
            sorted(name.removeprefix("share.") for name in self._names if name.startswith("share."))
        )
        return UsageError(
            f"{self._where}: {problem}\n\n    {self._text}\n    {' ' * column}^\n\n"
            f"{textwrap.fill(f'names: {names};', 100)}\n"
            f"share.BOUND ({bounds});\n"
            f"finding.CODE (`stepscope explain --list` has the codes), any finding;\n"
            f"baseline for the same quantity of --baseline, baseline.NAME for another"
        )


def _filled(node: Node, name: str) -> Node:
    if node.sign == "baseline":
        return replace(node, sign="name", name=name, of_baseline=True)
    return replace(node, sides=tuple(_filled(side, name) for side in node.sides))
