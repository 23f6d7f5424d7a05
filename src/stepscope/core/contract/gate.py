"""The key `gate` of a diagnosis or a comparison: what --fail-if and --budget came to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from stepscope.core.constraints import one_of


class GateCheck(Struct, frozen=True, kw_only=True):
    """One check."""

    check: str
    source: str
    """--fail-if, or the place in the budget."""
    status: Annotated[str, one_of("passed", "failed", "undecided")]
    reason: str
    """The figures behind it, or what was not measured."""
    values: Mapping[str, float | None]
    """The quantities it names; null where one was not measured."""


class Gate(Struct, frozen=True, kw_only=True):
    """What the gate found."""

    passed: bool
    missing: Annotated[str, one_of("fail", "pass")]
    """What becomes of an undecided check."""
    baseline: str | None
    """What was compared with."""
    checks: Annotated[tuple[GateCheck, ...], Meta(min_length=1)]
