"""The documents that have a published schema."""

from __future__ import annotations

from stepscope.core.codec import Contract
from stepscope.live.shapes.alert import Alert
from stepscope.live.shapes.triage import Triage

DOCUMENTS: tuple[type[Contract], ...] = (Alert, Triage)
