"""What the capture adds to a recording: saves, collections of garbage, and modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepscope.core.trace import Kind
from stepscope.protocol.run_folder import MARKS_FIELD, MODULE_PREFIX, MODULES_FIELD
from stepscope.protocol.untrusted import LARGEST_INT, whole
from stepscope.readers.kineto.event_decoder import Scanner
from stepscope.readers.trace.columns import Columns

MOST_MARKS = 100_000
LONGEST_NAME = 1_000


def marks_of(fields: Mapping[str, Any], base_ns: int, scanner: Scanner) -> Columns | None:
    """The marks as events on their threads; None where there are none. A mark of a thread that
    recorded nothing, or that is no mark, is left out."""
    listed = fields.get(MARKS_FIELD)
    if not isinstance(listed, list):
        return None
    threads = {str(tid): code for (_, tid), code in scanner.threads.items()}
    rows = [row for mark in listed[:MOST_MARKS] if (row := _row(mark, base_ns, threads))]
    if not rows:
        return None
    names, start, dur, thread = zip(*rows, strict=True)
    columns = Columns.blank(np.array(start, np.int64), np.array(dur, np.int64))
    columns.kind[:] = Kind.MARK
    columns.name[:] = [scanner.names[name] for name in names]
    columns.thread[:] = thread
    return columns


def name_modules(fields: Mapping[str, Any], chunks: Sequence[Columns], scanner: Scanner) -> None:
    """The capture's ranges around modules, which the profiler writes as operators, become marks."""
    if fields.get(MODULES_FIELD) is not True:
        return
    is_module = np.array([name.startswith(MODULE_PREFIX) for name in scanner.names.table()])
    for columns in chunks:
        columns.kind[(columns.kind == Kind.OP) & is_module[columns.name]] = Kind.MARK


def _row(mark: Any, base_ns: int, threads: Mapping[str, int]) -> tuple[str, int, int, int] | None:
    if not isinstance(mark, list) or len(mark) != 4 or not isinstance(mark[0], str):
        return None
    begun, ended, thread = (whole(value) for value in mark[1:])
    if begun is None or ended is None or not base_ns <= begun <= ended <= LARGEST_INT:
        return None
    code = threads.get(str(thread))
    if code is None:
        return None
    name = mark[0][:LONGEST_NAME].encode("utf-8", "replace").decode("utf-8")
    return name, begun - base_ns, ended - begun, code
