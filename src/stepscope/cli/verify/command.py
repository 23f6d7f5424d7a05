"""Prove that a change makes training faster: both sides run for real, in turn, until it is settled.

Give two commands, or one command and what to lay over it:
  stepscope verify --baseline "python train.py" --candidate "python train_new.py"
  stepscope verify --apply serial-loader -- python train.py
  stepscope verify --apply num_workers=4 -- python train.py
The runs take turns (ABBA, then BAAB), no profiler is attached, and each ends after a few steps. The unit of evidence is the run.
Exit code 0 when a gain is proven, 1 when it is not, 2 when the two cannot be compared.
"""

from __future__ import annotations

import argparse
import difflib
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.printing import print_document, put, say
from stepscope.errors import UsageError
from stepscope.experiments.trials.signals import ended_as_by_hand

if TYPE_CHECKING:
    from stepscope.core.experiment import Interval, Measured, Prediction, Side, Verified
    from stepscope.core.trials import Change, Trial, Value
    from stepscope.experiments.budget import Budget
    from stepscope.experiments.verify.schedule import VerifyPolicy

RUNS = "stepscope-runs"
RESULT_FILE = "verification.json"
PROVEN_CODE, UNPROVEN_CODE, REFUSED_CODE = 0, 1, 2
LEAST_LIMIT_S, LIMIT_TIMES = 120.0, 10.0
"""For a run that nobody gave a limit: so long at least, and so many times the longest before it."""
CHECK_RUNS = 3
"""Of --check: two of the baseline, one of the candidate."""
ALLOWABLE = (
    "batch-size", "batches", "data", "dataset", "device", "model", "numerics", "parameters", "seed", "updates", "versions",
    "world-size",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sides = parser.add_argument_group("the two sides")
    sides.add_argument("--baseline", metavar="CMD", help="the command as it is, in quotes")
    sides.add_argument("--candidate", metavar="CMD", help="the command that may be faster, in quotes (default: the baseline's)")
    sides.add_argument(
        "--apply",
        metavar="CODE|KNOB=VALUE",
        action="append",
        default=[],
        help="applied to the candidate from outside: a finding's code, or a setting and its value; may be given several times",
    )
    for side in ("baseline", "candidate"):
        what = f"an environment variable of the {side}; may be given several times"
        sides.add_argument(f"--{side}-env", metavar="NAME=VALUE", action="append", default=[], help=what)
    sides.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the command of both sides")
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
    judged.add_argument("--check", action="store_true", help="compare what the two compute, too: losses, gradients, parameters")
    judged.add_argument(
        "--tolerance", type=_share, metavar="SHARE", help="relative, between two losses that count as equal (default: 0.0001)"
    )
    judged.add_argument("--predicted", type=_ratio, metavar="RATIO", help="a predicted speedup to hold against what it gives")
    judged.add_argument(
        "--from", dest="predicted_by", type=Path, metavar="PATH", help="a diagnosis in JSON, or a run, that predicted it"
    )
    judged.add_argument(
        "--finding", metavar="CODE", help="the finding in --from that the candidate fixes, where --apply does not name it"
    )
    # As it was called before.
    judged.add_argument("--mends", dest="finding", metavar="CODE", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text", help="how to print it (default: text)")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"where the runs are kept (default: a dated folder in {RUNS}/)")


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Options of how long is measured."""
    group = parser.add_argument_group("how long")
    group.add_argument("--steps", type=_count, default=50, metavar="N", help="timed steps of each run (default: 50)")
    group.add_argument(
        "--warm-up", type=_count, default=10, metavar="N", help="steps before them that do not count, 5 at least (default: 10)"
    )
    group.add_argument(
        "--budget", type=_seconds, metavar="SECONDS", help="for the whole command: what runs then is ended (default: none)"
    )
    group.add_argument("--max-rounds", type=_rounds, default=10, metavar="N", help="rounds of four runs at most (default: 10)")
    group.add_argument(
        "--precision",
        type=_share,
        default=0.02,
        metavar="SHARE",
        help="how tight an interval settles that there is no gain (2%%)",
    )
    group.add_argument(
        "--threshold", type=_share, default=0.01, metavar="SHARE", help="what is below it is no gain in practice (1%%)"
    )
    group.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="for each run (default: none)")


def run(arguments: argparse.Namespace) -> int:
    from stepscope.capture.session import FIRST_STEPS
    from stepscope.cli.run import dated
    from stepscope.cli.verify.prediction import read_prediction
    from stepscope.experiments.budget import Budget, for_runs

    budget = Budget(None if arguments.budget is None else for_runs(arguments.budget), time.monotonic)
    asked = read_asked(arguments)
    folder = arguments.out or dated(Path(RUNS))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and not empty. Give --out another folder, or take that one away")
    prediction = read_prediction(arguments, asked.codes, asked.changes["candidate"].knobs)
    check_commands(asked)
    steps = max(arguments.warm_up, FIRST_STEPS) + arguments.steps
    if not refused_beforehand(asked):
        for words in applied_words(asked.codes):
            say(words)
        say(f"each run ends after {steps} steps; one that makes none goes on to its end (--timeout)")
    with ended_as_by_hand():
        verified = prove(arguments, asked, folder, prediction, budget)
    verified = replace(verified, notes=(*verified.notes, *applied_words(asked.codes)))
    if verified.is_gain and "numerics" not in arguments.allow:
        from stepscope.cli.verify.check import numbers_notes

        verified = replace(verified, notes=(*verified.notes, *numbers_notes(verified)))
    if verified.runs:
        _keep(verified, folder)
    _print(verified, arguments.format)
    return exit_code(verified, "numerics" in arguments.allow)


def exit_code(verified: Verified, may_change_numerics: bool) -> int:
    from stepscope.core.experiment import REFUSED
    from stepscope.experiments.verify.numerics_check import DIFFERS

    if verified.verdict == REFUSED:
        return REFUSED_CODE
    differs = verified.check is not None and verified.check.verdict == DIFFERS and not may_change_numerics
    return PROVEN_CODE if verified.is_gain and not differs else UNPROVEN_CODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The two sides."""

    commands: dict[Side, tuple[str, ...]]
    changes: dict[Side, Change]
    codes: tuple[str, ...]
    """Of the findings that are to be fixed."""


def read_asked(arguments: argparse.Namespace) -> Asked:
    """The sides of these arguments. Mistakes are told before anything runs."""
    from stepscope.core.trials import Change
    from stepscope.protocol.settings import RAISED

    after = list(arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command)
    if after and arguments.baseline is not None:
        raise UsageError("the baseline's command was given twice: with --baseline, and after the two dashes. Leave one out")
    baseline = tuple(after) if after else _words(arguments.baseline, "--baseline")
    candidate = baseline if arguments.candidate is None else _words(arguments.candidate, "--candidate")
    knobs, codes = read_applied(arguments.apply)
    given = {text.partition("=")[0] for text in arguments.apply if "=" in text}
    changes: dict[Side, Change] = {
        "baseline": Change(environment=_environment(arguments.baseline_env, "--baseline-env")),
        "candidate": Change(
            environment=_environment(arguments.candidate_env, "--candidate-env"),
            knobs=knobs,
            raised=frozenset(RAISED & knobs.keys()) - given,
        ),
    }
    if baseline == candidate and changes["baseline"] == changes["candidate"]:
        raise UsageError(
            "the two sides are the same. Say what the candidate has that the baseline has not: "
            "--candidate CMD, --apply CODE, --apply KNOB=VALUE or --candidate-env NAME=VALUE"
        )
    return Asked(commands={"baseline": baseline, "candidate": candidate}, changes=changes, codes=codes)


def check_commands(asked: Asked) -> None:
    """Both can be run: a candidate that cannot is told before the baseline has been run for nothing."""
    for side, command in asked.commands.items():
        if shutil.which(command[0]) is None:
            raise UsageError(
                f"{command[0]}, with which the {side} begins, is not a command that can be run here. "
                "Is it spelled right, and on PATH?"
            )


def read_applied(texts: Sequence[str]) -> tuple[dict[str, Value], tuple[str, ...]]:
    """The knobs of `--apply`, and the codes among them."""
    from stepscope.protocol.settings import SETTINGS, fixes, value_of

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
            found = fixes(text)
            if found is None:
                can = sorted({code for setting in SETTINGS.values() for code in setting.fixes if fixes(code)})
                hint = (
                    f"a setting is given with its value: --apply {text}=..."
                    if text in SETTINGS
                    else f"{_near(text, can)}those are: {', '.join(can)}"
                )
                raise UsageError(f"--apply {text}: not a finding whose fix can be set from outside; {hint}")
            new = dict(found)
            codes.append(text)
        twice = next((knob for knob in new if knob in knobs and knobs[knob] != new[knob]), None)
        if twice is not None:
            raise UsageError(f"--apply: {twice} would be both {knobs[twice]} and {new[twice]}; apply one of the two")
        knobs |= new
    return knobs, tuple(codes)


def applied_words(codes: Sequence[str]) -> list[str]:
    """Which values a finding's code stands for here, and why these: nothing of the job is known by then."""
    from stepscope.core.trials import Change
    from stepscope.protocol.settings import fix_reasons, fixes
    from stepscope.report.verify.view import change_words

    return [
        f"--apply {code} tries {change_words(Change(knobs={name: value}))}: {fix_reasons(code)[name]}"
        for code in codes
        for name, value in (fixes(code) or {}).items()
    ]


def _near(word: str, known: Iterable[str]) -> str:
    """What was likely meant by a word that is not known; empty where it is, or nothing is like it."""
    names = list(known)
    near = [] if word in names else difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}? " if near else ""


def policy_of(arguments: argparse.Namespace) -> VerifyPolicy:
    from stepscope.experiments.verify.schedule import VerifyPolicy

    return VerifyPolicy(
        max_rounds=arguments.max_rounds,
        precision=arguments.precision,
        threshold=arguments.threshold,
        allowed=frozenset(arguments.allow),
        per_sample="batch-size" in arguments.allow,
    )


class Runner:
    """Runs a side's command in a numbered folder of its own."""

    def __init__(self, asked: Asked, folder: Path, arguments: argparse.Namespace, budget: Budget) -> None:
        self._asked, self._folder, self._arguments, self._budget = asked, folder, arguments, budget
        self._count = 0
        self._longest_s = 0.0

    def _limit_s(self) -> float | None:
        """What was given, else many times what the longest run took: one that hangs, as workers may, must end. And never more
        than what is left of the budget."""
        limits = [max(LEAST_LIMIT_S, LIMIT_TIMES * self._longest_s)] if self._longest_s else []
        if self._arguments.timeout is not None:
            limits = [float(self._arguments.timeout)]
        left = self._budget.left_s
        return min([*limits, *([] if left is None else [left])], default=None)

    def measure(self, side: Side, *, with_numerics: bool = False) -> Trial:
        from stepscope.experiments.trials.trial import run_trial

        if self._count:
            # The first is begun however little there is: it shows what the job does.
            self._budget.ask(f"another run of the {side}")
        number, self._count = self._count, self._count + 1
        try:
            trial = run_trial(
                self._asked.commands[side],
                self._folder / f"{number:02d}-{side}",
                self._asked.changes[side],
                max_steps=self._arguments.steps,
                warm_up_steps=self._arguments.warm_up,
                timeout_s=self._limit_s(),
                with_numerics=with_numerics,
            )
        except SystemExit:
            # SIGTERM, as from `timeout`, and SIGHUP, while a job ran: they do what Ctrl-C does, and what was measured is shown.
            raise KeyboardInterrupt from None
        self._longest_s = max(self._longest_s, trial.wall_s)
        return trial


def prove(arguments: argparse.Namespace, asked: Asked, folder: Path, prediction: Prediction | None, budget: Budget) -> Verified:
    """Runs both sides in `folder` until it is settled, or the budget is spent; what they compute too, where that is asked."""
    from stepscope.capture.describe.environment import masked_words
    from stepscope.cli.verify.check import check_of
    from stepscope.experiments.verify.experiment import hold, refused, verify

    words: dict[str, str] = {side: shlex.join(masked_words(command)) for side, command in asked.commands.items()}
    changes: dict[str, Change] = {
        side: replace(change, environment=_masked(change.environment)) for side, change in asked.changes.items()
    }
    unable = refused_beforehand(asked)
    if unable:
        return replace(refused(unable), commands=words, changes=changes)
    runner = Runner(asked, folder, arguments, budget)
    progress = Progress(arguments.max_rounds)
    before, stopped = checked_runs(runner, progress) if arguments.check else ([], None)
    # The budget is for all runs together, those of --check too.
    policy = replace(policy_of(arguments), budget_s=budget.left_s)
    measure = runner.measure if stopped is None else _stopped(stopped)
    verified = verify(measure, policy, clock=budget.clock, told=progress.told, before=before)
    return replace(
        verified,
        check=check_of(before, arguments.tolerance) if len(before) == CHECK_RUNS and not verified.refusals else None,
        prediction=None if prediction is None else hold(prediction, verified.speedup),
        folder=str(folder),
        commands=words,
        changes=changes,
    )


def refused_beforehand(asked: Asked) -> tuple[str, ...]:
    """Why no run would show anything: of all that the candidate has, nothing can take effect on this machine."""
    from stepscope.experiments.preflight import unable, unable_words

    before, after = asked.changes["baseline"], asked.changes["candidate"]
    new = [name for name in after.knobs if name not in before.knobs or before.knobs[name] != after.knobs[name]]
    is_other = asked.commands["baseline"] != asked.commands["candidate"] or before.environment != after.environment
    found = unable(new, asked.commands["candidate"], after.environment)
    return unable_words(found) if new and not is_other and set(found) == set(new) else ()


def _masked(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables as they may be written down, as a command's options are."""
    from stepscope.capture.describe.environment import MASK, masked_words

    words = {name: f"--{name}={value}" for name, value in environment.items()}
    return {name: value if masked_words([words[name]]) == [words[name]] else MASK for name, value in environment.items()}


def _stopped(why: BaseException) -> Callable[[Side], Trial]:
    """Measures nothing any more."""

    def measure(_side: Side) -> Trial:
        raise why

    return measure


def checked_runs(runner: Runner, progress: Progress) -> tuple[list[Measured], BaseException | None]:
    """The baseline twice and the candidate once, with what they compute written down; up to the first that fails, or to where
    it was interrupted or the budget ended, and which of the two it was."""
    from stepscope.core.experiment import BASELINE, CANDIDATE, Measured
    from stepscope.experiments.bootstrap import pace
    from stepscope.experiments.verify.experiment import SpentError

    runs: list[Measured] = []
    for side in (BASELINE, BASELINE, CANDIDATE):
        try:
            trial = runner.measure(side, with_numerics=True)
        except (KeyboardInterrupt, SpentError) as stopped:
            return runs, stopped
        run = Measured(side=side, round=None, trial=trial, pace_ns=pace(trial.step_ns) if trial.step_ns else None)
        runs.append(run)
        progress.told(run, None)
        if not trial.is_good:
            break
    return runs, None


class Progress:
    """A line on stderr for each run."""

    def __init__(self, max_rounds: int) -> None:
        self._max_rounds = max_rounds

    def told(self, run: Measured, interval: Interval | None) -> None:
        from stepscope.report.units import NBSP, short_time

        steps = run.trial.step_ns
        when = "before it counts" if run.round is None else f"round {run.round + 1} of at most {self._max_rounds}"
        told = "no step was timed" if not steps else "1 step" if len(steps) == 1 else f"{len(steps)} steps"
        pace = "" if run.pace_ns is None else f", {short_time(run.pace_ns)} each"
        seen = "" if interval is None or not interval.is_bounded else f" (so far {interval.low:.2f} to {interval.high:.2f})"
        say(f"{when}: {run.side}, {told}{pace}{seen}".replace(NBSP, " "))


def _keep(verified: Verified, folder: Path) -> None:
    """What was measured cannot be measured again: a full disk is told, and the report still printed."""
    from stepscope.report.verify.json import verified_json

    try:
        (folder / RESULT_FILE).write_text(verified_json(verified) + "\n", encoding="utf-8")
    except OSError as problem:
        say(f"{folder / RESULT_FILE} could not be written: {problem.strerror}")


def _print(verified: Verified, style: str) -> None:
    if style == "json":
        from stepscope.report.verify.json import verified_json

        put(verified_json(verified) + "\n")
    else:
        from stepscope.report.verify.view import verified_document

        print_document(verified_document(verified), style)


def _words(text: str | None, option: str) -> tuple[str, ...]:
    if text is None:
        raise UsageError(
            'no command was given: stepscope verify --baseline "python train.py" --candidate "...", '
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
            raise UsageError(f"{option}: {name} would be both {out[name]!r} and {value!r}; give one of the two")
        out[name] = value
    return out


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps; give 1 or more")
    return int(text)


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds; give 2 or more: one round proves nothing")
    return int(text)


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def _seconds(text: str) -> float:
    return _number(text, "a number of seconds above 0")


def _ratio(text: str) -> float:
    return _number(text.removesuffix("x"), "a speedup, such as 1.53")


def _share(text: str) -> float:
    value = _number(text.removesuffix("%"), "a share, such as 0.02 or 2%") / (100 if text.endswith("%") else 1)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share below 1: write 0.02, or 2%")
    return value
