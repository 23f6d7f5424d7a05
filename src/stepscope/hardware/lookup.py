"""From a device as a trace recorded it to its datasheet.

A device that is not surely known has none.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from stepscope.core.hardware import DeviceSpec
from stepscope.core.trace import DeviceProperties

# A recorder sees less than the datasheet's memory: the driver keeps up to 2 %, ECC on GDDR another
# 1/16 (an L4 records 0.92 of its 24 GB). The closest two that memory alone separates are 192 and
# 256 GB.
_MEMORY_LOW = 0.90
_MEMORY_HIGH = 1.01

# What AMD's driver writes when its table of marketing names is missing. Integrated graphics have
# the same name, but waves of 32.
_UNNAMED = ("", "radeon graphics")
_CDNA_WARP_SIZE = 64

_VENDOR_PREFIX = re.compile(r"^(nvidia |amd )?(tesla )?")


class _Entry(Struct, frozen=True, kw_only=True):
    """One device of specs.json: its spec, and how a recorder may name it."""

    spec: DeviceSpec
    names: tuple[str, ...]
    num_sms_source: str
    unnamed: bool = False


class _SpecFile(Struct, frozen=True, kw_only=True):
    conventions: tuple[str, ...]
    devices: tuple[_Entry, ...]


@cache
def load_specs() -> tuple[DeviceSpec, ...]:
    """Every device we have a datasheet of."""
    return tuple(entry.spec for entry in _load_file().devices)


def find_spec_by_key(key: str) -> DeviceSpec | None:
    """The device with this key ("h100-sxm"), in any case."""
    return next((spec for spec in load_specs() if spec.key == key.casefold()), None)


def find_spec(properties: DeviceProperties) -> DeviceSpec | None:
    """The device that fits all that was recorded, or None where none does, or more than one.

    A name alone is not enough: a slice of a card or a refitted card may keep the name and have
    other peaks. So the memory and the number of SMs, where recorded, must fit as well.
    """
    fitting = [entry.spec for entry in _candidates(properties) if _fits(entry.spec, properties)]
    return fitting[0] if len(fitting) == 1 else None


@cache
def _load_file() -> _SpecFile:
    text = Path(__file__).with_name("specs.json").read_bytes()
    return msgspec.json.decode(text, type=_SpecFile)


def _candidates(properties: DeviceProperties) -> list[_Entry]:
    name = _plain_name(properties.name)
    devices = _load_file().devices
    if name not in _UNNAMED:
        return [entry for entry in devices if name in map(_plain_name, entry.names)]
    # Without a name, memory and SMs are all there is: both must have been recorded.
    if (
        properties.warp_size != _CDNA_WARP_SIZE
        or properties.memory_bytes is None
        or properties.num_sms is None
    ):
        return []
    return [entry for entry in devices if entry.unnamed]


def _fits(spec: DeviceSpec, properties: DeviceProperties) -> bool:
    if properties.num_sms not in (None, spec.num_sms):
        return False
    if properties.memory_bytes is None:
        return True
    return _MEMORY_LOW <= properties.memory_bytes / spec.memory_bytes.value <= _MEMORY_HIGH


def _plain_name(name: str) -> str:
    """The name without case, vendor and spacing.

    Drivers have changed all three ("Tesla T4", "NVIDIA T4", "MI250X/MI250").
    """
    spaced = " ".join(name.casefold().replace("/", " / ").split())
    return _VENDOR_PREFIX.sub("", spaced)
