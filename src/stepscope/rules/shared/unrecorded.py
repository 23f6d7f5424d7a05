"""What a rule needs and a trace may lack: the allocator's events, the shapes of inputs."""

from __future__ import annotations

from msgspec import Struct

from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Bool, Int64
from stepscope.rules.case import Case
from stepscope.rules.task_table import per_step_ms

REASON = "the allocator's events were not recorded"
CPU = 0
"""The recorder's device type of host memory."""


class DeviceMemory(Struct, frozen=True, kw_only=True):
    """Bytes that tensors hold and that the allocator has from the driver, per event, in time
    order."""

    time_ns: Int64
    allocated: Int64
    reserved: Int64


def device_memory(case: Case) -> DeviceMemory | None:
    """The events of the device this rank works on; None when none were recorded."""
    events, device = case.context.trace.memory, case.context.device
    if events is None:
        return None
    own = (events.device_type != CPU) & (events.allocated_bytes >= 0) & (events.reserved_bytes >= 0)
    if device is not None:
        own &= events.device == device.index
    if not own.any():
        return None
    return DeviceMemory(
        time_ns=events.time_ns[own],
        allocated=events.allocated_bytes[own],
        reserved=events.reserved_bytes[own],
    )


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
