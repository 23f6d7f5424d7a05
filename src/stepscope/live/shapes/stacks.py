"""Where processes stand in their code, looked at from outside a few times."""

from __future__ import annotations

from msgspec import Struct


class Frame(Struct, frozen=True, kw_only=True):
    """One call."""

    name: str
    file: str
    line: int


class Stood(Struct, frozen=True, kw_only=True):
    """One process, over all looks at it."""

    pid: int
    rank: int | None
    """None where its environment does not say."""
    stacks: tuple[tuple[Frame, ...], ...]
    """Of the thread that trains, a stack for each look; the innermost call first."""
    cpu_share: float | None
    """CPU time it used in the meantime, in cores."""
    problem: str | None = None
    """Why there are no stacks."""


class Standing(Struct, frozen=True, kw_only=True):
    """What is made of it."""

    pid: int
    rank: int | None
    state: str
    """hung: at one source location and using no CPU; slow: at one and using CPU; running; or
    unknown."""
    where: tuple[Frame, ...]
    """The innermost calls of the training code itself, the innermost first."""
    inside: str | None
    """The call they are in, of torch or another library."""
    collective: str | None
    """The collective it is in, where it is in one."""
    is_elsewhere: bool = False
    """Stands where most ranks do not."""
    problem: str | None = None


class Comparison(Struct, frozen=True, kw_only=True):
    """All ranks, and what their source locations mean together."""

    ranks: tuple[Standing, ...]
    summary: str
