"""What begins on a track, with what is noted down with it: numbers, and texts of our own export."""

from __future__ import annotations

from stepscope.core.trace import NONE
from stepscope.readers.kineto.event_decoder import SEPARATOR
from stepscope.recordings.perfetto.columns import Events
from stepscope.recordings.perfetto.state import ARG_NAMES, ARG_TEXTS, CATEGORIES, NAMES, Sequence
from stepscope.recordings.perfetto.tracks import Slice
from stepscope.recordings.row_builder import RowTraceBuilder

NUMBERS = frozenset(
    (
        "agent", "bytes", "copy_bytes", "corr_id", "correlation", "device", "dst_agent",
        "grid_size", "group_segment_size", "LDS_block_size_v", "queue", "src_agent", "stream",
        "stream_ID", "tid", "workgroup_size",
    )
)  # fmt: skip
INPUTS = ("Input type", "Input Dims", "Input Strides", "Concrete Inputs")
LAUNCH = ("grid", "block", "registers per thread", "shared memory", "est. achieved occupancy %")
TEXTS = frozenset((*INPUTS, *LAUNCH))
"""Texts of an operator and of a kernel, as our own export writes them: JSON, in this order of a
trace's details."""
DETAIL = "detail"
"""The number of such texts, among the numbers noted down."""


def slice_of(
    events: Events, at: int, time_ns: int, sequence: Sequence, builder: RowTraceBuilder
) -> Slice:
    """What begins."""
    name = events.name[at]
    if name is None:
        name = sequence.interned[NAMES].get(events.name_iid[at], "")
    known = sequence.interned[CATEGORIES].get(events.category_iid[at])
    args, texts = _args(events, at, sequence)
    if texts:
        names = INPUTS if texts.keys() & set(INPUTS) else LAUNCH
        parts = (texts.get(key, "").encode().replace(SEPARATOR, b"") for key in names)
        args[DETAIL] = builder.scanner.details[SEPARATOR.join(parts)]
        builder.has_shapes |= INPUTS[1] in texts
    return time_ns, name, known or events.category[at] or "", args


def _args(events: Events, at: int, sequence: Sequence) -> tuple[dict[str, int], dict[str, str]]:
    """The numbers noted down with an event, and the texts, those that are asked for."""
    columns, names = events.args, sequence.interned[ARG_NAMES]
    args: dict[str, int] = {}
    texts: dict[str, str] = {}
    for index in range(events.first_arg[at], events.first_arg[at + 1]):
        key = columns.name[index]
        if key is None:
            key = names.get(columns.name_iid[index], "")
        if key in NUMBERS and columns.value[index] != NONE:
            args[key] = columns.value[index]
        elif key in TEXTS and columns.text_iid[index] != NONE:
            texts[key] = sequence.interned[ARG_TEXTS].get(columns.text_iid[index], "")
    return args, texts
