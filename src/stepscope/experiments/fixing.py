"""The loop that a performance engineer does by hand: take the first finding, set its fix from
outside, prove it against what was kept so far, keep it or revert it, look again.

What looks and what proves are functions: the command line diagnoses and runs real trainings, tests
make both up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from stepscope.core.diagnosis import Finding
from stepscope.core.experiments.experiment import Predicted, Prediction, Verified
from stepscope.core.experiments.fixed import (
    BY_HAND,
    KEPT,
    NOT_RUN,
    NOT_TRIED,
    REVERTED,
    Attempt,
    Fixed,
)
from stepscope.core.experiments.trials import Change, Value
from stepscope.core.run import LoaderKnobs
from stepscope.experiments.fix_values import fixes
from stepscope.experiments.preflight import unable_with
from stepscope.experiments.verify.numerics_check import DIFFERS, UNKNOWN
from stepscope.protocol.settings import SETTINGS, raised_by, value_of

Look = Callable[[Change], Sequence[Finding]]
"""The findings of the command with this change applied on top of it, most costly first."""
Prove = Callable[[Change, Change, Prediction | None], Verified]
"""The second change against the first."""
Room = Callable[[int], "str | None"]
"""Why there is no time for so many proofs more; None where there is."""
Say = Callable[[str], None]

NAMED = re.compile(r"\b([a-z_]{2,40})=([\w.:-]{1,40})")
"""`num_workers=4`, as an action names the setting and the value to try."""


class FixPolicy(Struct, frozen=True, kw_only=True):
    most: int = 8
    """Findings tried, each with runs of its own."""
    least_gain: float = 1.01
    """A finding that promises less is not tried."""
    allows_numerics: bool = False
    """Whether a fix may stay that changes what is computed by more than rounding."""
    unable: Mapping[str, str] = field(default_factory=dict)
    """Settings that cannot take effect on this machine, and why: a fix of these alone is not
    tried."""
    loader: LoaderKnobs | None = None
    """The recorded job's: what its loader cannot take is not tried either."""


def settings_for(finding: Finding, num_ranks: int = 1) -> dict[str, Value] | None:
    """What can be set from outside for this finding: the usual for its code, with the values that
    its own action names."""
    usual = fixes(finding.code, num_ranks=num_ranks)
    if usual is None:
        return None
    named = {}
    for name, text in NAMED.findall(finding.action):
        setting = SETTINGS.get(name)
        if setting is not None and finding.code in setting.fixes and name in usual:
            try:
                named[name] = value_of(name, text)
            except ValueError:
                continue
    return usual | named


def propose(
    findings: Sequence[Finding], num_ranks: int = 1, policy: FixPolicy | None = None
) -> tuple[Attempt, ...]:
    """What would be tried, in its order; nothing is run."""
    return tuple(
        _untried(finding, settings_for(finding, num_ranks), policy or FixPolicy())
        for finding in findings
    )


class Loop(NamedTuple):
    attempts: tuple[Attempt, ...]
    kept: Change
    whole: Verified | None
    """All that was kept proven against nothing."""
    left: tuple[str, ...]
    """Codes that were never tried."""
    is_interrupted: bool = False


def fix(
    look: Look,
    prove: Prove,
    *,
    num_ranks: int = 1,
    policy: FixPolicy | None = None,
    say: Say = lambda _: None,
    room: Room = lambda _: None,
) -> Loop:
    """Every finding once, from the top. After a fix that stays the run is looked at again: findings
    change with it.

    Ctrl-C ends it with what was kept by then."""
    made = _Fixing(look, prove, num_ranks, policy or FixPolicy(), say, room)
    is_interrupted = False
    try:
        made.go_through()
        made.prove_whole()
    except KeyboardInterrupt:
        is_interrupted = True
        made.take_only()
    tried = {attempt.code for attempt in made.attempts}
    left = tuple(finding.code for finding in made.findings if finding.code not in tried)
    return Loop(tuple(made.attempts), made.kept, made.whole, left, is_interrupted)


