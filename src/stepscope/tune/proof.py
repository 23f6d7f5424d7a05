"""What is known of the best setting before it is named: that it computes the same, and that it is
faster."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.experiments.experiment import (
    CANDIDATE,
    UNSETTLED,
    Difference,
    Interval,
    Measured,
    NumericsCheck,
    Side,
    Verified,
)
from stepscope.core.experiments.trials import Change, Trial, Value
from stepscope.core.numbers import ms_words
from stepscope.errors import UsageError
from stepscope.experiments.budget import CHECK_RUNS, LONGER, Budget, SpentError
from stepscope.experiments.compare.comparability import causes
from stepscope.experiments.verify.experiment import verify, with_sides
from stepscope.experiments.verify.schedule import VerifyPolicy
from stepscope.tune.batch import FREE_BATCH, FREE_NUMERICS, batch_words, changes_batch
from stepscope.tune.doubling import doubling_notes
from stepscope.tune.final import Settled
from stepscope.tune.knob_space import ARGUMENT, ENVIRONMENT, Knob, Settings
from stepscope.tune.numerics import WORKERS, Numerics, NumericsChecker
from stepscope.tune.shapes.tuning import (
    NOT_MEASURED,
    NOT_PROVEN,
    NOTHING_FASTER,
    PROVEN,
    PRUNED,
    REFUSED,
    SAMPLE,
    KnobShown,
    Spent,
    Tuning,
    Winner,
)
from stepscope.tune.tuner import WAIT_S, Search
from stepscope.tune.words import settings_words, winner_words

MIN_GAIN = 1.01
"""Gain below which a setting is not worth proving: verify would not call it a gain."""
MAX_CHECKED = 3
"""Settings whose numbers are compared, the best first, until one computes what the baseline
does."""
HINTS = {"batch-size": "--free batch", "batches": "--free batch", "data": "--free numerics"}
"""What lets a difference between the sides of the proof pass."""

Ranked = list[tuple[dict[str, Value], float]]


class ProofPolicy(Struct, frozen=True, kw_only=True):
    """How the winner is proven."""

    budget_s: float | None = None
    """Time of the check and the proof together."""
    max_rounds: int = 10
    skip: bool = False
    """Whether the search ends without a proof."""


def concluded(
    search: Search, command: tuple[str, ...], numerics: Numerics | None, policy: ProofPolicy
) -> Tuning:
    """The whole search with its winner checked and proven, or with the reason why there is none."""
    assert search.baseline is not None
    budget = Budget(policy.budget_s, search.clock)
    proof = _Proof(search, numerics, policy, budget, list(search.notes))
    try:
        proof.prove()
    except SpentError as spent:
        proof.verdict, proof.because = NOT_PROVEN, str(spent)
    except UsageError as problem:
        # What the search measured is shown, though a run could not be started any more.
        proof.verdict, proof.because = NOT_PROVEN, f"check and proof could not go on: {problem}"
    except KeyboardInterrupt:
        search.is_interrupted = True
        proof.verdict, proof.because = NOT_PROVEN, "the proof was interrupted"
        if proof.verified is not None:
            proof.because = f"of the proof: {proof.verified.because}"
    study = search.study
    ineffective = frozenset() if study is None else study.ineffective
    kept, setup = batch_words(search.space), search.judge.baseline_setup
    winner = None
    if proof.settings is not None and search.baseline.ns is not None:
        winner = Winner(
            settings=dict(proof.settings),
            ms=proof.ns / 1e6,
            speedup=search.baseline.ns / proof.ns,
            is_proven=proof.verdict == PROVEN,
            words=winner_words(search.space, proof.settings, ineffective),
        )
    trials = () if study is None else tuple(study.trials())
    return Tuning(
        command=command,
        per=search.judge.per,
        knobs=tuple(_shown(knob) for knob in search.space.knobs),
        size=search.space.size,
        baseline=search.baseline,
        trials=trials,
        verdict=proof.verdict,
        because=proof.because,
        winner=winner,
        importance=None if study is None else study.importance(),
        check=proof.check,
        verified=proof.verified,
        ended=search.ended,
        wall_s=search.spent_s,
        spent=_spent(search),
        device=setup.device,
        versions=setup.versions,
        notes=(
            *proof.notes,
            *doubling_notes((search.baseline, *trials), search.judge.per),
            *([] if kept is None else [kept]),
        ),
    )


def _spent(search: Search) -> Spent | None:
    division = search.division
    if division is None:
        return None
    return Spent(
        total_s=division.total_s,
        kept_s=division.kept_s,
        num_rounds=division.num_rounds,
        run_s=division.run_s,
        search_s=search.searched_s,
        proof_s=search.spent_s - search.searched_s,
    )


@dataclass(slots=True)
class _Waiter:
    """Waits for another process's proof, as long as there is time."""

    search: Search
    budget: Budget
    host: str = ""
    """The host that was waited for last."""

    def __call__(self, host: str) -> None:
        if self.host != host:
            self.search.say(f"waiting for the process on {host}, which proves the winner")
            self.host = host
        self.budget.ask(f"the process on {host} had proven the winner")
        self.search.rest(WAIT_S)


