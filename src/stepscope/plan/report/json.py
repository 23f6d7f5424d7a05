"""A plan as JSON: the document `stepscope.plan/1`."""

from __future__ import annotations

from msgspec import UNSET

from stepscope.core.contract.codec import encode
from stepscope.plan.contract.plan import PlanContract, RecordedMemory
from stepscope.plan.report.account import Plan


def plan_json(plan: Plan, measured: RecordedMemory | None = None) -> str:
    """The document as indented text; `recorded_memory` is there where it was asked for."""
    same = {name: getattr(plan, name) for name in PlanContract.__struct_fields__}
    return encode(
        PlanContract(**same | {"recorded_memory": UNSET if measured is None else measured})
    )
