"""The tables of a run, as they are documented: names, columns, units.
docs/query.md has the same, and a test compares them."""

from __future__ import annotations

from stepscope.core.facts import PARTS
from stepscope.tables.rows.columns import BOOL, FLOAT, INT, TEXT, ColumnSpec, TableSpec

_RANK = ("rank", INT, "the rank it was recorded on")
_EVENT = ("event", INT, "its number among the rank's events, by start; the key into `events`")
_START = (
    "start_ns",
    INT,
    "when it began, on the rank's own clock; add `ranks.base_ns` for the time since 1970",
)
_DUR = ("dur_ns", INT, "how long it took")
_STEP = (
    "step",
    INT,
    "the step that launched it, counted from the recording's first; missing outside the steps",
)
_DEVICE = ("device", INT, "the device's number")
_STREAM = ("stream", INT, "the stream's number")
_CORRELATION = (
    "correlation",
    INT,
    "the recorder's number that ties a call to the work it launched",
)
_OP = ("op", TEXT, "the innermost operator it was launched in")
_MODULE = ("module", TEXT, "the innermost nn.Module it comes from; needs recorded stacks")
_LINE = ("line", TEXT, "the line of training code it comes from; needs recorded stacks")
_PHASE = ("phase", TEXT, "forward, backward or optimizer: the part of the step that launched it")
_PROCESS = ("process", TEXT, "the process, or device, as the recorder writes it")
_THREAD = ("thread", TEXT, "the thread, or stream, as the recorder writes it")
_THREAD_NAME = ("thread_name", TEXT, "what the recorder calls that thread")
_LAUNCH = ("launch_ns", INT, "when the call that launched it began")
_SIZE = ("size_bytes", INT, "bytes moved or set")


def _table(name: str, about: str, *columns: tuple[str, str, str]) -> TableSpec:
    return TableSpec(
        name=name,
        about=about,
        columns=tuple(ColumnSpec(name=n, kind=kind, about=text) for n, kind, text in columns),
    )