@dataclass(slots=True)
class _Proof:
    """The proof of a search's winner, and what it came to."""

    search: Search
    numerics: Numerics | None
    policy: ProofPolicy
    budget: Budget
    notes: list[str]
    settings: Settings | None = None
    ns: float = 0.0
    verdict: str = NOT_MEASURED
    because: str = ""
    check: NumericsCheck | None = None
    verified: Verified | None = None
    rehearsed: tuple[Measured, ...] = ()
    """Runs of the check that need not be made again before the proof."""

    def prove(self) -> None:
        search = self.search
        assert search.baseline is not None and search.baseline.ns is not None
        ranked, trials = search.ranked(), [] if search.study is None else search.study.trials()
        # Those that were ended early for being slow show that theirs is no winner.
        num = len(ranked) + sum(tried.state == PRUNED for tried in trials)
        if not num:
            self.because = f"no setting was measured: {search.ended}"
            return
        better = [setting for setting in ranked if search.baseline.ns / setting[1] >= MIN_GAIN]
        if not better:
            self.verdict = NOTHING_FASTER
            until = "the search was interrupted, and until then " if search.is_interrupted else ""
            none = "the one setting was not" if num == 1 else f"none of {num} settings was"
            self.because = f"{until}{none} more than 1 % faster than the command as it was given"
            return
        self.settings, self.ns = better[0]
        if search.is_interrupted:
            self.verdict, self.because = NOT_PROVEN, "the search was interrupted"
        elif self.policy.skip:
            self.verdict, self.because = NOT_PROVEN, "a proof was not asked for"
        else:
            self._prove_once(better)

    def _prove_once(self, better: Ranked) -> None:
        """Make the proof once: of several processes that share a search the others take it over."""
        study, best, num_before = self.search.study, better[0][0], len(self.notes)
        assert study is not None
        waiter = _Waiter(self.search, self.budget)
        with study.final.turn(
            lambda other: study.same(other) == study.same(best), waiter
        ) as settled:
            if settled is not None:
                self.settings, self.ns = settled.settings, settled.ns
                self.verdict, self.because = settled.verdict, settled.because
                self.check, self.verified = settled.check, settled.verified
                self.notes.append(
                    f"the winner was checked and proven by the process on {settled.host}, for all "
                    "that share the storage"
                )
                self.notes += settled.notes
                return
            if waiter.host:
                self._note(
                    f"the process on {waiter.host} that was proving the winner is gone, or broke "
                    "off: it is proven here"
                )
            self._prove_here(better)
            study.final.keep(
                Settled(
                    best=best,
                    settings=self.settings or best,
                    ns=self.ns,
                    verdict=self.verdict,
                    because=self.because,
                    check=self.check,
                    verified=self.verified,
                    notes=tuple(self.notes[num_before:]),
                )
            )

    def _prove_here(self, better: Ranked) -> None:
        if self.numerics is None:
            self.notes.append("what the settings compute was not compared")
        else:
            self.budget.ask_for_a_proof(CHECK_RUNS, self.search.run_s, "the check and a proof take")
            if not self._choose(better, NumericsChecker(self.search, self.numerics, self.budget)):
                return
        assert self.settings is not None
        verified = self.verified = self._verified(self.settings)
        if verified.is_interrupted:
            # Another process may take it up: nothing of it is kept for them.
            raise KeyboardInterrupt
        if verified.is_gain:
            self.verdict, self.because = PROVEN, verified.because
            return
        longer = f". {LONGER}" if self.budget.is_spent else ""
        self.verdict = NOT_PROVEN
        self.because = (
            f"measured again in turn with the baseline: {verified.verdict}, "
            f"{verified.because}{longer}"
        )
        if longer and verified.verdict == UNSETTLED:
            # Another process that shares the search may have time left: nothing of it is kept for
            # them.
            raise SpentError(self.because)

    def _choose(self, better: Ranked, checker: NumericsChecker) -> bool:
        """Takes the best setting that computes what the baseline does; False where each of the
        first few does not, or crashed."""
        refused: tuple[dict[str, Value], float, NumericsCheck] | None = None
        crashed: str | None = None
        for settings, ns in better[:MAX_CHECKED]:
            look = checker.look_at(settings)
            if look.passed_over is None:
                self.settings, self.ns, self.check = settings, ns, look.check
                self.rehearsed = checker.rehearsed(settings)
                self._note(*look.notes)
                return True
            if checker.problem is not None:
                self.verdict, self.because = NOT_PROVEN, checker.problem
                return False
            if look.check is not None:
                refused = refused or (settings, ns, look.check)
            words = settings_words(settings)
            crashed = crashed or f"{words}: {look.passed_over}"
            self._note(f"{words} was passed over: {look.passed_over}")
        if refused is None:
            self.verdict = NOT_PROVEN
            self.because = f"what it computes could not be checked. {crashed}"
            return False
        self.settings, self.ns, self.check = refused
        self.verdict = REFUSED
        self.because = f"{self.check.because}. If that is wanted, say --free numerics"
        return False

    def _note(self, *notes: str) -> None:
        for note in notes:
            self.notes.append(note)
            self.search.say(note)

    def _verified(self, settings: Settings) -> Verified:
        search, budget, rehearsed = self.search, self.budget, self.rehearsed
        assert search.given is not None
        change = search.space.change(settings)
        rules = VerifyPolicy(
            budget_s=budget.left_s,
            max_rounds=self.policy.max_rounds,
            allowed=_allowed(search, settings),
            per_sample=search.judge.per == SAMPLE,
        )
        # The first run of all filled the caches; those of the check are nearer to what is to come.
        run_s = fmean(run.trial.wall_s for run in rehearsed) if rehearsed else search.given.wall_s
        budget.ask_for_a_proof(max(0, 2 * rules.num_rehearsals - len(rehearsed)), run_s)
        search.say(f"proving {settings_words(settings)} against the baseline")

        def measure(side: Side) -> Trial:
            if budget.is_spent:
                raise SpentError("the budget was spent before the proof was at its end")
            return search.measure(change if side == CANDIDATE else Change(), None)

        def on_run(run: Measured, _interval: Interval | None) -> None:
            took = "" if run.step_ns is None else f", {ms_words(run.step_ns)} a step"
            search.say(f"proof: {run.side}{took}")

        verified = verify(measure, rules, clock=search.clock, on_run=on_run, before=rehearsed)
        return with_sides(_in_tune_words(verified), {}, {CANDIDATE: change})


