"""What is known of the best setting before it is named: that it computes the same, and that it is
faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean

from stepscope.core.experiments.experiment import (
    BASELINE,
    CANDIDATE,
    UNSETTLED,
    Interval,
    Measured,
    NumericsCheck,
    Side,
    Verified,
)
from stepscope.core.experiments.trials import Change, Trial, Value
from stepscope.core.experiments.tuning import (
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
from stepscope.errors import UsageError
from stepscope.experiments.budget import CHECK_RUNS, LONGER, Budget, SpentError
from stepscope.experiments.compare.comparability import causes
from stepscope.experiments.tune.batch import (
    ACCUMULATION,
    BATCH,
    FREE_BATCH,
    FREE_NUMERICS,
    batch_words,
    changes_batch,
)
from stepscope.experiments.tune.final import Settled
from stepscope.experiments.tune.knob_space import ARGUMENT, ENVIRONMENT, Knob, Settings
from stepscope.experiments.tune.tuner import WAIT_S, Search, last_words, words_of
from stepscope.experiments.tune.words import winner_words
from stepscope.experiments.verify.evidence import measured
from stepscope.experiments.verify.experiment import verify
from stepscope.experiments.verify.loss_check import check_loss
from stepscope.experiments.verify.schedule import VerifyPolicy

LEAST_GAIN = 1.01
"""Below this a setting is not worth proving: verify would not call it a gain."""
MAX_CHECKED = 3
"""Settings whose numbers are compared, the best first, until one computes what the baseline
does."""
WORKERS = "num_workers"
"""Changes no arithmetic; but each worker of a loader has random numbers of its own."""
HINTS = {"batch-size": "--free batch", "batches": "--free batch", "data": "--free numerics"}
"""What lets a difference between the sides of the proof pass."""

Ranked = list[tuple[dict[str, Value], float]]
Numerics = Callable[[Change], Trial]
"""Runs the job once with what it computes written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPolicy:
    """How the winner is proven."""

    budget_s: float | None = None
    """Of the check and the proof together."""
    max_rounds: int = 10
    skip: bool = False
    """Whether the search ends without a proof."""


@dataclass(slots=True)
class _Proof:
    settings: Settings | None = None
    ns: float = 0.0
    verdict: str = NOT_MEASURED
    because: str = ""
    check: NumericsCheck | None = None
    verified: Verified | None = None
    rehearsed: tuple[Measured, ...] = ()
    """Runs of the check that need not be made again before the proof."""