EVENTS = _table(
    "events",
    "everything recorded, one row an event",
    _RANK,
    _EVENT,
    (
        "kind",
        TEXT,
        (
            "op, mark, python, runtime, kernel, memcpy, memset, sync, device_mark, overhead, "
            "compile or other"
        ),
    ),
    ("name", TEXT, "as recorded"),
    _START,
    _DUR,
    ("parent", INT, "the event (of the host) that it began inside of"),
    ("step", INT, "device work: the step that launched it; the host's: the step it began in"),
    _PROCESS,
    _THREAD,
    _THREAD_NAME,
    _DEVICE,
    _STREAM,
    _CORRELATION,
    ("external_id", INT, "the recorder's number that ties work to an operator"),
    ("sequence", INT, "autograd's number, the same for an operator and its backward"),
    ("size_bytes", INT, "bytes moved or set, where recorded"),
)
KERNELS = _table(
    "kernels",
    "kernels of the device, one row each; copies and sets are in `copies`",
    _RANK,
    _EVENT,
    ("name", TEXT, "the kernel's full name"),
    (
        "category",
        TEXT,
        "gemm, attention, pointwise, collective, ...: what it does, by its operator or its name",
    ),
    _OP,
    _MODULE,
    _LINE,
    _PHASE,
    _STEP,
    _START,
    _DUR,
    _LAUNCH,
    _DEVICE,
    _STREAM,
    _CORRELATION,
    ("grid_x", INT, "blocks of the launch, in x"),
    ("grid_y", INT, "blocks of the launch, in y"),
    ("grid_z", INT, "blocks of the launch, in z"),
    ("block_x", INT, "threads of a block, in x"),
    ("block_y", INT, "threads of a block, in y"),
    ("block_z", INT, "threads of a block, in z"),
    ("registers", INT, "registers a thread"),
    ("shared_bytes", INT, "shared memory a block, in bytes"),
    ("occupancy_pct", FLOAT, "the recorder's estimate of achieved occupancy, in percent"),
    ("precision", TEXT, "of its arithmetic, where the operator's inputs say"),
    ("tensor_core", BOOL, "whether it uses tensor cores, where its name says"),
    (
        "flops",
        FLOAT,
        "floating point operations its operator asks for; on the operator's longest kernel",
    ),
    (
        "traffic_bytes",
        FLOAT,
        "the least bytes its operator must move; on the operator's longest kernel",
    ),
    ("floor_ns", INT, "the least time that takes on this device; on the operator's longest kernel"),
)
LAUNCHES = _table(
    "launches",
    "calls into the device's runtime and driver: launches, copies, waits, allocations",
    _RANK,
    _EVENT,
    ("name", TEXT, "the call"),
    ("op", TEXT, "the innermost operator it was made in"),
    ("step", INT, "the step the host was in"),
    _START,
    _DUR,
    _PROCESS,
    _THREAD,
    _THREAD_NAME,
    _CORRELATION,
    ("num_work", INT, "device events it launched: 0 for a wait, many for a graph"),
    (
        "delay_ns",
        INT,
        "from its start to that of the first of them; missing where it launched none",
    ),
)
COPIES = _table(
    "copies",
    "copies and sets on the device, one row each",
    _RANK,
    _EVENT,
    ("kind", TEXT, "memcpy or memset"),
    ("name", TEXT, "as recorded"),
    ("direction", TEXT, "HtoD, DtoH, DtoD, PtoP, ...; missing for sets"),
    ("memory", TEXT, "the kinds of memory, as `Pinned -> Device`, where recorded"),
    _SIZE,
    _START,
    _DUR,
    ("bytes_per_s", FLOAT, "size over duration, in bytes a second"),
    ("blocking", BOOL, "whether the host was held until it was done"),
    _OP,
    _MODULE,
    _LINE,
    _STEP,
    _LAUNCH,
    _DEVICE,
    _STREAM,
    _CORRELATION,
)
COLLECTIVES = _table(
    "collectives",
    "exchanges of data between ranks, one row for each rank that takes part",
    _RANK,
    _EVENT,
    (
        "op",
        TEXT,
        (
            "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv, barrier, "
            "..., other"
        ),
    ),
    ("name", TEXT, "the kernel, or the host's range where it has none (gloo)"),
    ("group_name", TEXT, "the process group"),
    ("group_size", INT, "ranks in the group"),
    ("group_ranks", TEXT, "those ranks, as `0-7, 12`"),
    ("peer", INT, "the other rank of a send or receive"),
    ("dtype", TEXT, "of the elements"),
    ("size_bytes", INT, "of the whole message: all_gather what comes out, the others what goes in"),
    ("sequence", INT, "the group's own count of its collectives"),
    ("on_device", BOOL, "a kernel; false where the host carries it"),
    _PHASE,
    _STEP,
    _START,
    _DUR,
    _LAUNCH,
    _STREAM,
    (
        "exposed_ns",
        INT,
        "of its duration, with no compute at the same time; missing where the host carries it",
    ),
    (
        "meeting",
        INT,
        "the same number on all ranks that take part; missing where no other rank's was found",
    ),
    (
        "wait_ns",
        INT,
        "how long it waited for the last rank to arrive; missing where no other rank's was found",
    ),
)
STEPS = _table(
    "steps",
    "the measured steps, one row for each rank and step; the parts sum to `step_interval_ns`",
    _RANK,
    ("step", INT, "counted from the recording's first; missing where one window is all there is"),
    ("number", INT, "as the profiler's schedule counts it, alike on all ranks"),
    ("start_ns", INT, "the end of the work of the step before, on the rank's own clock"),
    ("end_ns", INT, "the end of this step's work"),
    ("step_interval_ns", INT, "from start to end: the step time"),
    ("is_step_interval", BOOL, "false where the trace's length stands in for a step"),
    ("is_median", BOOL, "one of the rank's median steps"),
    ("host_ns", INT, "how long the host spent in it: it runs ahead of the device"),
    ("busy_ns", INT, "with any device work; missing where nothing ran on a device"),
    (
        "comms_hidden_ns",
        INT,
        "with collectives under compute; missing where nothing ran on a device",
    ),
    *((f"{part}_ns", INT, f"the part `{part}` of the step") for part in PARTS),
)
RANKS = _table(
    "ranks",
    "the ranks that were read, one row each",
    _RANK,
    ("path", TEXT, "the file"),
    ("device_name", TEXT, "the device's name"),
    ("world_size", INT, "ranks of the job, as recorded"),
    ("num_events", INT, "entries in the file"),
    ("num_steps", INT, "measured steps"),
    ("step_source", TEXT, "how the steps were detected"),
    ("step_ns", INT, "the median step, as recorded: with the profiler's cost"),
    ("busy_ns", INT, "with any device work, in the median step"),
    ("mfu", FLOAT, "model FLOPs over the device's peak, from 0 to 1"),
    ("span_ns", INT, "from the first device work to the end of the last"),
    ("device_busy_ns", INT, "of that, with any work"),
    ("device_compute_ns", INT, "with compute kernels"),
    ("device_comms_ns", INT, "with collectives"),
    ("device_copy_ns", INT, "with copies and sets"),
    (
        "late_ns",
        INT,
        "its median arrival at collectives against the median rank's, once clocks are aligned",
    ),
    (
        "share_last",
        FLOAT,
        "of the collectives, those it came last to by more than the clocks' noise, from 0 to 1",
    ),
    (
        "base_ns",
        INT,
        "added to a time of this rank gives nanoseconds since 1970; missing where not recorded",
    ),
    (
        "offset_ns",
        INT,
        "added to a time of this rank gives one that can be compared with other ranks'",
    ),
)
FINDINGS = _table(
    "findings",
    "what `diagnose` finds, in its order; made when it is asked for",
    ("rank", INT, "the rank it is about; missing when it is about several"),
    ("code", TEXT, "the finding's name, for `stepscope explain`"),
    ("bound", TEXT, "data, host, transfer, comms, imbalance, compute or memory"),
    ("summary", TEXT, "what was seen"),
    ("action", TEXT, "what to do"),
    ("evidence", TEXT, "what it rests on, one line each"),
    ("about_ranks", TEXT, "the ranks it is about, as `0-7, 12`"),
    ("predicted_speedup", FLOAT, "today's step over the step after the fix"),
    ("predicted_low", FLOAT, "the same, at the least"),
    ("predicted_high", FLOAT, "the same, at the most"),
    ("predicted_step_ns", INT, "the step after the fix"),
    ("changes_numerics", BOOL, "whether the fix changes results in the last digits"),
    ("line", TEXT, "the line of training code that most of it comes from; needs recorded stacks"),
    ("module", TEXT, "the modules that most of it comes from; needs recorded stacks"),
)

TABLES = {
    table.name: table
    for table in (EVENTS, KERNELS, LAUNCHES, COPIES, COLLECTIVES, STEPS, RANKS, FINDINGS)
}
"""By name, in the order they are shown."""
