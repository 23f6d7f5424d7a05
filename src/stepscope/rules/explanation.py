"""A rule's own text: what `stepscope explain` prints and the documentation's pages are made of."""

from __future__ import annotations

import difflib
import inspect

from stepscope.errors import UsageError
from stepscope.rules.registry import every_rule
from stepscope.rules.rule import Rule

SECTIONS = ("What it sees", "Why it costs", "Evidence it needs", "What to do", "Example")


def first_lines() -> list[tuple[str, str]]:
    """Each code with the first line of its text, by bound and code."""
    ordered = sorted(every_rule(), key=lambda rule: (rule.bound, rule.code))
    return [(rule.code, text_of(rule).splitlines()[0]) for rule in ordered]


def text_of(rule: Rule) -> str:
    """A rule's documentation, without its file's indents."""
    return inspect.cleandoc(rule.text or "")


def explain(code: str) -> str:
    """The text of one rule; an unknown code is answered with the nearest ones."""
    by_code = {rule.code: rule for rule in every_rule()}
    if code not in by_code:
        near = difflib.get_close_matches(code, by_code, n=3, cutoff=0.4)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            f"there is no finding called {code!r}. {hint}`stepscope explain --list` names them all."
        )
    rule = by_code[code]
    return f"{code} (bound: {rule.bound})\n\n{text_of(rule)}"


def page(rule: Rule) -> str:
    """The documentation page of a rule, in Markdown."""
    first, *rest = text_of(rule).split("\n\n")
    lines = [f"# {rule.code}", "", f"Bound: {rule.bound}. {first}", ""]
    for paragraph in rest:
        title, _, body = paragraph.partition(": ")
        if title in SECTIONS:
            lines += [f"**{title}.** {' '.join(body.split())}", ""]
        else:
            lines += [" ".join(paragraph.split()), ""]
    return "\n".join(lines)
