"""What a case of the lab is: the run as it is, the run with its mend, and what an honest tool may
say of it.

A fault's mend gives a real gain. A look-alike shows the signature of the codes in `no_gain_from`,
and mending it was measured to give less than 3 %. What each really gave is in truth.json, never
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lab.measure import Plan, Run

STEADY = Plan()
LOADER = Plan(rounds=1, warm=40, steps=48, mean=True)
COMPILE = Plan(rounds=3, warm=6, steps=10)
LONG = Plan(rounds=2, warm=3, steps=10)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`also` are further mends, timed and not recorded; `cause` says which of them mends the true
    cause of a look-alike.

    `same_as` names the trace of another case that is this one's mended run; it is not recorded
    twice.
    """

    model: str
    bounds: tuple[str, ...]
    causes: tuple[str, ...] = ()
    no_gain_from: tuple[str, ...] = ()
    fix: str
    slow: Callable[[], Run]
    fixed: Callable[[], Run]
    also: Mapping[str, Callable[[], Run]] = field(default_factory=dict)
    cause: str | None = None
    plan: Plan = STEADY
    held_out: bool = False
    same_as: str | None = None
    record_fixed: bool = True
