"""What is to be trained on what, before it is cut: everything but the layout."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.plan.cluster import Cluster
from stepscope.plan.compression import Compression
from stepscope.plan.constants import DEFAULT, Constants
from stepscope.plan.framework import MEGATRON_CORE, Framework
from stepscope.plan.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """States are counted without the fp32 copy of the weights, which is the framework's."""

    name: str
    words: str
    moment_bytes: float
    """Bytes of a parameter's moments."""
    products: float = 0.0
    """Products of hidden x hidden x hidden for every hidden x hidden parameters."""

    @property
    def update_bytes(self) -> float:
        """Read and written for one parameter by one fused kernel: the gradient and its zero, the
        copy and the moments each way, and the weight."""
        return 4.0 + 4.0 + 8.0 + 2.0 + 2 * self.moment_bytes


ADAM = Optimizer(name="adam", words="two moments in fp32", moment_bytes=8.0)
OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        ADAM,
        Optimizer(name="adam-bf16", words="two moments in bf16", moment_bytes=4.0),
        # Dettmers et al. 2022: two bytes, and an fp32 scale for every 256 values of each moment (2
        # x 4 / 256).
        Optimizer(name="adam-8bit", words="two moments in 8 bits", moment_bytes=2.0 + 2 * 4 / 256),
        Optimizer(name="sgd", words="no moment", moment_bytes=0.0),
        Optimizer(name="momentum", words="one moment in fp32", moment_bytes=4.0),
        Optimizer(name="lion", words="one moment in fp32", moment_bytes=4.0),
        # Shazeer and Stern 2018: a row and a column of each matrix, a thousandth of it.
        Optimizer(name="adafactor", words="a row and a column of each matrix", moment_bytes=0.01),
        # Five Newton-Schulz steps of two products with the longer side and one of the shorter: for
        # matrices between square and one to four, 23 to 30 times the shorter side for each
        # parameter, or 13 products of two FLOPs.
        Optimizer(
            name="muon",
            words="one moment in fp32, made orthogonal before each update",
            moment_bytes=4.0,
            products=13.0,
        ),
    )
}


PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
VALUE_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2, "fp4": 2}
"""Bytes of an activation: fp8 products read fp8, but what is kept between them is bf16."""


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
    """Precision that gradients were asked to be kept in, bf16 or fp32; `framework` has it
    already."""
    compression: Compression | None = None
    """How the gradients are compressed that all data ranks keep whole."""
    constants: Constants = DEFAULT

    @property
    def value_bytes(self) -> int:
        return VALUE_BYTES[self.precision]

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.seq_len * self.global_batch
