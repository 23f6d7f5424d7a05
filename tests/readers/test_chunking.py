"""Where the text is cut makes no difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.core.trace import Trace
from stepscope.readers import stream
from stepscope.readers.kineto import json_chunks as feed
from stepscope.readers.kineto.json_recovery import Skimmer
from stepscope.readers.kineto.trace import read as read_kineto
from tests.builders import event, same, source, step_events, trace_text, write

texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['}, {"ph":', "]}", '\\"', '"traceEvents": [', "\\"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=True) | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | st.sampled_from(["ph", "name", "ts"]), inner, max_size=4)
    ),
    max_leaves=8,
)
events = st.builds(
    event,
    ph=st.sampled_from("XXXXXMiBEsfCQ"),
    name=texts,
    cat=st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "odd"]),
    ts=st.integers(0, 50) | st.floats(0, 1e6, allow_nan=False).map(lambda t: round(t, 3)),
    dur=st.integers(-2, 50) | st.none(),
    pid=st.integers(-3, 3) | texts,
    args=st.none()
    | st.dictionaries(
        st.sampled_from(["External id", "correlation", "stream", "Input Dims", "grid", "x"]),
        values,
        max_size=3,
    ),
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    sizes = feed.CHUNK_BYTES, feed.PIECE_BYTES, feed.OVERLAP_BYTES, stream.BLOCK_BYTES
    seam = feed.SEAM_BYTES
    yield tmp_path
    feed.CHUNK_BYTES, feed.PIECE_BYTES, feed.OVERLAP_BYTES, stream.BLOCK_BYTES = sizes
    feed.SEAM_BYTES = seam


def _read(path: Path, chunk: int, block: int) -> Trace:
    feed.CHUNK_BYTES, feed.PIECE_BYTES, feed.OVERLAP_BYTES, stream.BLOCK_BYTES = (
        chunk,
        max(1, chunk // 3),
        64,
        block,
    )
    feed.SEAM_BYTES = chunk
    trace = read_kineto(source(path))
    trace.self_check()
    return trace


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(events, max_size=12),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.integers(40, 3000),
    st.integers(9, 900),
)
def test_any_cutting_gives_the_same_trace(
    folder: Path, some: list[Any], indent: int | None, bare: bool, chunk: int, block: int
) -> None:
    step = step_events()
    text = (
        json.dumps(step + some, indent=indent)
        if bare
        else trace_text(step + some, indent=indent, record_shapes=1)
    )
    path = write(folder / "t.json", text)
    whole = _read(path, 1 << 20, 1 << 20)
    cut = _read(path, chunk, block)
    assert same(cut, whole)
    assert cut.num_raw_events == len(step) + len(some)


@settings(max_examples=200, deadline=None)
@given(values, st.integers(1, 20))
def test_skimming_finds_the_end_of_any_value(value: Any, block: int) -> None:
    written = json.dumps([value])
    text = (written + ', {"ph": 1}]').encode()
    skimmer, at = Skimmer(), 0
    while (end := skimmer.end(text[at : at + block])) is None:
        at += block
    assert at + end == len(written)
