"""The gate of `diagnose`: limits that a run must keep, from --fail-if and --budget, and what they
are compared with."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.core.diagnosis import Diagnosis
    from stepscope.core.gate import Budget, Check, Gate, Quantities

FAILED = 1
"""The exit code of a gate that failed; 2 is a mistake in what was asked."""
OPTIONS = ("--fail-if", "--budget", "--baseline")
MAX_JSON_BYTES = 64 << 20
IS_DIAGNOSIS = re.compile(rb'"schema"\s*:\s*"stepscope\.diagnosis/')
IS_SAVED = re.compile(rb'"format"\s*:\s*"stepscope\.saved-diagnosis/')


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user wants of the run."""

    checks: tuple[Check, ...]
    codes: tuple[str, ...]
    """Of every finding there can be."""
    missing: str
    baseline: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    gate = parser.add_argument_group(
        "gate", "exit code 1, with the reasons on stderr, when the run does not keep a limit"
    )
    gate.add_argument(
        "--fail-if",
        metavar="CONDITION",
        action="append",
        default=[],
        help='a condition that must not hold, such as "step_ms > baseline*1.05"; may be given '
        "several times",
    )
    gate.add_argument("--budget", type=Path, metavar="FILE", help="limits in a TOML file")
    gate.add_argument(
        "--baseline",
        metavar="PATH",
        help="what `baseline` stands for: an earlier diagnosis in JSON, a run, or a trace",
    )


def is_wanted(arguments: argparse.Namespace) -> bool:
    return bool(arguments.fail_if) or arguments.budget is not None or arguments.baseline is not None


def read_asked(arguments: argparse.Namespace, more_names: Collection[str] = ()) -> Asked | None:
    """The gate of these arguments; None when none is wanted. Mistakes are told before anything is
    measured.

    `more_names` are quantities beside those of a diagnosis.
    """
    if not is_wanted(arguments):
        return None
    from stepscope.core.gate import Budget, Check, parse
    from stepscope.core.toml_text import read_toml
    from stepscope.errors import UsageError
    from stepscope.report.gate import known_names
    from stepscope.rules.registry import RULES

    codes = tuple(rule.CODE for rule in RULES)
    names = known_names(codes) | frozenset(more_names)
    checks = [
        Check(text=text, source="--fail-if", condition=parse(text, "--fail-if", names))
        for text in arguments.fail_if
    ]
    missing, baseline = "fail", arguments.baseline
    if arguments.budget is not None:
        budget = read_toml(arguments.budget, Budget)
        checks += _budget_checks(budget, str(arguments.budget), names)
        missing = budget.missing
        baseline = baseline or _budget_baseline(budget.baseline, arguments.budget)
    if not checks:
        raise UsageError(
            "there is a baseline, or a budget, and nothing to check: give --fail-if, or [limits] "
            "in the budget"
        )
    lacking = next((check for check in checks if check.needs_baseline), None)
    if lacking is not None and baseline is None:
        what = (
            "an earlier diagnosis (stepscope diagnose ... --format json > FILE), a run, or a trace"
        )
        raise UsageError(
            f"{lacking.source}: `{lacking.text}` compares with a baseline: give one with "
            f"--baseline, {what}"
        )
    return Asked(checks=tuple(checks), codes=codes, missing=missing, baseline=baseline)


def read_baseline(
    asked: Asked, diagnose: Callable[[str], Diagnosis]
) -> tuple[Quantities, str] | None:
    """The baseline's quantities and where its step time comes from. A diagnosis is read, anything
    else diagnosed."""
    if asked.baseline is None:
        return None
    from stepscope.errors import InputError
    from stepscope.readers.remote import shown
    from stepscope.report.diagnosis.json import to_json
    from stepscope.report.gate import read_quantities

    try:
        told = _diagnosis_bytes(asked.baseline)
        text = to_json(diagnose(asked.baseline)) if told is None else told
        return read_quantities(text, shown(asked.baseline), asked.codes)
    except InputError as problem:
        raise type(problem)(f"--baseline: {problem}") from None


def judge(asked: Asked, diagnosis: Diagnosis, baseline: tuple[Quantities, str] | None) -> Gate:
    """Every check's answer."""
    from stepscope.core.gate import Gate, decide
    from stepscope.readers.remote import shown
    from stepscope.report.diagnosis.json import to_json
    from stepscope.report.gate import comparable, read_quantities

    run, source = read_quantities(to_json(diagnosis), "this diagnosis", asked.codes)
    against = None if baseline is None else comparable(*baseline, source)
    return Gate(
        results=tuple(decide(check, run, against) for check in asked.checks),
        missing=asked.missing,
        baseline=None if asked.baseline is None else shown(asked.baseline),
    )


def _diagnosis_bytes(text: str) -> bytes | str | None:
    """The JSON of a diagnosis; None when the path is something else, which its own reader then
    judges."""
    from stepscope.core.saved import load
    from stepscope.protocol.untrusted import read_regular
    from stepscope.readers.remote import as_path
    from stepscope.report.diagnosis.json import to_json

    path = as_path(text)
    if isinstance(path, str) or not path.is_file():
        return None
    try:
        data = read_regular(path, MAX_JSON_BYTES)
    except OSError:
        return None
    if IS_SAVED.search(data):
        return to_json(load(path))
    return data if IS_DIAGNOSIS.search(data) else None


def _budget_baseline(told: str | None, path: Path) -> str | None:
    """The budget's own baseline; a path in it is seen from the budget's folder."""
    from stepscope.readers.remote import as_path

    if told is None:
        return None
    at = as_path(told)
    return at if isinstance(at, str) else str(path.parent / at)


def _budget_checks(budget: Budget, where: str, names: frozenset[str]) -> Iterator[Check]:
    from stepscope.core.gate import Check, parse

    for text in [budget.fail_if] if isinstance(budget.fail_if, str) else budget.fail_if:
        yield Check(
            text=text, source=f"{where}: fail_if", condition=parse(text, f"{where}: fail_if", names)
        )
    for name, value in _flat(budget.limits):
        yield _limit(name, value, f"{where}: limits", names)


def _flat(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """`share.data = 0.1` is a table in a table to TOML."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _limit(name: str, value: Any, where: str, names: frozenset[str]) -> Check:
    """`step_ms = 70` allows at most that; a text may begin with another comparison (`mfu = ">=
    0.4"`)."""
    from stepscope.core.gate import COMPARISONS, Check, parse
    from stepscope.errors import UsageError
    from stepscope.report.gate import MORE_IS_BETTER

    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(
            f'{where}: {name} is {value!r}; write a number, or a text such as "<= baseline * 1.05"'
        )
    text = str(value).strip()
    compares = isinstance(value, str) and text.startswith(COMPARISONS)
    if name in MORE_IS_BETTER and not compares:
        raise UsageError(
            f'{where}: is {name} = {value!r} the most or the least? Write {name} = ">= {text}" or '
            f'"<= {text}"'
        )
    if name in names:
        text = f"{name} {text}" if compares else f"{name} <= {text}"
        condition = parse(text, where, names)
        if condition.sign not in COMPARISONS:
            raise UsageError(
                f"{where}: {name} has one limit; what is joined by `and` or `or` goes under fail_if"
            )
        return Check(text=text, source=where, condition=condition, fails_when=False)
    parse(name, where, names)
    raise UsageError(f"{where}: {name!r} is not one quantity; conditions go under fail_if")
