"""`stepscope.launch/1`: what `stepscope plan --emit TARGET --format json` prints."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from stepscope.core.constraints import AtLeastZero, one_of
from stepscope.core.contract.codec import Contract


class LaunchFile(Struct, frozen=True, kw_only=True):
    """One file that starts the layout."""

    name: str
    text: str
    is_executable: bool = field(default=False, name="executable")


class LaunchContract(Contract, frozen=True, kw_only=True, tag="stepscope.launch/1"):
    """The launch line and configuration of one layout."""

    target: Annotated[
        str, one_of("torchrun", "fsdp2", "deepspeed", "megatron", "torchtitan", "accelerate")
    ]
    model: str
    cluster: str
    framework: str
    """Whose conventions the plan goes by."""
    layout: str
    layout_words: str
    """The name, spelled out."""
    step_s: AtLeastZero
    memory_bytes: AtLeastZero
    """Of the device that holds most."""
    fits: bool
    command: str
    """The line that starts it on one node."""
    files: tuple[LaunchFile, ...]
    folder: str | None
    """Where they were written; null where they were not."""
    skipped: tuple[str, ...]
    """Faster layouts, and why each cannot be written there."""
    notes: tuple[str, ...]
