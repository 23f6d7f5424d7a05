"""What a framework's configuration says of a run: one shape for every framework that is read."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stepscope.plan.layout import Layout
from stepscope.plan.model import Model
from stepscope.protocol.untrusted import whole, whole_text

MAX_COUNT = 10**9


class Settings(Struct, frozen=True, kw_only=True):
    """None is 'the file does not say'."""

    kind: str
    """deepspeed, torchtitan, megatron, transformers or torch."""
    where: str
    """The file's name."""
    framework: str
    """Framework whose conventions hold."""
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
    layout: Layout
    """All of it but data ranks and micro-batches, which follow from devices and batches."""
    copies: int | None = None
    """Ranks that hold whole copies (HSDP)."""
    precision: str | None = None
    optimizer: str | None = None
    overlaps_data: bool | None = None
    """Whether gradients are reduced behind the backward pass."""
    overlaps_tensor: bool | None = None
    """Whether gathers between tensor ranks run behind products."""
    grads: str | None = None
    """Precision that gradients are kept in, where it is not what the framework does by itself."""
    bucket_elements: int | None = None
    """Elements of a bucket of gradients."""
    has_square_buckets: bool = False
    """Whether a bucket has as many as a square matrix of the model."""
    has_node_shards: bool = False
    """Whether the ranks of a node share one copy."""
    conventions: Mapping[str, object] = {}
    """What else of the framework the file changes."""
    refused: tuple[str, ...] = ()
    """Values that no framework takes, in words; the settings have what is usual in their place."""
    notes: tuple[str, ...] = ()
    """What could not be read."""


class Counts(Struct, frozen=True, kw_only=True):
    """Fields of a table that are whole numbers, and what else may stand there."""

    names: tuple[str, ...]
    low: int = 1
    high: int = MAX_COUNT
    besides: tuple[object, ...] = (None,)

    def refused(self, table: Mapping[str, object], dashes: str = "") -> list[str]:
        """Reasons against those fields that are none."""
        words = f"from {self.low} {'on' if self.high == MAX_COUNT else f'to {self.high}'}"
        return [
            f"{dashes}{name} is {str(value)[:40]!a}, and must be a whole number {words}"
            for name in self.names
            if (value := table.get(name)) not in self.besides and not self._holds(value)
        ]

    def _holds(self, value: object) -> bool:
        read = whole_text if isinstance(value, str) else whole
        return read(value, self.low, self.high) is not None  # type: ignore[arg-type]