def concluded(
    search: Search, command: tuple[str, ...], numerics: Numerics | None, policy: ProofPolicy
) -> Tuning:
    """The whole search with its winner checked and proven, or with the reason why there is none."""
    assert search.baseline is not None
    proof = _Proof()
    notes = list(search.notes)
    try:
        _prove(search, numerics, policy, proof, notes)
    except SpentError as spent:
        proof.verdict, proof.because = NOT_PROVEN, str(spent)
    except UsageError as problem:
        # What the search measured is shown, though a run could not be started any more.
        proof.verdict, proof.because = NOT_PROVEN, f"check and proof could not go on: {problem}"
    except KeyboardInterrupt:
        search.is_interrupted = True
        proof.verdict = NOT_PROVEN
        proof.because = (
            "the proof was interrupted"
            if proof.verified is None
            else f"of the proof: {proof.verified.because}"
        )
    study = search.study
    dead = frozenset() if study is None else study.dead
    kept = batch_words(search.space)
    winner = None
    if proof.settings is not None and search.baseline.ns is not None:
        winner = Winner(
            settings=dict(proof.settings),
            ns=proof.ns,
            speedup=search.baseline.ns / proof.ns,
            words=winner_words(search.space, proof.settings, dead),
        )
    return Tuning(
        command=command,
        per=search.per,
        knobs=tuple(_shown(knob) for knob in search.space.knobs),
        size=search.space.size,
        baseline=search.baseline,
        trials=() if study is None else tuple(study.trials()),
        verdict=proof.verdict,
        because=proof.because,
        winner=winner,
        importance=None if study is None else study.importance(),
        check=proof.check,
        verified=proof.verified,
        ended=search.ended,
        wall_s=search.spent_s,
        spent=_spent(search),
        setup=search.given_setup,
        notes=(*notes, *([] if kept is None else [kept])),
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


def _prove(
    search: Search, numerics: Numerics | None, policy: ProofPolicy, proof: _Proof, notes: list[str]
) -> None:
    assert search.baseline is not None and search.baseline.ns is not None
    ranked, num_slow = search.ranked(), _num_ended(search)
    if not ranked and not num_slow:
        proof.because = f"no setting was measured: {search.ended}"
        return
    better = [(settings, ns) for settings, ns in ranked if search.baseline.ns / ns >= LEAST_GAIN]
    if not better:
        proof.verdict = NOTHING_FASTER
        until = "the search was interrupted, and until then " if search.is_interrupted else ""
        num = len(ranked) + num_slow
        none = "the one setting was not" if num == 1 else f"none of {num} settings was"
        proof.because = f"{until}{none} more than 1 % faster than the command as it was given"
        return
    proof.settings, proof.ns = better[0]
    if search.is_interrupted or policy.skip:
        proof.verdict = NOT_PROVEN
        proof.because = (
            "the search was interrupted" if search.is_interrupted else "a proof was not asked for"
        )
        return
    _prove_once(search, better, numerics, policy, proof, notes)


def _num_ended(search: Search) -> int:
    """Trials that were ended early for being slow: they tell that theirs is no winner."""
    return (
        0 if search.study is None else sum(tried.state == PRUNED for tried in search.study.trials())
    )


def _prove_once(
    search: Search,
    better: Ranked,
    numerics: Numerics | None,
    policy: ProofPolicy,
    proof: _Proof,
    notes: list[str],
) -> None:
    """Of several processes that share a search one makes the proof, and the others take it over."""
    study, best, num_before = search.study, better[0][0], len(notes)
    assert study is not None
    budget = Budget(policy.budget_s, search.clock)
    waiter = _Waiter(search, budget)
    with study.final.turn(lambda other: study.same(other) == study.same(best), waiter) as told:
        if told is not None:
            proof.settings, proof.ns, proof.verdict, proof.because = (
                told.settings,
                told.ns,
                told.verdict,
                told.because,
            )
            proof.check, proof.verified = told.check, told.verified
            notes += [
                (
                    f"the winner was checked and proven by the process on {told.host}, for all "
                    "that "
                    "share the storage"
                ),
                *told.notes,
            ]
            return
        if waiter.host:
            _tell(
                search,
                notes,
                f"the process on {waiter.host} that was proving the winner is gone, or broke off: "
                "it is proven here",
            )
        _prove_here(search, better, numerics, policy, budget, proof, notes)
        study.final.keep(
            Settled(
                best=best,
                settings=proof.settings or best,
                ns=proof.ns,
                verdict=proof.verdict,
                because=proof.because,
                check=proof.check,
                verified=proof.verified,
                notes=tuple(notes[num_before:]),
            )
        )


def _prove_here(
    search: Search,
    better: Ranked,
    numerics: Numerics | None,
    policy: ProofPolicy,
    budget: Budget,
    proof: _Proof,
    notes: list[str],
) -> None:
    if numerics is not None:
        budget.ask_for_a_proof(CHECK_RUNS, search.run_s, "the check and a proof take")
    if not _choose(
        search,
        better,
        None if numerics is None else _Checker(search, numerics, budget),
        proof,
        notes,
    ):
        return
    assert proof.settings is not None
    proof.verified = _verified(search, proof.settings, policy, budget, proof.rehearsed)
    if proof.verified.is_interrupted:
        # Another process may take it up: nothing of it is kept for them.
        raise KeyboardInterrupt
    if proof.verified.is_gain:
        proof.verdict, proof.because = PROVEN, proof.verified.because
    else:
        proof.verdict = NOT_PROVEN
        longer = f". {LONGER}" if budget.is_spent else ""
        proof.because = (
            f"measured again in turn with the baseline: {proof.verified.verdict}, "
            f"{proof.verified.because}{longer}"
        )
        if longer and proof.verified.verdict == UNSETTLED:
            # Another process that shares the search may have time left: nothing of it is kept for
            # them.
            raise SpentError(proof.because)


@dataclass(slots=True)
class _Waiter:
    """Waits for another process's proof, as long as there is time."""

    search: Search
    budget: Budget
    host: str = ""
    """Of the one that was waited for last."""

    def __call__(self, host: str) -> None:
        if self.host != host:
            self.search.say(f"waiting for the process on {host}, which proves the winner")
            self.host = host
        self.budget.ask(f"the process on {host} had proven the winner")
        self.search.rest(WAIT_S)


def _choose(
    search: Search, better: Ranked, checker: _Checker | None, proof: _Proof, notes: list[str]
) -> bool:
    """Takes the best setting that computes what the baseline does; False where each of the first
    few does not, or crashed."""
    if checker is None:
        notes.append("what the settings compute was not compared")
        return True
    refused: tuple[dict[str, Value], float, NumericsCheck] | None = None
    crashed: str | None = None
    for settings, ns in better[:MAX_CHECKED]:
        said = checker.look_at(settings)
        if said.passed_over is None:
            proof.settings, proof.ns, proof.check = settings, ns, said.check
            proof.rehearsed = checker.rehearsed(settings)
            _tell(search, notes, *said.notes)
            return True
        if checker.problem is not None:
            proof.verdict, proof.because = NOT_PROVEN, checker.problem
            return False
        if said.check is not None:
            refused = refused or (settings, ns, said.check)
        crashed = crashed or f"{words_of(settings)}: {said.passed_over}"
        _tell(search, notes, f"{words_of(settings)} was passed over: {said.passed_over}")
    if refused is None:
        proof.verdict, proof.because = (
            NOT_PROVEN,
            f"what it computes could not be checked. {crashed}",
        )
        return False
    proof.settings, proof.ns, proof.check = refused
    proof.verdict = REFUSED
    proof.because = f"{proof.check.because}. If that is wanted, say --free numerics"
    return False


def _tell(search: Search, notes: list[str], *words: str) -> None:
    for each in words:
        notes.append(each)
        search.say(each)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What is known of the numbers of one setting."""

    check: NumericsCheck | None = None
    """None where there was nothing to compare, or it crashed."""
    passed_over: str | None = None
    """Why it is no winner."""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Checker:
    """Compares settings with two runs of the baseline, which are made when first needed."""

    search: Search
    numerics: Numerics
    budget: Budget
    problem: str | None = None
    """Why the baseline itself cannot be compared with."""
    _pair: tuple[Trial, Trial] | None = None
    _runs: dict[str, Trial] = field(default_factory=dict)

    def look_at(self, settings: Settings) -> _Look:
        """The setting whole; where its steps see other data than the baseline's, what of it leaves
        the data alone."""
        if changes_batch(settings, self.search.given_setup):
            return self._without(
                settings, (BATCH, ACCUMULATION), "the winner's batch is another than the baseline's"
            )
        pair = self._baseline()
        if pair is None:
            return self._unchecked()
        trial = self._run(settings)
        if trial.is_good and WORKERS in settings and _sees_other_data(pair, trial):
            why = (
                f"with {WORKERS}={settings[WORKERS]} the dataset draws other random numbers than "
                "in the baseline"
            )
            return self._without(settings, (WORKERS,), why)
        return self._compared(settings, pair, trial)

    def _without(self, settings: Settings, left_out: tuple[str, ...], why: str) -> _Look:
        note = f"{why}: its steps see other data and cannot be compared"
        others = {name: value for name, value in settings.items() if name not in left_out}
        if self.search.space.change(others).is_none:
            return _Look(notes=(note,))
        pair = self._baseline()
        if pair is None:
            return self._unchecked()
        look = self._compared(others, pair, self._run(others))
        told = f"{words_of(others)} by itself, which leaves the data as it was"
        check = (
            None
            if look.check is None
            else replace(look.check, because=f"{told}: {look.check.because}")
        )
        passed = None if look.passed_over is None else f"{told}: {look.passed_over}"
        return replace(
            look,
            check=check,
            passed_over=passed,
            notes=(f"{note}; {told}, was compared", *look.notes),
        )

    def _compared(self, settings: Settings, pair: tuple[Trial, Trial], trial: Trial) -> _Look:
        from stepscope.experiments.verify.numerics_check import DIFFERS, UNKNOWN, check_numerics

        if not trial.is_good:
            return _Look(passed_over=f"while what it computes was written down, it {_how(trial)}")
        loss = check_loss([self.search.given or pair[0], *pair], [trial])
        if loss.is_fault:
            # Whoever lets the numbers differ wants other ones, not none.
            return _Look(passed_over=loss.because.replace("the candidate's", "its"))
        check = check_numerics(pair[0].numerics, pair[1].numerics, trial.numerics)
        if check.verdict == UNKNOWN:
            return _Look(
                check=check,
                notes=(
                    f"what {words_of(settings)} computes could not be compared: {check.because}",
                ),
            )
        is_free = FREE_NUMERICS in self.search.policy.free
        return _Look(
            check=check,
            passed_over=check.because if check.verdict == DIFFERS and not is_free else None,
        )

    def _baseline(self) -> tuple[Trial, Trial] | None:
        if self._pair is None and self.problem is None:
            self.search.say("what it computes: the baseline, twice")
            pair = self._made(Change(), "the baseline"), self._made(Change(), "the baseline")
            bad = next((trial for trial in pair if not trial.is_good), None)
            if bad is None:
                self._pair = pair
            else:
                self.problem = (
                    f"what the settings compute could not be compared: the baseline {_how(bad)} "
                    "while it was written down"
                )
        return self._pair

    def _unchecked(self) -> _Look:
        assert self.problem is not None
        return (
            _Look(notes=(self.problem,))
            if FREE_NUMERICS in self.search.policy.free
            else _Look(passed_over=self.problem)
        )

    def _run(self, settings: Settings) -> Trial:
        """Settings that differ only in what is left out are the same run."""
        words = words_of(settings)
        if words not in self._runs:
            self.search.say(f"what it computes: {words}")
            self._runs[words] = self._made(self.search.space.change(settings), words)
        return self._runs[words]

    def _made(self, change: Change, words: str) -> Trial:
        self.budget.ask(f"it was known what {words} computes")
        trial = self.numerics(change)
        if trial.is_timed_out and not trial.is_good and self.budget.is_spent:
            raise SpentError(
                f"the budget ended while it was looked at what {words} computes. {LONGER}"
            )
        return trial

    def rehearsed(self, settings: Settings) -> tuple[Measured, ...]:
        """A run of each side, where the setting was run as a whole."""
        trial = self._runs.get(words_of(settings))
        if self._pair is None or trial is None or not trial.is_good:
            return ()
        return tuple(
            measured(side, run) for side, run in ((BASELINE, self._pair[1]), (CANDIDATE, trial))
        )


def _how(trial: Trial) -> str:
    """How a run failed."""
    told = last_words(trial.tail)
    if trial.is_out_of_memory:
        return "ran out of memory"
    if trial.is_timed_out:
        return f"did not end in time ({trial.wall_s:.0f} s)"
    if trial.exit_code:
        return f"failed with exit code {trial.exit_code}" + (f": {told}" if told else "")
    return "timed no step"


def _sees_other_data(pair: tuple[Trial, Trial], trial: Trial) -> bool:
    """Whether the first batches are others, where the baseline's own are the same twice."""
    first, again = pair[0].setup.data, pair[1].setup.data
    return first is not None and first == again and trial.setup.data not in (None, first)


def _verified(
    search: Search,
    settings: Settings,
    policy: ProofPolicy,
    budget: Budget,
    rehearsed: tuple[Measured, ...],
) -> Verified:
    assert search.given is not None
    change = search.space.change(settings)
    rules = VerifyPolicy(
        budget_s=budget.left_s,
        max_rounds=policy.max_rounds,
        allowed=_allowed(search, settings),
        per_sample=search.per == SAMPLE,
    )
    # The first run of all filled the caches; those of the check are nearer to what is to come.
    run_s = fmean(run.trial.wall_s for run in rehearsed) if rehearsed else search.given.wall_s
    budget.ask_for_a_proof(max(0, 2 * rules.num_rehearsals - len(rehearsed)), run_s)
    search.say(f"proving {words_of(settings)} against the baseline")

    def measure(side: Side) -> Trial:
        if budget.is_spent:
            raise SpentError("the budget was spent before the proof was at its end")
        return search.measure(change if side == CANDIDATE else Change(), None)

    def on_run(run: Measured, _interval: Interval | None) -> None:
        pace = "" if run.pace_ns is None else f", {run.pace_ns / 1e6:.3g} ms a step"
        search.say(f"proof: {run.side}{pace}")

    verified = verify(measure, rules, clock=search.clock, on_run=on_run, before=rehearsed)
    return replace(in_own_words(verified), changes={CANDIDATE: change})


def _allowed(search: Search, settings: Settings) -> frozenset[str]:
    """What may differ between the sides of the proof."""
    may = {"data"} if FREE_NUMERICS in search.policy.free or WORKERS in settings else set()
    if FREE_BATCH in search.policy.free or changes_batch(settings, search.given_setup):
        may.add("batch-size")
    return frozenset(may)


def in_own_words(found: Verified) -> Verified:
    """The proof with its refusals told by the options of `tune`, which has no --allow."""
    refused = [difference for difference in found.differences if not difference.is_allowed]
    if not found.refusals or not refused:
        return found
    refusals = tuple(
        f"{one.words} differs: {one.baseline} for the baseline, {one.candidate} for the setting. "
        + (
            f"If that is wanted, say {HINTS[one.what]}"
            if one.what in HINTS
            else "Search knobs that leave it as it is"
        )
        for one in causes(refused)
    )
    return replace(found, refusals=refusals, because="; ".join(refusals))


def _shown(knob: Knob) -> KnobShown:
    way = knob.way
    ways = {ARGUMENT: f"as {way.template}", ENVIRONMENT: f"as {way.variable}={way.template}"}
    return KnobShown(name=knob.name, words=knob.words, way=ways.get(way.kind, "set inside the job"))
