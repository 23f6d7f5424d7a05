"""What the rules about kernels say where a trace lacks shapes, or the device's peaks."""

from __future__ import annotations

from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Bool
from stepscope.rules.case import Case
from stepscope.rules.task_table import per_step_ms


def ask_for_shapes(
    case: Case, code: str, tasks: Bool, least_share: float, reason: str
) -> Abstention | None:
    """Abstain where the masked tasks take this share of the step or more; less is not worth
    asking."""
    if per_step_ms(case.graph, tasks) * 1e6 < least_share * case.step_interval_ns:
        return None
    needs = "record_shapes=True"
    if case.context.trace.meta.has_shapes:
        needs = "the peaks of this device"
    return Abstention(code=code, reason=reason, needs=needs)
