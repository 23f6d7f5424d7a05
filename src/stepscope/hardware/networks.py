"""What one network port moves, by its kind."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from stepscope.core.hardware import Figure


class Port(Struct, frozen=True, kw_only=True):
    words: str
    bytes_per_s: Figure
    """One direction."""


class _PortFile(Struct, frozen=True, kw_only=True):
    conventions: tuple[str, ...]
    ports: tuple[Port, ...]


@cache
def load_ports() -> tuple[Port, ...]:
    """Every kind, the fastest first."""
    text = resources.files("stepscope.hardware").joinpath("networks.json").read_bytes()
    return msgspec.json.decode(text, type=_PortFile).ports


def slowest_port_for(bytes_per_s: float) -> Port | None:
    """The slowest kind that can have moved so much; None above the fastest."""
    able = [port for port in load_ports() if port.bytes_per_s.value >= bytes_per_s]
    return able[-1] if able else None
