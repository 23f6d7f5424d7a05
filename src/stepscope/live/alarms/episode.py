"""What a detector says: what is wrong, since when, on which ranks; and that it is over."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace


class Trouble(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, as one detector sees it."""

    kind: str
    """One of core.live.KINDS."""
    ranks: tuple[int, ...]
    words: str
    """After the ranks' name."""
    since_s: float | None = None
    """On the wall clock; None where that is not known."""
    step: int | None = None
    before: float | None = None
    after: float | None = None
    unit: str | None = None
    ended_s: float | None = None
    """None while it lasts; the rest is as it was when it began."""


def over(trouble: Trouble, at_s: float) -> Trouble:
    return replace(trouble, ended_s=at_s)
