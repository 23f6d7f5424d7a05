"""The documents that have a published schema."""

from __future__ import annotations

from stepscope.core.contract.codec import Contract
from stepscope.scaling.contract import ScalingContract

DOCUMENTS: tuple[type[Contract], ...] = (ScalingContract,)
