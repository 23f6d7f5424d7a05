"""The options of `stepscope verify`, and what they say as values."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.option_types import count, positive, seconds
from stepscope.cli.options import add_format, run_path
from stepscope.errors import UsageError
from stepscope.protocol.run_folder import RUNS

if TYPE_CHECKING:
    from stepscope.core.experiments.experiment import Side
    from stepscope.core.experiments.trials import Change, Value

ALLOWABLE = (
    "batch-size", "batches", "data", "dataset", "device", "model", "numerics", "parameters",
    "seed", "updates", "versions",
    "world-size",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sides = parser.add_argument_group("the two sides")
    sides.add_argument("--baseline", metavar="CMD", help="the command as it is, in quotes")
    sides.add_argument(
        "--candidate",
        metavar="CMD",
        help="the command that may be faster, in quotes (default: the baseline's)",
    )
    sides.add_argument(
        "--apply",
        metavar="CODE|KNOB=VALUE",
        action="append",
        default=[],
        help="applied to the candidate from outside: a finding's code, or a setting and its value; "
        "may be given several times",
    )
    for side in ("baseline", "candidate"):
        what = f"an environment variable of the {side}; may be given several times"
        sides.add_argument(
            f"--{side}-env", metavar="NAME=VALUE", action="append", default=[], help=what
        )
    sides.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND ...",
        help="the command of both sides",
    )
    add_measuring(parser)
    judged = parser.add_argument_group("what is judged")
    judged.add_argument(
        "--allow",
        metavar="WHAT",
        action="append",
        default=[],
        choices=ALLOWABLE,
        help=f"what may differ between the sides: {', '.join(ALLOWABLE)}",
    )
    judged.add_argument(
        "--check",
        action="store_true",
        help="compare what the two compute, too: losses, gradients, parameters",
    )
    judged.add_argument(
        "--tolerance",
        type=_share,
        metavar="SHARE",
        help="relative, between two losses that count as equal (default: 0.0001)",
    )
    judged.add_argument(
        "--predicted",
        type=_ratio,
        metavar="RATIO",
        help="a predicted speedup to hold against what it gives",
    )
    judged.add_argument(
        "--from",
        dest="predicted_by",
        type=run_path,
        metavar="PATH",
        help="a diagnosis in JSON, or a run, that predicted it",
    )
    judged.add_argument(
        "--finding",
        metavar="CODE",
        help="the finding in --from that the candidate fixes, where --apply does not name it",
    )
    # As it was called before.
    judged.add_argument(
        "--mends", dest="finding", metavar="CODE", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    add_format(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where the runs are kept (default: a dated folder in {RUNS}/)",
    )


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Options of how long is measured."""
    group = parser.add_argument_group("how long")
    group.add_argument(
        "--steps",
        type=count,
        default=50,
        metavar="N",
        help="timed steps of each run (default: 50)",
    )
    group.add_argument(
        "--warm-up",
        type=count,
        default=10,
        metavar="N",
        help="steps before them that do not count, 5 at least (default: 10)",
    )
    group.add_argument(
        "--budget",
        type=seconds,
        metavar="SECONDS",
        help="for the whole command: what runs then is ended (default: none)",
    )
    group.add_argument(
        "--max-rounds",
        type=_rounds,
        default=10,
        metavar="N",
        help="rounds of four runs at most (default: 10)",
    )
    group.add_argument(
        "--precision",
        type=_share,
        default=0.02,
        metavar="SHARE",
        help="how tight an interval settles that there is no gain (2%%)",
    )
    group.add_argument(
        "--threshold",
        type=_share,
        default=0.01,
        metavar="SHARE",
        help="what is below it is no gain in practice (1%%)",
    )
    group.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", help="for each run (default: none)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The two sides."""

    commands: dict[Side, tuple[str, ...]]
    changes: dict[Side, Change]
    codes: tuple[str, ...]
    """Of the findings that are to be fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How long is measured."""

    steps: int
    warm_up_steps: int
    budget_s: float | None
    max_rounds: int
    precision: float
    threshold: float
    timeout_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How a difference between two sides is proven."""

    measuring: Measuring
    allowed: frozenset[str] = frozenset()
    """What may differ between the sides."""
    with_check: bool = False
    """Whether what the two compute is compared, too."""
    tolerance: float | None = None

    @property
    def allows_numerics(self) -> bool:
        return "numerics" in self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Where the command line says that a prediction stands."""

    speedup: float | None
    """--predicted"""
    path: Path | None
    """--from"""
    finding: str | None
    """--finding"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    sides: Sides
    proof: Proof
    predicted: Predicted
    style: str
    out: Path | None


def measuring_of(arguments: argparse.Namespace) -> Measuring:
    return Measuring(
        steps=arguments.steps,
        warm_up_steps=arguments.warm_up,
        budget_s=arguments.budget,
        max_rounds=arguments.max_rounds,
        precision=arguments.precision,
        threshold=arguments.threshold,
        timeout_s=arguments.timeout,
    )


def options_of(arguments: argparse.Namespace) -> Options:
    return Options(
        sides=read_sides(arguments),
        proof=Proof(
            measuring=measuring_of(arguments),
            allowed=frozenset(arguments.allow),
            with_check=arguments.check,
            tolerance=arguments.tolerance,
        ),
        predicted=Predicted(
            speedup=arguments.predicted, path=arguments.predicted_by, finding=arguments.finding
        ),
        style=arguments.format,
        out=arguments.out,
    )


def read_sides(arguments: argparse.Namespace) -> Sides:
    """The sides of these arguments. Mistakes are reported before anything runs."""
    from stepscope.core.experiments.trials import Change
    from stepscope.protocol.settings import raised_by

    after = list(arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command)
    if after and arguments.baseline is not None:
        raise UsageError(
            "the baseline's command was given twice: with --baseline, and after the two dashes. "
            "Leave one out"
        )
    baseline = tuple(after) if after else _words(arguments.baseline, "--baseline")
    candidate = (
        baseline if arguments.candidate is None else _words(arguments.candidate, "--candidate")
    )
    knobs, codes = read_applied(arguments.apply)
    given = {text.partition("=")[0] for text in arguments.apply if "=" in text}
    changes: dict[Side, Change] = {
        "baseline": Change(environment=_environment(arguments.baseline_env, "--baseline-env")),
        "candidate": Change(
            environment=_environment(arguments.candidate_env, "--candidate-env"),
            knobs=knobs,
            raised=frozenset().union(*(raised_by(code, knobs) for code in codes)) - given,
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


def read_applied(texts: Sequence[str]) -> tuple[dict[str, Value], tuple[str, ...]]:
    """The knobs of `--apply`, and the codes among them."""
    from stepscope.experiments.fix_values import fixes
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
            settings = fixes(text)
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


def _words(text: str | None, option: str) -> tuple[str, ...]:
    if text is None:
        raise UsageError(
            'no command was given: stepscope verify --baseline "python train.py" --candidate '
            '"...", '
            "or stepscope verify --apply CODE -- python train.py"
        )
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


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of rounds; give 2 or more: one round proves nothing"
        )
    return int(text)


def _ratio(text: str) -> float:
    return positive(text.removesuffix("x"), "a speedup, such as 1.53")


def _share(text: str) -> float:
    value = positive(text.removesuffix("%"), "a share, such as 0.02 or 2%") / (
        100 if text.endswith("%") else 1
    )
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share below 1: write 0.02, or 2%")
    return value
