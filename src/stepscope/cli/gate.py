"""The gate of `diagnose`: limits that a run must keep, from --fail-if and --budget, and what they
are compared with."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli import options as declare
from stepscope.cli.printing import say
from stepscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from stepscope.core.diagnosis import Diagnosis
    from stepscope.core.gate import Budget, Check, Gate, Quantities

FAILED = 1
"""The exit code of a gate that failed; 2 is a mistake in what was asked."""
MAX_JSON_BYTES = 64 << 20
IS_DIAGNOSIS = re.compile(rb'"schema"\s*:\s*"stepscope\.diagnosis/')


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What the command line says about limits."""

    fail_if: list[str] = declare.option(
        "--fail-if CONDITION",
        'a condition that must not hold, such as "step_ms > baseline*1.05"; may be given '
        "several times",
        default=[],
    )
    budget: Path | None = declare.option("--budget FILE", "limits in a TOML file", Path)
    baseline: str | None = declare.option(
        "--baseline PATH",
        "what `baseline` stands for: an earlier diagnosis in JSON, a run, or a trace",
        declare.run_name,
    )

    @property
    def is_wanted(self) -> bool:
        return bool(self.fail_if) or self.budget is not None or self.baseline is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedGate:
    """What the user wants of the run."""

    checks: tuple[Check, ...]
    codes: tuple[str, ...]
    """Codes of every finding there can be."""
    missing: str
    baseline: str | None


def read_asked(
    options: GateOptions,
    more_names: Collection[str] = (),
    only: Collection[str] | None = None,
) -> AskedGate | None:
    """The gate that these options ask for; None when they ask for none. Mistakes are reported
    before anything is measured.

    `more_names` are quantities beside those of a diagnosis, `only` those in place of them.
    """
    if not options.is_wanted:
        return None
    from stepscope.core.gate import Budget, Check, parse
    from stepscope.core.gate_quantities import known_names
    from stepscope.core.toml_text import read_toml
    from stepscope.rules.registry import every_rule

    codes = tuple(rule.code for rule in every_rule())
    names = known_names(codes) | frozenset(more_names) if only is None else frozenset(only)
    checks = [
        Check(text=text, source="--fail-if", condition=parse(text, "--fail-if", names))
        for text in options.fail_if
    ]
    missing, baseline = "fail", options.baseline
    if options.budget is not None:
        budget = read_toml(options.budget, Budget)
        checks += _budget_checks(budget, str(options.budget), names)
        missing = budget.missing
        baseline = baseline or _budget_baseline(budget.baseline, options.budget)
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
    return AskedGate(checks=tuple(checks), codes=codes, missing=missing, baseline=baseline)


def read_baseline(
    asked: AskedGate, diagnose: Callable[[str], Diagnosis]
) -> tuple[Quantities, str] | None:
    """The baseline's quantities and where its step time comes from. A diagnosis is read, anything
    else diagnosed."""
    if asked.baseline is None:
        return None
    from stepscope.core.gate_quantities import read_quantities
    from stepscope.readers.remote import shown
    from stepscope.report.diagnosis.json import to_json

    try:
        text = kept_bytes(asked.baseline) or to_json(diagnose(asked.baseline))
        return read_quantities(text, shown(asked.baseline), asked.codes)
    except InputError as problem:
        raise type(problem)(f"--baseline: {problem}") from None


def judge(asked: AskedGate, diagnosis: Diagnosis, baseline: tuple[Quantities, str] | None) -> Gate:
    """Every check's answer."""
    from stepscope.core.gate_quantities import comparable, read_quantities
    from stepscope.report.diagnosis.json import to_json

    run, source = read_quantities(to_json(diagnosis), "this diagnosis", asked.codes)
    against = None if baseline is None else comparable(*baseline, source)
    return judge_quantities(asked, run, against)


def judge_quantities(asked: AskedGate, run: Quantities, against: Quantities | None = None) -> Gate:
    """Every check's answer, by what was measured."""
    from stepscope.core.gate import Gate, decide
    from stepscope.readers.remote import shown

    return Gate(
        results=tuple(decide(check, run, against) for check in asked.checks),
        missing=asked.missing,
        baseline=None if asked.baseline is None else shown(asked.baseline),
    )


def say_gate(gate: Gate) -> int:
    """The reasons on stderr, after the report. Returns the exit code."""
    from stepscope.report.gate import gate_lines

    sys.stdout.flush()
    for line in gate_lines(gate):
        say(line)
    return 0 if gate.is_passed else FAILED


def kept_bytes(text: str) -> bytes | None:
    """The bytes of a diagnosis that was kept as JSON; None when the path is something else, which
    its own reader then judges."""
    from stepscope.protocol.untrusted import read_regular
    from stepscope.readers.remote import as_path

    path = as_path(text)
    if isinstance(path, str) or not path.is_file():
        return None
    try:
        data = read_regular(path, MAX_JSON_BYTES)
    except OSError:
        return None
    return data if IS_DIAGNOSIS.search(data) else None


def _budget_baseline(baseline: str | None, path: Path) -> str | None:
    """The budget's own baseline: a path is seen from the budget's folder; else it may be a run's
    name."""
    from stepscope.readers.remote import as_path
    from stepscope.readers.run_folder.kept_runs import resolve

    if baseline is None:
        return None
    location = as_path(baseline)
    if isinstance(location, str):
        return location
    beside = path.parent / location
    return str(beside) if beside.exists() else resolve(baseline, otherwise=str(beside))


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
    from stepscope.core.gate_quantities import MORE_IS_BETTER

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