class _Fixing:
    def __init__(
        self, look: Look, prove: Prove, num_ranks: int, policy: FixPolicy, say: Say, room: Room
    ) -> None:
        self._look, self._prove, self._num_ranks, self._policy = look, prove, num_ranks, policy
        self._say, self._room = say, room
        self.kept = Change()
        self.attempts: list[Attempt] = []
        self.findings: list[Finding] = []
        self.whole: Verified | None = None

    @property
    def _num_tried(self) -> int:
        return sum(attempt.verified is not None for attempt in self.attempts)

    def go_through(self) -> None:
        self.findings = list(self._look(self.kept))
        while (finding := self._next()) is not None:
            attempt = _untried(finding, settings_for(finding, self._num_ranks), self._policy)
            is_little = attempt.predicted.value < self._policy.least_gain
            if attempt.outcome != NOT_TRIED or is_little or self._num_tried >= self._policy.most:
                self.attempts.append(_limited(attempt, self._num_tried, self._policy))
                continue
            raised = tuple(sorted({*self.kept.raised, *raised_by(attempt.code, attempt.knobs)}))
            trying = replace(self.kept, knobs={**self.kept.knobs, **attempt.knobs}, raised=raised)
            if trying.knobs == self.kept.knobs:
                why = "what would be set for it is set already, by a fix that was kept"
                self.attempts.append(replace(attempt, why=why))
                continue
            # A second one that is tried takes a proof of the whole, too: what was proven stays
            # proven.
            no_room = self._room(2 if self._num_tried else 1)
            if no_room is not None:
                self.attempts.append(replace(attempt, why=no_room))
                continue
            self._try(attempt, trying)

    def _next(self) -> Finding | None:
        seen = {attempt.code for attempt in self.attempts}
        return next((finding for finding in self.findings if finding.code not in seen), None)

    def _try(self, attempt: Attempt, trying: Change) -> None:
        self._say(
            f"{attempt.code}: trying {words_of(attempt)}, predicted {attempt.predicted.value:.2f}x"
        )
        prediction = Prediction(**asdict(attempt.predicted), source=attempt.code)
        verified = self._prove(self.kept, trying, prediction)
        tried = _judged(attempt, verified, self._policy)
        self.attempts.append(tried)
        self._say(f"{attempt.code}: {tried.outcome}: {tried.why}")
        if verified.is_interrupted:
            raise KeyboardInterrupt
        if tried.outcome == KEPT:
            self.kept = trying
            if self._room(2) is None:
                self.findings = list(self._look(self.kept))

    def take_only(self) -> None:
        """What was tried alone and kept is the whole."""
        if self._num_tried == 1:
            kept = (attempt.verified for attempt in self.attempts if attempt.outcome == KEPT)
            self.whole = next(kept, None)

    def prove_whole(self) -> None:
        self.take_only()
        if self.whole is None and not self.kept.is_none and self._room(1) is None:
            # Of several that were tried the one that stays was chosen for its figure: it is
            # measured afresh.
            self._say("all that was kept, against the command as it was given")
            self.whole = self._prove(Change(), self.kept, None)


def fixed(command: Sequence[str], attempts: Sequence[Attempt], before_ms: float | None) -> Fixed:
    """Where nothing was run."""
    return Fixed(
        command=tuple(command),
        attempts=tuple(attempts),
        before_ms=before_ms,
    )


def _untried(finding: Finding, knobs: dict[str, Value] | None, policy: FixPolicy) -> Attempt:
    predicted = Predicted(
        value=finding.predicted_speedup,
        low=finding.predicted_low,
        high=finding.predicted_high,
    )
    outcome, why = NOT_TRIED, NOT_RUN
    unable = {**policy.unable, **unable_with(policy.loader, knobs or {})}
    if knobs is None:
        outcome, why = BY_HAND, "no setting from outside fixes it: it takes a change in the code"
    elif any(SETTINGS[name].changes_numerics for name in knobs) and not policy.allows_numerics:
        outcome = BY_HAND
        why = "its fix changes what is computed: say --allow-numerics to have it tried"
    elif all(name in unable for name in knobs):
        outcome = BY_HAND
        reasons = dict.fromkeys(unable[name] for name in knobs)
        why = "; ".join(
            f"{' and '.join(name for name in knobs if unable[name] == reason)} cannot take effect "
            f"here: {reason}"
            for reason in reasons
        )
    return Attempt(
        code=finding.code,
        summary=finding.summary,
        action=finding.action,
        predicted=predicted,
        outcome=outcome,
        why=why,
        knobs=knobs or {},
    )


def _limited(attempt: Attempt, num_tried: int, policy: FixPolicy) -> Attempt:
    if attempt.outcome != NOT_TRIED:
        return attempt
    if attempt.predicted.value < policy.least_gain:
        return replace(
            attempt, why=f"it promises {attempt.predicted.value:.2f}x, which no run would show"
        )
    before = "one finding was" if num_tried == 1 else f"{num_tried} findings were"
    return replace(attempt, why=f"{before} tried before it, which is the most (--most)")


def _judged(attempt: Attempt, verified: Verified, policy: FixPolicy) -> Attempt:
    """Kept where the gain is proven, and what is computed stayed what it was."""
    outcome, why = REVERTED, f"{verified.verdict}: {verified.because}"
    if verified.is_gain:
        check = verified.check
        if check is not None and check.verdict == DIFFERS and not policy.allows_numerics:
            why = f"it is faster, but what is computed differs: {check.because}"
        else:
            outcome = KEPT
            if check is not None and check.verdict == UNKNOWN:
                why = f"{why}; what is computed could not be compared: {check.because}"
    return replace(attempt, outcome=outcome, why=why, verified=verified)


def words_of(attempt: Attempt) -> str:
    """What is set for it: `num_workers=4, persistent_workers=True`."""
    return ", ".join(f"{name}={value}" for name, value in attempt.knobs.items())
