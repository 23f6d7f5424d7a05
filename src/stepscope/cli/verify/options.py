"""The options of `stepscope verify`, and what they say as values."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.options import count, int_in_range, positive, seconds
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.core.experiments.experiment import Side
    from stepscope.core.experiments.trials import Change, Value

MAX_STEPS = 50
"""Timed in each run, where nothing else is said."""
ALLOWABLE = (
    "batch-size", "batches", "data", "dataset", "device", "model", "numerics", "parameters",
    "seed", "updates", "versions",
    "world-size",
)  # fmt: skip


def _ratio(text: str) -> float:
    return positive("a speedup, such as 1.53")(text.removesuffix("x"))


def _share(text: str) -> float:
    value = positive("a share, such as 0.02 or 2%")(text.removesuffix("%"))
    value /= 100 if text.endswith("%") else 1
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share below 1: write 0.02, or 2%")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOptions:
    """What the command line says of the two sides."""

    baseline: str | None = declare.option("--baseline CMD", "the command as it is, in quotes")
    candidate: str | None = declare.option(
        "--candidate CMD",
        "the command that may be faster, in quotes (default: the baseline's)",
    )
    apply: list[str] = declare.option(
        "--apply CODE|KNOB=VALUE",
        "applied to the candidate from outside: a finding's code, or a setting and its value; "
        "may be given several times",
        default=[],
    )
    baseline_env: list[str] = declare.option(
        "--baseline-env NAME=VALUE",
        "an environment variable of the baseline; may be given several times",
        default=[],
    )
    candidate_env: list[str] = declare.option(
        "--candidate-env NAME=VALUE",
        "an environment variable of the candidate; may be given several times",
        default=[],
    )
    command: tuple[str, ...] = declare.command("the command of both sides")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How long is measured."""

    steps: int | None = declare.option(
        "--steps N",
        f"timed steps of each run (default: {MAX_STEPS}, and fewer for a gain that fewer show)",
        count,
    )
    warm_up_steps: int | None = declare.warm_up()
    budget_s: float | None = declare.budget()
    max_rounds: int = declare.option(
        "--max-rounds N",
        "rounds of four runs at most (default: 10)",
        int_in_range("a number of rounds; give 2 or more: one round proves nothing", 2, 1000),
        10,
    )
    precision: float = declare.option(
        "--precision SHARE",
        "how tight an interval settles that there is no gain (2%%)",
        _share,
        0.02,
    )
    threshold: float = declare.option(
        "--threshold SHARE", "what is below it is no gain in practice (1%%)", _share, 0.01
    )
    timeout_s: float | None = declare.option(
        "--timeout SECONDS", "for each run (default: none)", seconds
    )

    @property
    def most_steps(self) -> int:
        return MAX_STEPS if self.steps is None else self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the command line says of what is judged, and of what was predicted."""

    allow: list[str] = declare.option(
        "--allow WHAT",
        f"what may differ between the sides: {', '.join(ALLOWABLE)}",
        default=[],
        choices=ALLOWABLE,
    )
    check: bool = declare.option(
        "--check", "compare what the two compute, too: losses, gradients, parameters"
    )
    tolerance: float | None = declare.option(
        "--tolerance SHARE",
        "relative, between two losses that count as equal (default: 0.0001)",
        _share,
    )
    predicted: float | None = declare.option(
        "--predicted RATIO", "a predicted speedup to hold against what it gives", _ratio
    )
    predicted_by: Path | None = declare.option(
        "--from PATH", "a diagnosis in JSON, or a run, that predicted it", declare.run_path
    )
    finding: str | None = declare.option(
        "--finding CODE",
        "the finding in --from that the candidate fixes, where --apply does not name it",
        was="--mends",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    sides: SideOptions = declare.group(SideOptions, "the two sides")
    measuring: Measuring = declare.group(Measuring, "how long")
    judged: Judged = declare.group(Judged, "what is judged")
    style: str = declare.style()
    out: Path | None = declare.out_folder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The two sides."""

    commands: dict[Side, tuple[str, ...]]
    changes: dict[Side, Change]
    codes: tuple[str, ...]
    """Codes of the findings that are to be fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How a difference between two sides is proven."""

    measuring: Measuring
    allowed: frozenset[str] = frozenset()
    """What may differ between the sides."""
    with_check: bool = False
    """Whether what the two compute is compared, too."""
    tolerance: float | None = None
    step_s: float | None = None
    """What a step takes, where that is known before the first run."""

    @property
    def allows_numerics(self) -> bool:
        return "numerics" in self.allowed


