"""Every format that is read: ours, those of other tools, and those that installed packages add. The
bytes decide what a file is, not its name.

What is read is a Trace, a recording, or the shape that `core.recordings.auxiliary.Auxiliary` has
for its kind, or an NcclLog.
"""

from __future__ import annotations

from importlib import import_module

from stepscope.core.installed import with_installed
from stepscope.readers.format import KINETO, TRACE, Format

OTHER_TOOLS = "stepscope.recordings.formats"
"""The module whose `FORMATS` are those of other tools."""
OURS: tuple[Format, ...] = (
    Format(
        name=KINETO,
        words="trace of torch.profiler (JSON, plain or compressed)",
        kind=TRACE,
        record="stepscope run -- python train.py, or torch.profiler's export_chrome_trace",
        judges=("steps", "partition", "kernels", "operators", "host", "comms", "memory"),
        module="stepscope.readers.kineto.trace",
    ),
)
FORMATS: tuple[Format, ...] = with_installed(
    (*OURS, *import_module(OTHER_TOOLS).FORMATS), "format", lambda form: form.name
)
BY_NAME = {each.name: each for each in FORMATS}
