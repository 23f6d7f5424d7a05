"""Reports of Nsight Compute (.ncu-rep), through NVIDIA's own `ncu_report` module where it is
installed.

    pip install ncu-report, or PYTHONPATH=.../nsight-compute/extras/python

The format is NVIDIA's and not documented; the module is ("Python Report Interface" in the Nsight
Compute documentation). It is imported when such a file is read, and not before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from stepscope.api import (
    FormatError,
    InputError,
    KernelMetrics,
    KernelRecording,
    Reader,
    Source,
    Stream,
)
from stepscope.core.numbers import true_notes
from stepscope.core.recordings.kernels import KernelReport
from stepscope.recordings.ncu.metrics import is_wanted, kernel_of
from stepscope.recordings.ncu.units import MAX_NUMBER, scale_of

MAGIC = b"NVR\x00"
NAMES = (".ncu-rep", ".ncu-repz")
MAX_KERNELS = 20_000
MAX_METRICS = 512
MAX_NAME_CHARS = 4096
MAX_COPY_BYTES = 4 << 30
"""Bytes of a report that lies in an archive or elsewhere, and must be copied for the module to open
it."""
KERNEL, DEMANGLED, STRING = 0, 1, 2
"""Values of the module's enumerations: a workload that is a kernel, a whole name, a metric that is
text (its number would be 0)."""


def is_mine(head: bytes, name: str) -> bool:
    """Tell a file by its first bytes; by its name where these are not text."""
    return head.startswith(MAGIC) or (name.lower().endswith(NAMES) and b"\x00" in head)


def read(sources: Sequence[Source]) -> KernelReport:
    """Every kernel of every report. Other workloads (ranges, whole graphs) are counted and left
    out."""
    module = _module(sources[0].label)
    kernels: list[KernelMetrics] = []
    left_out = 0
    for source in sources:
        before = len(kernels)
        with _file_of(source) as path:
            for action in _actions(module, path, source.label):
                kernel = _kernel(action, source.label)
                if kernel is None or len(kernels) >= MAX_KERNELS:
                    left_out += 1
                else:
                    kernels.append(kernel)
        if len(kernels) == before:
            raise FormatError(
                f"{source.label}: ncu_report finds no kernel in it: it is damaged, or of a newer "
                "Nsight Compute"
            )
    beyond = f"beyond the first {MAX_KERNELS}"
    notes = true_notes(
        (left_out, f"{{n}} workloads that are no kernel, or {beyond}, were left out")
    )
    paths = tuple(source.label for source in sources)
    recording = KernelRecording(
        format="ncu-rep", paths=paths, notes=tuple(notes), kernels=tuple(kernels)
    )
    return KernelReport(recordings=(recording,))


def _module(label: str) -> ModuleType:
    try:
        return import_module("ncu_report")
    except (ImportError, OSError, RuntimeError) as problem:
        raise InputError(
            f"{label} is a report of Nsight Compute: NVIDIA's ncu_report module reads it, and "
            f"cannot be imported ({problem}); pip install ncu-report, or export the report with: "
            "ncu --import FILE.ncu-rep --csv --page raw > ncu.csv"
        ) from problem


@contextmanager
def _file_of(source: Source) -> Iterator[Path]:
    """A file that the module can open: the source's own, or a copy for as long as it is read."""
    if isinstance(source.path, Path) and source.offset == 0 and source.length is None:
        yield source.path
        return
    with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        path = Path(folder) / "report.ncu-rep"
        with (
            path.open("wb") as copy,
            closing(Stream(source.path, source.offset, source.length).blocks()) as blocks,
        ):
            for block in blocks:
                if copy.tell() > MAX_COPY_BYTES:
                    raise FormatError(
                        f"{source.label}: over {MAX_COPY_BYTES >> 30} GiB; unpack it and name the "
                        "file itself"
                    )
                copy.write(block)
        yield path


def _actions(module: Any, path: Path, label: str) -> Iterator[Any]:
    try:
        context = module.load_report(str(path))
        ranges = [context.range_by_idx(i) for i in range(context.num_ranges())]
        yield from (each.action_by_idx(i) for each in ranges for i in range(each.num_actions()))
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError, IndexError) as problem:
        raise FormatError(
            f"{label}: ncu_report cannot read it ({type(problem).__name__}: {problem})"
        ) from problem


def _kernel(action: Any, label: str) -> KernelMetrics | None:
    try:
        if hasattr(action, "workload_type") and action.workload_type() != KERNEL:
            return None
        values: dict[str, float] = {}
        for name in action.metric_names():
            if not is_wanted(name) or len(values) >= MAX_METRICS:
                continue
            if (value := _value(action.metric_by_name(name))) is not None:
                values[name] = value
        shown = action.metric_by_name("device__attribute_display_name")
        device = None if shown is None else str(shown.as_string() or "")[:100] or None
        return kernel_of(
            str(action.name(DEMANGLED))[:MAX_NAME_CHARS],
            values,
            device=device,
            grid=None,
            block=None,
        )
    except (RuntimeError, ValueError, TypeError, AttributeError) as problem:
        raise FormatError(
            f"{label}: a kernel of it cannot be read ({type(problem).__name__}: {problem})"
        ) from problem


def _value(metric: Any) -> float | None:
    """Value in base units; None for what was not collected, and for text. Older modules do not tell
    the first."""
    if (
        metric is None
        or (hasattr(metric, "has_value") and not metric.has_value())
        or metric.kind() == STRING
    ):
        return None
    value = float(metric.as_double())
    return value * scale_of(metric.unit() or "") if abs(value) <= MAX_NUMBER else None


READER = Reader(is_mine=is_mine, read_together=read)
