"""A health check's answer."""

from __future__ import annotations

from dataclasses import dataclass

OK, BAD, UNKNOWN = "ok", "bad", "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about the job."""

    name: str
    state: str
    """OK, BAD or UNKNOWN."""
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """All of them."""

    checks: tuple[Check, ...]

    @property
    def state(self) -> str:
        """BAD when one is, else UNKNOWN when one is."""
        states = {check.state for check in self.checks}
        return BAD if BAD in states else UNKNOWN if UNKNOWN in states or not states else OK
