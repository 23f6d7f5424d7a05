"""The shapes that entries of rocprofv3's JSON decode into: the fields that are used, and no
others."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from stepscope.core.trace import NONE
from stepscope.recordings.row_builder import LARGEST_ID

Whole = Annotated[int, Meta(ge=-1, le=LARGEST_ID)]


class Handle(Struct, gc=False, frozen=True):
    handle: Whole = NONE


NO_HANDLE = Handle()


class Dim(Struct, gc=False, frozen=True):
    x: Whole = 0
    y: Whole = 0
    z: Whole = 0

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.x, self.y, self.z


class Correlation(Struct, gc=False, frozen=True):
    internal: Whole = 0


class Info(Struct, gc=False, frozen=True):
    agent_id: Handle = NO_HANDLE
    queue_id: Handle = NO_HANDLE
    kernel_id: Whole = 0
    group_segment_size: Whole = NONE
    workgroup_size: Dim = Dim()
    grid_size: Dim = Dim()


class Record(Struct, gc=False, frozen=True):
    """What every record has. Times of 0 were not recorded."""

    kind: Whole = 0
    operation: Whole = 0
    thread_id: Whole = 0
    correlation_id: Correlation = Correlation()
    start_timestamp: Whole = 0
    end_timestamp: Whole = 0


class Dispatch(Record, gc=False, frozen=True):
    dispatch_info: Info = Info()
    stream_id: Handle = NO_HANDLE


class Copy(Record, gc=False, frozen=True):
    dst_agent_id: Handle = NO_HANDLE
    src_agent_id: Handle = NO_HANDLE
    bytes: Whole = NONE
    stream_id: Handle = NO_HANDLE


class Symbol(Struct, gc=False, frozen=True):
    kernel_id: Whole = 0
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""
    arch_vgpr_count: Whole = NONE
    accum_vgpr_count: Whole = NONE

    @property
    def name(self) -> str:
        return (
            self.formatted_kernel_name or self.demangled_kernel_name or self.kernel_name
        ).removesuffix(".kd")


class Bank(Struct, gc=False, frozen=True):
    size_in_bytes: Whole = 0


class Agent(Struct, gc=False, frozen=True):
    id: Handle = NO_HANDLE
    type: Whole = 0
    name: str = ""
    product_name: str = ""
    cu_count: Whole = 0
    wave_front_size: Whole = 0
    logical_node_type_id: Whole = NONE
    mem_banks: tuple[Bank, ...] = ()


class Names(Struct, gc=False, frozen=True):
    """One kind of record: the names of its operations."""

    kind: str = ""
    operations: tuple[str, ...] = ()


class Message(Struct, gc=False, frozen=True):
    """What a program gave ROCTx, by the correlation number of the call."""

    key: Whole = 0
    value: str = ""


class Process(Struct, gc=False, frozen=True):
    pid: Whole = 0
