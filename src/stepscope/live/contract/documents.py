"""The documents that have a published schema."""

from __future__ import annotations

from stepscope.core.contract.codec import Contract
from stepscope.live.contract.alert import AlertContract
from stepscope.live.contract.triage import TriageContract

DOCUMENTS: tuple[type[Contract], ...] = (AlertContract, TriageContract)
