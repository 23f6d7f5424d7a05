"""Try a run's findings from the top: prove each, keep or revert.

RUN is a folder that `stepscope run` made; its own command is run again, or the one that --command
gives; where RUN was not made by you, here, on this machine, it is shown and asked about first.
Without --verify nothing is run: it says what would be tried. With it, each fix that can be
set from outside is applied on top of the command, proven as `stepscope verify` does, compared with
what was kept before, and reverted where no gain is proven or what is computed changes. After each
one that stays the run is recorded and diagnosed anew. No file of yours is changed: the end says
what to write into the code, and --patch writes it as a patch for you to apply. Exit code 0 when the
whole is proven to be faster (without --verify: when there is something to try), 130 when it was
interrupted, else 1.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from stepscope.cli import options as declare
from stepscope.cli.additions import after_job
from stepscope.cli.patch import refuse_patch, write_patch
from stepscope.cli.printing import ask, print_answer, progress_bar, say
from stepscope.cli.run import keep_result, new_folder
from stepscope.cli.verify.command import UNPROVEN_CODE, exit_code
from stepscope.cli.verify.options import Measuring, Proof, words_of
from stepscope.errors import InputError, StepscopeError, UsageError
from stepscope.process.signals import ended_as_by_hand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.core.diagnosis import Diagnosis, Finding
    from stepscope.core.experiments.experiment import Prediction, Verified
    from stepscope.core.experiments.fixed import Attempt, Fixed
    from stepscope.core.experiments.trials import Change
    from stepscope.core.run import LoaderKnobs
    from stepscope.experiments.budget import Budget
    from stepscope.experiments.fixing import FixPolicy
    from stepscope.pipeline.options import Options as ReadingOptions

AFTER_JOB = after_job()
RESULT_FILE = "fix.json"
INTERRUPTED_CODE = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    run_folder: Path = declare.option(
        "RUN", "the folder of a run that `stepscope run` recorded", declare.run_path
    )
    is_run: bool = declare.option("--verify", "run it for real: try, prove, keep or revert")
    command: str | None = declare.option(
        "--command CMD", "the command to run, in quotes (default: the run's own)"
    )
    is_confirmed: bool = declare.option(
        "--yes", "run RUN's own command without a question, whoever made RUN"
    )
    most: int = declare.option("--most N", "findings to try (default: 8)", int, 8)
    allows_numerics: bool = declare.option(
        "--allow-numerics", "fixes may change what is computed: TF32, for one"
    )
    with_check: bool = declare.option(
        "--no-check",
        "do not compare what is computed: three runs less for each finding",
        action="store_false",
    )
    measuring: Measuring = declare.group(Measuring, "how long")
    probed: Any = declare.part(AFTER_JOB.options)
    hardware: Path | None = declare.hardware()
    style: str = declare.style()
    out: Path | None = declare.out_folder()
    patch: Path | None = declare.option(
        "--patch FILE",
        "write the changes of code as a patch, for `git apply` or `patch -p0`; with --verify, "
        "those that were kept",
        Path,
    )


def run(options: Options) -> int:
    from stepscope.core.codec import encode
    from stepscope.core.diagnosis import FIXES, unjudged_fixes
    from stepscope.experiments.budget import Budget, for_runs
    from stepscope.experiments.fixing import FixPolicy, fixed, propose
    from stepscope.experiments.preflight import unable
    from stepscope.pipeline.recording import diagnose
    from stepscope.protocol.secrets import masked_words
    from stepscope.protocol.settings import SETTINGS
    from stepscope.report.fix.view import fixed_document

    budget_s = options.measuring.budget_s
    budget = Budget(None if budget_s is None else for_runs(budget_s), time.monotonic)
    command = command_of(options.run_folder, options.command)
    diagnosis = diagnose([options.run_folder], _reading_of(options))
    if not diagnosis.facts.ranks:
        # That nothing was found would be said of a run that was not looked at.
        raise InputError(
            f"{options.run_folder}: no step was recorded, so no fault can be found; "
            f"{diagnosis.notes[-1]}"
        )
    unjudged = unjudged_fixes(diagnosis.abstentions)
    if not diagnosis.findings and unjudged is not None:
        raise InputError(
            f"{options.run_folder}: {FIXES} is not known: {unjudged.reason}; {unjudged.needs}"
        )
    policy = FixPolicy(
        most=max(options.most, 0),
        allows_numerics=options.allows_numerics,
        unable=unable(SETTINGS, command, {}),
        loader=_loader(diagnosis),
    )
    if options.patch is not None:
        refuse_patch(options.patch)
    if not options.is_run:
        if options.patch is not None:
            write_patch(options.patch, options.run_folder, diagnosis, _chosen(options, diagnosis))
        plan = fixed(
            masked_words(command),
            propose(diagnosis.findings, _local_ranks(diagnosis), policy),
            diagnosis.step.ms,
        )
        print_answer(plan, options.style, encode, fixed_document)
        is_open = any(attempt.knobs and attempt.outcome == "not tried" for attempt in plan.attempts)
        return 0 if is_open else 1
    if options.command is None and not options.is_confirmed:
        ask_first(options.run_folder, command)
    if _time_first(options, command, diagnosis):
        diagnosis = diagnose([options.run_folder], _reading_of(options))
    say(f"running, many times: {shlex.join(masked_words(command))} (in {Path.cwd()})")
    for words in _plan_words(
        options, diagnosis, propose(diagnosis.findings, _local_ranks(diagnosis), policy)
    ):
        say(words)
    with ended_as_by_hand():
        result = _Loop(options, command, diagnosis, policy, budget).fixed()
    print_answer(result, options.style, encode, fixed_document)
    if options.patch is not None:
        kept = {each.code for each in result.attempts if each.outcome == "kept"}
        chosen = [each for each in diagnosis.findings if each.code in kept]
        write_patch(options.patch, options.run_folder, diagnosis, chosen)
    if result.is_interrupted:
        return INTERRUPTED_CODE
    if result.whole is None:
        return UNPROVEN_CODE
    return min(exit_code(result.whole, options.allows_numerics), UNPROVEN_CODE)


def _chosen(options: Options, diagnosis: Diagnosis) -> list[Finding]:
    return [
        finding
        for finding in diagnosis.findings
        if options.allows_numerics or not finding.changes_numerics
    ]


def _time_first(options: Options, command: Sequence[str], diagnosis: Diagnosis) -> bool:
    """Times on the device what the findings ask for and was not timed when the run ended: what is
    tried first follows from it. Whether there is more to judge by now."""
    from stepscope.experiments.preflight import why_no_gpu
    from stepscope.pipeline.recording import Recording

    has_device = any(rank.device_name is not None for rank in diagnosis.facts.ranks)
    if not has_device or why_no_gpu(("python",), {}) is not None:
        return False

    with Recording([options.run_folder], _reading_of(options)) as recording:
        _ = recording.diagnosis
        devices = recording.probed.by_name
    return AFTER_JOB.time(devices, command, options.probed)


def _plan_words(
    options: Options, diagnosis: Diagnosis, attempts: Sequence[Attempt]
) -> Iterator[str]:
    """What is tried first, and how long its proof takes at the least, as far as the recorded run
    tells."""
    from stepscope.core.experiments.fixed import NOT_TRIED
    from stepscope.experiments.budget import CHECK_RUNS
    from stepscope.experiments.fixing import words_of
    from stepscope.experiments.verify.schedule import (
        MIN_ROUNDS,
        RUNS_A_ROUND,
        rehearsed_steps,
        steps_before,
    )
    from stepscope.report.words import plural

    tried = [each for each in attempts if each.outcome == NOT_TRIED][: max(options.most, 0)]
    if not tried:
        return
    first, measuring, step_ms = tried[0], options.measuring, diagnosis.step.ms
    predicted = f"{first.predicted.value:.2f}x predicted"
    others = f"; then {plural(len(tried) - 1, 'finding')} more" if len(tried) > 1 else ""
    yield f"first {first.code}: {words_of(first)}, {predicted}{others}"
    # What the recorded run took to its first step.
    whole = diagnosis.facts.whole_run
    parts = () if whole is None else whole.parts
    start_s = next((part.seconds for part in parts if part.what == "start_up"), None)
    if start_s is None or step_ms is None:
        return
    steps = measuring.steps or rehearsed_steps(step_ms / 1e3, measuring.most_steps)
    steps += steps_before(measuring.warm_up_steps, step_ms / 1e3)
    run_s = start_s + steps * step_ms / 1e3
    num_runs = MIN_ROUNDS * RUNS_A_ROUND + (CHECK_RUNS if options.with_check else 2)
    yield (
        f"its proof: {num_runs} runs or more, of about {run_s:.0f} s as it is "
        f"({start_s:.0f} s to start, {steps} steps): about "
        f"{num_runs * run_s:.0f} s, less with a large gain"
    )


def _reading_of(options: Options) -> ReadingOptions:
    """How the runs are read and judged."""
    from stepscope.pipeline.options import Options as ReadingOptions

    return ReadingOptions(use_cache=False, hardware=options.hardware, progress=progress_bar)


def command_of(folder: Path, given: str | None) -> tuple[str, ...]:
    """What starts the job: as given, else as the run's folder tells it. Secrets are not written
    there, and must be given anew."""
    from stepscope.protocol.secrets import MASK
    from stepscope.readers.run_folder.folder import read_run

    if given is not None:
        return words_of(given, "--command")
    recorded = read_run(folder).metadata.get("command")
    is_words = isinstance(recorded, list) and all(isinstance(word, str) for word in recorded)
    if not recorded or not is_words:
        raise InputError(
            f"{folder} does not say which command it was. Give it: --command 'python train.py'"
        )
    if any(MASK in word for word in recorded):
        raise UsageError(
            "the run's command had a secret in it, which was not kept. Give it whole: --command "
            f"'{shlex.join(recorded)}'"
        )
    return tuple(recorded)


def ask_first(folder: Path, command: Sequence[str]) -> None:
    """A command that this user did not start here on this machine is not run without a question:
    run folders are passed on, and this one may tell anything. UsageError where the answer is
    no."""
    from stepscope.protocol.made_here import doubt
    from stepscope.readers.run_folder.folder import read_run

    why = doubt(folder, {**read_run(folder).metadata, "command": list(command)})
    if why is None:
        return
    # All of it in one line: what stands far below is easily missed.
    shown = shlex.join(command).replace("\n", "\\n")
    say(f"{folder} tells the command to run, and {why}. It is: {shown}")
    if not ask(f"Run it in {Path.cwd()}, as you, many times?"):
        raise UsageError(
            "nothing was run. Where you trust that command, add --yes, or give one of your own: "
            "--command 'python train.py'"
        )


class _Loop:
    """What the loop over findings needs to be done for real, each in a folder of its own."""

    def __init__(
        self,
        options: Options,
        command: tuple[str, ...],
        diagnosis: Diagnosis,
        policy: FixPolicy,
        budget: Budget,
    ) -> None:
        self._options, self._command, self._diagnosis = options, command, diagnosis
        self._policy, self._budget = policy, budget
        self._run_s = 0.0
        """What a run of the last proof took."""
        self._num_proofs = 0
        self._spent: str | None = None
        """Why there was no time for all of it."""
        self._folder = new_folder(options.out)
        self._count = 0
        self._notes: list[str] = []

    def fixed(self) -> Fixed:
        from stepscope.core.codec import encode
        from stepscope.core.experiments.fixed import Fixed
        from stepscope.experiments.fixing import fix
        from stepscope.experiments.verify.numerics_check import DIFFERS
        from stepscope.protocol.secrets import masked_words

        attempts, kept, whole, left, is_interrupted = fix(
            self._look,
            self._prove,
            num_ranks=_local_ranks(self._diagnosis),
            policy=self._policy,
            say=say,
            room=self._room,
        )
        if is_interrupted:
            self._notes.append("it was interrupted: what had been proven by then is shown")
        if self._spent is not None:
            self._notes.append(self._spent)
        if (
            whole is not None
            and whole.check is not None
            and whole.check.verdict == DIFFERS
            and not self._policy.allows_numerics
        ):
            self._notes.append(
                f"all that was kept together computes something else: {whole.check.because}"
            )
        result = Fixed(
            command=tuple(masked_words(self._command)),
            attempts=attempts,
            speedup=None if whole is None else whole.speedup,
            kept=kept.knobs,
            whole=whole,
            before_ms=self._diagnosis.step.ms,
            left=left,
            notes=tuple(self._notes),
            folder=str(self._folder) if self._count else None,
            is_interrupted=is_interrupted,
        )
        if self._count:
            keep_result(self._folder / RESULT_FILE, encode(result))
        return result

    def _next(self, name: str) -> Path:
        self._count += 1
        return self._folder / f"{self._count:02d}-{name}"

    def _room(self, num_proofs: int) -> str | None:
        """Why so many proofs more do not fit into what is left of the budget."""
        left, need = self._budget.left_s, self._need_s(num_proofs)
        total = self._options.measuring.budget_s
        if left is None or (not self._budget.is_spent and need <= left):
            return None
        why = f"the budget of {total:g} s was spent before it"
        if not self._budget.is_spent:
            proofs = "the next finding and a proof of all that is kept take"
            if num_proofs == 1:
                proofs = "a proof takes"
            left_words = f"{left:.0f} s of the budget of {total:g} s were left"
            why = f"{left_words}, and {proofs} about {need:.0f} s"
        self._spent = self._spent or f"not all was tried: {why}"
        return f"{why}. Give a longer --budget, or fewer --steps"

    def _need_s(self, num_proofs: int) -> float:
        """Seconds of proofs that are settled as soon as can be; 0 before the first has shown what a
        run takes."""
        from stepscope.experiments.budget import CHECK_RUNS
        from stepscope.experiments.verify.schedule import MIN_ROUNDS, RUNS_A_ROUND

        before = CHECK_RUNS if self._options.with_check else 2
        return num_proofs * (before + MIN_ROUNDS * RUNS_A_ROUND) * self._run_s

    def _look(self, change: Change) -> Sequence[Finding]:
        """The recorded run's findings at first; with something kept, those of a new recording."""
        if change.is_none:
            return self._diagnosis.findings
        from stepscope.experiments.trials.trial import run_trial
        from stepscope.experiments.verify.schedule import steps_before
        from stepscope.pipeline.recording import diagnose

        folder, measuring = self._next("look"), self._options.measuring
        limits = (measuring.timeout_s, self._budget.left_s)
        say("recording what is left")
        try:
            trial = run_trial(
                self._command,
                folder,
                change,
                max_steps=measuring.most_steps,
                warm_up_steps=steps_before(measuring.warm_up_steps, None),
                timeout_s=min([limit for limit in limits if limit is not None], default=None),
                profile=True,
            )
            if trial.is_good:
                return diagnose([folder], _reading_of(self._options)).findings
            why = f"it ended with exit code {trial.exit_code}"
            if trial.is_timed_out:
                why = "it did not end in time"
        except StepscopeError as problem:
            why = str(problem)
        self._notes.append(
            f"the run with what was kept could not be diagnosed anew ({why}): the first run's "
            "findings were gone on with"
        )
        return self._diagnosis.findings

    def _prove(self, before: Change, after: Change, prediction: Prediction | None) -> Verified:
        from stepscope.cli.verify.command import prove
        from stepscope.cli.verify.options import Sides
        from stepscope.experiments.budget import Budget
        from stepscope.experiments.verify.experiment import refused

        sides = Sides(
            commands={"baseline": self._command, "candidate": self._command},
            changes={"baseline": before, "candidate": after},
            codes=(),
        )
        step_ms = self._diagnosis.step.ms
        proof = Proof(
            measuring=self._options.measuring,
            with_check=self._options.with_check,
            step_s=None if step_ms is None else step_ms / 1e3,
        )
        is_first = not self._count
        # One that is tried after another is followed by a proof of the whole, to which its time is
        # left.
        kept_s = self._need_s(1) if prediction is not None and self._num_proofs else 0.0
        self._num_proofs += 1
        left = self._budget.left_s
        budget = Budget(None if left is None else max(0.0, left - kept_s), time.monotonic)
        try:
            verified = prove(sides, proof, self._next("verify"), prediction, budget)
        except StepscopeError as problem:
            if is_first:
                raise
            # No run can be started any more, for a full disk it may be: what was kept before is
            # reported all the same.
            return refused([str(problem)])
        if is_first:
            _refuse_failing(verified)
        if verified.runs:
            counted = [run for run in verified.runs if run.round is not None]
            self._run_s = fmean(run.wall_s for run in counted or verified.runs)
        return verified


def _refuse_failing(verified: Verified) -> None:
    """Where the command fails without any fix, no fix can be judged."""
    from stepscope.core.experiments.experiment import BASELINE, REFUSED
    from stepscope.experiments.trials.trial import last_line

    last = verified.runs[-1] if verified.runs else None
    if verified.verdict == REFUSED and last and last.side == BASELINE and not last.is_good:
        said = last_line(verified.tail)
        raise InputError(
            f"the command cannot be measured as it is: {verified.because}"
            + (f". It said last: {said}" if said else "")
            + ". No fix was tried"
        )


def _loader(diagnosis: Diagnosis) -> LoaderKnobs | None:
    """Loader that feeds the job."""
    run_facts = diagnosis.facts.run
    ranks = () if run_facts is None else run_facts.ranks
    return next((rank.loader for rank in ranks if rank.loader is not None), None)


def _local_ranks(diagnosis: Diagnosis) -> int:
    """Ranks of the job on one machine: they share its cores."""
    run_facts = diagnosis.facts.run
    ranks = () if run_facts is None else run_facts.ranks
    return next((rank.local_ranks for rank in ranks if rank.local_ranks), 1)
