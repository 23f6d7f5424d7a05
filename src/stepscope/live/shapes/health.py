"""A health check's answer."""

from __future__ import annotations

from msgspec import Struct

OK, BAD, UNKNOWN = "ok", "bad", "not known"


class Check(Struct, frozen=True, kw_only=True):
    """One question about the job."""

    name: str
    state: str
    """OK, BAD or UNKNOWN."""
    words: str


class Health(Struct, frozen=True, kw_only=True):
    checks: tuple[Check, ...]

    @property
    def state(self) -> str:
        """BAD when one is, else UNKNOWN when one is."""
        states = {check.state for check in self.checks}
        return BAD if BAD in states else UNKNOWN if UNKNOWN in states or not states else OK