def proof_of(options: Options) -> Proof:
    judged = options.judged
    return Proof(
        measuring=options.measuring,
        allowed=frozenset(judged.allow),
        with_check=judged.check,
        tolerance=judged.tolerance,
    )


def read_sides(given: SideOptions) -> Sides:
    """The sides of these options. Mistakes are reported before anything runs."""
    from stepscope.core.experiments.trials import Change
    from stepscope.protocol.settings import raised_by

    if given.command and given.baseline is not None:
        raise UsageError(
            "the baseline's command was given twice: with --baseline, and after the two dashes. "
            "Leave one out"
        )
    if not given.command and given.baseline is None:
        raise UsageError(
            'no command was given: stepscope verify --baseline "python train.py" --candidate '
            '"...", '
            "or stepscope verify --apply CODE -- python train.py"
        )
    baseline = given.command or words_of(given.baseline or "", "--baseline")
    candidate = baseline if given.candidate is None else words_of(given.candidate, "--candidate")
    knobs, codes = read_applied(given.apply, baseline)
    named = {text.partition("=")[0] for text in given.apply if "=" in text}
    changes: dict[Side, Change] = {
        "baseline": Change(environment=_environment(given.baseline_env, "--baseline-env")),
        "candidate": Change(
            environment=_environment(given.candidate_env, "--candidate-env"),
            knobs=knobs,
            raised=tuple(
                sorted({name for code in codes for name in raised_by(code, knobs)} - named)
            ),
        ),
    }
    if baseline == candidate and changes["baseline"] == changes["candidate"]:
        raise UsageError(
            "the two sides are the same. Say what the candidate has that the baseline has not: "
            "--candidate CMD, --apply CODE, --apply KNOB=VALUE or --candidate-env NAME=VALUE"
        )
    return Sides(
        commands={"baseline": baseline, "candidate": candidate}, changes=changes, codes=codes
    )


def read_applied(
    texts: Sequence[str], command: Sequence[str]
) -> tuple[dict[str, Value], tuple[str, ...]]:
    """The knobs of `--apply`, and the codes among them."""
    from stepscope.cli.verify.recorded import recorded_fixes
    from stepscope.protocol.settings import SETTINGS, value_of

    knobs: dict[str, Value] = {}
    codes: list[str] = []
    for text in texts:
        name, sign, value = text.partition("=")
        if sign:
            try:
                new: dict[str, Value] = {name: value_of(name, value)}
            except ValueError as problem:
                raise UsageError(f"--apply {text}: {_near(name, SETTINGS)}{problem}") from None
        else:
            settings = recorded_fixes(text, command)[0]
            if settings is None:
                raise UsageError(
                    f"--apply {text}: not a finding whose fix can be set from outside; "
                    f"{_no_fix_hint(text)}"
                )
            new = dict(settings)
            codes.append(text)
        twice = next((knob for knob in new if knob in knobs and knobs[knob] != new[knob]), None)
        if twice is not None:
            raise UsageError(
                f"--apply: {twice} would be both {knobs[twice]} and {new[twice]}; apply one of "
                "the two"
            )
        knobs |= new
    return knobs, tuple(codes)


def _no_fix_hint(text: str) -> str:
    from stepscope.experiments.fix_values import fixes
    from stepscope.protocol.settings import SETTINGS

    if text in SETTINGS:
        return f"a setting is given with its value: --apply {text}=..."
    codes = {code for setting in SETTINGS.values() for code in setting.fixes}
    fixable = sorted(code for code in codes if fixes(code))
    return f"{_near(text, fixable)}those are: {', '.join(fixable)}"


def _near(word: str, valid: Iterable[str]) -> str:
    """What was likely meant by a word that is not valid; empty where it is, or nothing is like
    it."""
    names = list(valid)
    near = [] if word in names else difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}? " if near else ""


def words_of(text: str, option: str) -> tuple[str, ...]:
    """A command line in quotes."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as problem:
        raise UsageError(f"{option} {text!r} is not a command line: {problem}") from None
    if not words:
        raise UsageError(f"{option} is empty; give the command that starts the job, in quotes")
    return words


def _environment(texts: Sequence[str], option: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UsageError(f"{option} {text!r}: write NAME=VALUE")
        if out.get(name, value) != value:
            raise UsageError(
                f"{option}: {name} would be both {out[name]!r} and {value!r}; give one of the two"
            )
        out[name] = value
    return out
