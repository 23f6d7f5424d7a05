"""What is to be trained on what, before it is cut: everything but the layout."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.plan.cluster import Cluster
from stepscope.plan.compression import Compression
from stepscope.plan.constants import DEFAULT, Constants
from stepscope.plan.framework import MEGATRON_CORE, Framework
from stepscope.plan.model import Model
from stepscope.plan.optimizers import ADAM, Optimizer

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
VALUE_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2, "fp4": 2}
"""Of an activation: fp8 products read fp8, but what is kept between them is bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A model on a cluster, the sequence and the precision."""

    model: Model
    cluster: Cluster
    seq_len: int
    global_batch: int
    precision: str = "bf16"
    framework: Framework = MEGATRON_CORE
    optimizer: Optimizer = ADAM
    is_adapter: bool = False
    """Whether the model's own weights are frozen and only small adapters beside them are trained
    (LoRA)."""
    grads: str | None = None
    """That gradients were asked to be kept in, bf16 or fp32; `framework` has it already."""
    compression: Compression | None = None
    """Of gradients that all data ranks keep whole."""
    constants: Constants = DEFAULT

    @property
    def value_bytes(self) -> int:
        return VALUE_BYTES[self.precision]

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.seq_len * self.global_batch
