"""The documents that have a published schema."""

from __future__ import annotations

from stepscope.core.contract.codec import Contract
from stepscope.tune.shapes.tuning import Tuning

DOCUMENTS: tuple[type[Contract], ...] = (Tuning,)