def _allowed(search: Search, settings: Settings) -> frozenset[str]:
    """What may differ between the sides of the proof."""
    allowed = set()
    if FREE_NUMERICS in search.policy.free or WORKERS in settings:
        allowed.add("data")
    if FREE_BATCH in search.policy.free or changes_batch(settings, search.judge.baseline_setup):
        allowed.add("batch-size")
    return frozenset(allowed)


def _in_tune_words(verified: Verified) -> Verified:
    """The proof with its refusals in the options of `tune`, which has no --allow."""
    refused = [difference for difference in verified.differences if not difference.is_allowed]
    if not verified.refusals or not refused:
        return verified
    refusals = tuple(_refusal(difference) for difference in causes(refused))
    return replace(verified, refusals=refusals, because="; ".join(refusals))


def _refusal(difference: Difference) -> str:
    remedy = "Search knobs that leave it as it is"
    if difference.what in HINTS:
        remedy = f"If that is wanted, say {HINTS[difference.what]}"
    return (
        f"{difference.words} differs: {difference.baseline} for the baseline, "
        f"{difference.candidate} for the setting. {remedy}"
    )


def _shown(knob: Knob) -> KnobShown:
    way = knob.way
    ways = {ARGUMENT: f"as {way.template}", ENVIRONMENT: f"as {way.variable}={way.template}"}
    return KnobShown(name=knob.name, words=knob.words, way=ways.get(way.kind, "set inside the job"))
