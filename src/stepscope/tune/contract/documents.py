"""The documents that have a published schema."""

from __future__ import annotations

from stepscope.core.contract.codec import Contract
from stepscope.tune.contract.tuning import TuningContract

DOCUMENTS: tuple[type[Contract], ...] = (TuningContract,)
