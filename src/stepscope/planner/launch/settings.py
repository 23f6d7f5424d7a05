"""What a framework's configuration says of a run: one shape for every framework that is read."""

from __future__ import annotations

from msgspec import Struct

from stepscope.planner.model import Model


class Settings(Struct, frozen=True, kw_only=True):
    """None is 'the file does not say'."""

    kind: str
    """deepspeed, torchtitan or megatron."""
    where: str
    """The file's name."""
    framework: str
    """Whose conventions hold."""
    model_word: str | None = None
    """A built-in model that the file names."""
    model: Model | None = None
    """The model that the file describes."""
    seq_len: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    """Micro-batches of a step, where the file says it itself."""
    is_repeated: bool = False
    """Whether a step may have several runs of so many micro-batches, one after the other."""
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    copies: int | None = None
    """Ranks that hold whole copies (HSDP)."""
    shard: int = 0
    dp: int | None = None
    zero_stage: int = 0
    is_sequence_parallel: bool = False
    recompute: str = "none"
    schedule: str = "1f1b"
    offload: str = "none"
    precision: str | None = None
    is_flash: bool = True
    optimizer: str | None = None
    overlaps_data: bool | None = None
    """Whether gradients are reduced behind the backward pass."""
    grad_bytes: float | None = None
    """Of a gradient that is kept and reduced."""
    bucket_elements: int | None = None
    """Of a bucket of gradients."""
    notes: tuple[str, ...] = ()
    """What could not be read."""
