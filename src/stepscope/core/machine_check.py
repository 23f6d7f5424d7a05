"""MachineCheck: one thing that this machine allows or does not, and what to do about it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

State = Literal["yes", "partly", "no", "not here"]


class MachineCheck(Struct, frozen=True, kw_only=True):
    name: str
    state: State
    words: str
    """What was seen."""
    action: str = ""
    """What to do where it is not all there; empty where nothing is to be done."""
    is_needed: bool = False
    """Whether nothing can be recorded without it."""
