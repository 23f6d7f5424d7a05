"""What is known of the best setting before it is named: that it computes the same, and that it is faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stepscope.core.experiment import CANDIDATE, NumericsCheck, Side, Verified
from stepscope.core.trials import Change, Trial, Value
from stepscope.core.tuning import NOT_MEASURED, NOT_PROVEN, NOTHING_FASTER, PROVEN, REFUSED, SAMPLE, KnobShown, Tuning, Winner
from stepscope.experiments.knob_space import ARGUMENT, ENVIRONMENT, Knob, Settings
from stepscope.experiments.tune import Search, words_of
from stepscope.experiments.tune_batch import BATCH, FREE_BATCH, FREE_NUMERICS, batch_words
from stepscope.experiments.tune_words import winner_words
from stepscope.experiments.verify import VerifyPolicy, verify

LEAST_GAIN = 1.01
"""Below this a setting is not worth proving: verify would not call it a gain."""
MAX_CHECKED = 3
"""Settings whose numbers are compared, the best first, until one computes what the baseline does."""

Numerics = Callable[[Change], Trial]
"""Runs the job once with what it computes written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPolicy:
    """How the winner is proven."""

    budget_s: float | None = None
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


def concluded(search: Search, command: tuple[str, ...], numerics: Numerics | None, policy: ProofPolicy) -> Tuning:
    """The whole search with its winner checked and proven, or with the reason why there is none."""
    assert search.baseline is not None
    proof = _Proof()
    notes = list(search.notes)
    try:
        _prove(search, numerics, policy, proof, notes)
    except KeyboardInterrupt:
        search.is_interrupted = True
        proof.verdict, proof.because = NOT_PROVEN, "the proof was interrupted"
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
        wall_s=search.clock() - search.began,
        setup=search.given_setup,
        notes=(*notes, *([] if kept is None else [kept])),
    )


def _prove(search: Search, numerics: Numerics | None, policy: ProofPolicy, proof: _Proof, notes: list[str]) -> None:
    assert search.baseline is not None and search.baseline.ns is not None
    ranked = search.ranked()
    if not ranked:
        proof.because = f"no setting was measured: {search.ended}"
        return
    better = [(settings, ns) for settings, ns in ranked if search.baseline.ns / ns >= LEAST_GAIN]
    if not better:
        proof.verdict = NOTHING_FASTER
        proof.because = f"none of {len(ranked)} settings was more than 1 % faster than the command as it was given"
        return
    proof.settings, proof.ns = better[0]
    if search.is_interrupted or policy.skip:
        proof.verdict = NOT_PROVEN
        proof.because = "the search was interrupted" if search.is_interrupted else "a proof was not asked for"
        return
    if not _choose(search, better, numerics, proof, notes):
        return
    assert proof.settings is not None
    search.say(f"proving {words_of(proof.settings)} against the baseline")
    proof.verified = _verified(search, proof.settings, policy)
    if proof.verified.is_gain:
        proof.verdict, proof.because = PROVEN, proof.verified.because
    else:
        proof.verdict = NOT_PROVEN
        proof.because = f"measured again in turn with the baseline: {proof.verified.verdict}, {proof.verified.because}"


def _choose(
    search: Search, better: list[tuple[dict[str, Value], float]], numerics: Numerics | None, proof: _Proof, notes: list[str]
) -> bool:
    """Takes the best setting that computes what the baseline does; False where each of the first few computes something else."""
    if numerics is None:
        notes.append("what the settings compute was not compared")
        return True
    from stepscope.experiments.numerics_check import DIFFERS, check_numerics

    first = again = None
    for settings, ns in better[:MAX_CHECKED]:
        if _changes_batch(search, settings):
            proof.settings, proof.ns = settings, ns
            notes.append(
                "the winner's batch size is another than the baseline's: its steps see other data and cannot be compared"
            )
            return True
        if first is None or again is None:
            search.say("what it computes: the baseline, twice")
            first, again = numerics(Change()), numerics(Change())
        search.say(f"what it computes: {words_of(settings)}")
        trial = numerics(search.space.change(settings))
        check = check_numerics(first.numerics, again.numerics, trial.numerics)
        if check.verdict != DIFFERS or FREE_NUMERICS in search.policy.free:
            proof.settings, proof.ns, proof.check = settings, ns, check
            return True
        proof.check = proof.check or check
        notes.append(f"{words_of(settings)} was passed over: {check.because}")
        search.say(notes[-1])
    proof.verdict = REFUSED
    assert proof.check is not None
    proof.because = f"{proof.check.because}. If that is wanted, say --free numerics"
    return False


def _changes_batch(search: Search, settings: Settings) -> bool:
    size, given = settings.get(BATCH), search.given_setup.batch_size
    return size is not None and size != given


def _verified(search: Search, settings: Settings, policy: ProofPolicy) -> Verified:
    change = search.space.change(settings)

    def measure(side: Side) -> Trial:
        return search.measure(change if side == CANDIDATE else Change(), None)

    allowed = frozenset({"batch-size"} if FREE_BATCH in search.policy.free or _changes_batch(search, settings) else ())
    found = verify(
        measure,
        VerifyPolicy(
            budget_s=policy.budget_s,
            max_rounds=policy.max_rounds,
            allowed=allowed,
            per_sample=search.per == SAMPLE,
        ),
        told=lambda run, _interval: search.say(
            f"proof: {run.side}" + ("" if run.pace_ns is None else f", {run.pace_ns / 1e6:.3g} ms a step")
        ),
    )
    return replace(found, changes={CANDIDATE: change})


def _shown(knob: Knob) -> KnobShown:
    way = knob.way
    ways = {ARGUMENT: f"as {way.template}", ENVIRONMENT: f"as {way.variable}={way.template}"}
    return KnobShown(name=knob.name, words=knob.words, way=ways.get(way.kind, "set inside the job"))
