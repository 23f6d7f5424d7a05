"""The shapes a trace event decodes into, and nothing else.

One struct per phase, distinguished by `ph`. Fields we do not use are skipped by the decoder without
being built. Defaults stand for "not there": NONE for numbers, an empty Raw for text kept as it is.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import msgspec
from msgspec import Raw, Struct

from stepscope.core.trace import NONE
from stepscope.readers.trace.categories import OTHER_PHASES, SILENT_PHASES

Number = int | str | None
EMPTY = Raw(b"")


class Args(Struct, gc=False, frozen=True):
    """The arguments of a complete event, of whatever category. In the order they are written in:
    the decoder then looks once."""

    external: Number = msgspec.field(default=NONE, name="External id")
    sequence: Number = msgspec.field(default=NONE, name="Sequence number")
    fwd_thread: Number = msgspec.field(default=NONE, name="Fwd thread id")
    concrete: Raw = msgspec.field(default=EMPTY, name="Concrete Inputs")
    types: Raw = msgspec.field(default=EMPTY, name="Input type")
    strides: Raw = msgspec.field(default=EMPTY, name="Input Strides")
    dims: Raw = msgspec.field(default=EMPTY, name="Input Dims")
    correlation: Number = NONE
    device: Number = NONE
    stream: Number = NONE
    bytes: Number = NONE
    grid: Raw = EMPTY
    block: Raw = EMPTY
    registers: Raw = msgspec.field(default=EMPTY, name="registers per thread")
    shared: Raw = msgspec.field(default=EMPTY, name="shared memory")
    occupancy: Raw = msgspec.field(default=EMPTY, name="est. achieved occupancy %")
    size: Number = NONE
    coll_name: Raw = msgspec.field(default=EMPTY, name="Collective name")
    coll_group: Raw = msgspec.field(default=EMPTY, name="Process Group Name")
    coll_id: Raw = msgspec.field(default=EMPTY, name="Process Group ID")
    coll_desc: Raw = msgspec.field(default=EMPTY, name="Process Group Description")
    coll_ranks: Raw = msgspec.field(default=EMPTY, name="Process Group Ranks")
    coll_size: Raw = msgspec.field(default=EMPTY, name="Group size")
    coll_dtype: Raw = msgspec.field(default=EMPTY, name="dtype")
    coll_in: Raw = msgspec.field(default=EMPTY, name="In msg nelems")
    coll_out: Raw = msgspec.field(default=EMPTY, name="Out msg nelems")
    coll_in_split: Raw = msgspec.field(default=EMPTY, name="In split size")
    coll_out_split: Raw = msgspec.field(default=EMPTY, name="Out split size")
    coll_seq: Raw = msgspec.field(default=EMPTY, name="Seq")
    coll_src: Raw = msgspec.field(default=EMPTY, name="Src Rank")
    coll_dst: Raw = msgspec.field(default=EMPTY, name="Dst Rank")


NO_ARGS = Args()


class _Named(Struct, gc=False):
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""


class Complete(_Named, tag_field="ph", tag="X", gc=False):
    """An event with a start and a duration, in microseconds as doubles."""

    ts: float = float("nan")
    dur: float = float("nan")
    args: Args = NO_ARGS


class CompleteText(_Named, tag_field="ph", tag="X", gc=False):
    """The same with its times as text, for files whose times a double cannot hold."""

    ts: Raw = EMPTY
    dur: Raw = EMPTY
    args: Args = NO_ARGS


class MetaArgs(Struct, gc=False):
    name: Raw = EMPTY
    labels: Raw = EMPTY


class Meta(Struct, tag_field="ph", tag="M", gc=False):
    """A name for a process or a thread."""

    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    args: MetaArgs | None = None


class InstantArgs(Struct, gc=False):
    bytes: Number = msgspec.field(default=NONE, name="Bytes")
    address: Number = msgspec.field(default=NONE, name="Addr")
    allocated: Number = msgspec.field(default=NONE, name="Total Allocated")
    reserved: Number = msgspec.field(default=NONE, name="Total Reserved")
    device_type: Number = msgspec.field(default=NONE, name="Device Type")
    device: Number = msgspec.field(default=NONE, name="Device Id")


class Instant(Struct, tag_field="ph", tag="i", gc=False):
    """A moment; the allocator's events are written as these."""

    cat: str = ""
    name: str = ""
    ts: Raw = EMPTY
    args: InstantArgs | None = None


class Begin(_Named, tag_field="ph", tag="B", gc=False):
    """The start of a range, in traces that write starts and ends apart."""

    ts: Raw = EMPTY
    args: Args = NO_ARGS


class End(Struct, tag_field="ph", tag="E", gc=False):
    pid: int | str = ""
    tid: int | str = ""
    ts: Raw = EMPTY


def _phase(phase: str) -> type[Struct]:
    return msgspec.defstruct(f"Phase{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)


SILENT = tuple(map(_phase, sorted(SILENT_PHASES - {"M", "i"})))
COUNTED = {_phase(phase): phase for phase in OTHER_PHASES}
KEPT = frozenset((Meta, Instant, Begin, End, *COUNTED))
"""What is looked at besides complete events."""

REST: tuple[type[Struct], ...] = (Meta, Instant, Begin, End, *SILENT, *COUNTED)
_any_rest: Any = reduce(or_, REST)
ANY_EVENT = Complete | _any_rest
ANY_EVENT_TEXT = CompleteText | _any_rest
