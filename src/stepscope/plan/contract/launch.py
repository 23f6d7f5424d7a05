"""`stepscope.launch/1`: what `stepscope plan --emit TARGET --format json` prints."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from stepscope.core.codec import AtLeastZero, Contract, one_of


class LaunchFile(Struct, frozen=True, kw_only=True):
    """One file that starts the layout."""

    name: str
    text: str
    is_executable: bool = field(default=False, name="executable")


class LaunchContract(Contract, frozen=True, kw_only=True, tag="stepscope.launch/1"):
    """The launch line and configuration of one layout."""

    target: Annotated[
        str,
        one_of(
            "torchrun", "fsdp2", "deepspeed", "megatron", "torchtitan", "accelerate", "transformers"
        ),
    ]
    model: str
    cluster: str
    framework: str
    """Framework whose conventions the plan goes by."""
    layout: str
    layout_words: str
    """The name, spelled out."""
    step_s: AtLeastZero
    memory_bytes: AtLeastZero
    """Bytes on the device that holds most."""
    fits: bool
    command: str
    """The line that starts it on one node."""
    files: tuple[LaunchFile, ...]
    folder: str | None
    """Where they were written; null where they were not."""
    skipped: tuple[str, ...]
    """Faster layouts, and why each cannot be written there."""
    notes: tuple[str, ...]


ERROR, SLOW, MEMORY, NOTE = "error", "slow", "memory", "note"


class Range(Struct, frozen=True, kw_only=True):
    """A planned figure, and where four fifths of published results lie around such figures."""

    value: AtLeastZero
    low: AtLeastZero
    high: AtLeastZero


class Fault(Struct, frozen=True):
    """One thing that is wrong, the errors first, then the most costly."""

    code: str
    kind: Annotated[str, one_of(ERROR, SLOW, MEMORY, NOTE)]
    """error: it does not run as it is; note: it may be meant."""
    what: str
    fix: str
    seconds: float | None = None
    """Time of a step that the fix gives, as planned; null where the planner cannot say."""
    num_bytes: float | None = field(default=None, name="bytes")
    """Bytes of a device's memory that is missing, or that the fix frees."""


class CheckContract(Contract, frozen=True, kw_only=True, tag="stepscope.check/1"):
    """A framework's configuration as it was read, what it will take, and what is wrong with it."""

    file: str
    kind: Annotated[str, one_of("deepspeed", "torchtitan", "megatron", "torch", "transformers")]
    runs: bool
    """Whether nothing was seen that keeps it from running."""
    fits: bool | None
    """null where nothing is estimated."""
    model: str | None
    cluster: str | None
    framework: str
    layout: str | None
    layout_words: str | None
    step_s: Range | None
    """null where model, cluster or sequence are not known, or it cannot run."""
    memory_bytes: Range | None
    mfu: float | None
    faults: tuple[Fault, ...]
    missing: tuple[str, ...]
    """Options that would make an estimate possible."""
    notes: tuple[str, ...]
