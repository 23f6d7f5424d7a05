"""A known bug of a profiler is named where the recording is of its version and shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stepscope.analyses.known_bugs import bug_notes, known_bugs
from stepscope.core.trace import Trace
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from tests.builders import kernel, trace_text, write


def call(name: str) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": 1,
        "args": {"correlation": 1},
    }  # fmt: skip


def trace(tmp_path: Path, version: int, *events: dict[str, Any]) -> Trace:
    path = write(
        tmp_path / "t.json", trace_text(list(events), header={"cuda_runtime_version": version})
    )
    return read_trace(Source(path=path, label="t"), use_cache=False)


@pytest.mark.parametrize(
    ("version", "call_name", "has_kernel", "lost", "reference"),
    [
        (12080, "cudaGraphLaunch", True, 0, "pytorch/kineto/issues/1165"),
        (12080, "cudaLaunchKernel", True, 0, None),
        (13010, "cudaGraphLaunch", True, 3, None),
        (12090, "cudaLaunchKernel", True, 3, "pytorch/pytorch/issues/192021"),
        (12010, "cudaLaunchKernel", True, 3, None),
        (12040, "cudaLaunchKernel", False, 0, "CUDA.jl/issues/2328"),
        (12080, "cudaLaunchKernel", False, 0, None),
    ],
)
def test_a_bug_needs_its_version_and_its_sign(
    tmp_path: Path,
    version: int,
    call_name: str,
    has_kernel: bool,
    lost: int,
    reference: str | None,
) -> None:
    events = [call(call_name), *([kernel(1, 5, 1)] if has_kernel else [])]
    notes = bug_notes(trace(tmp_path, version, *events), lost)
    if reference is None:
        assert notes == ()
    else:
        (note,) = notes
        assert reference in note


def test_every_bug_has_a_public_reference_and_a_range() -> None:
    for bug in known_bugs():
        assert re.fullmatch(r"github\.com/[\w./-]+/\d+", bug.reference)
        assert bug.least < bug.below
        assert bug.shown_by in {"graph launches", "lost kernels", "launches without kernels"}
