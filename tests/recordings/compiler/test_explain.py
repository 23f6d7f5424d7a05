"""What torch._dynamo.explain prints: graphs, and each break with its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.compiler import CompilerRecording
from stepscope.errors import FormatError
from stepscope.readers.format import Source
from stepscope.recordings.compiler.explain import is_mine, read_file
from tests.field.texts import PASTED

TEXT = (PASTED / "explain.txt").read_text()
LONG = """\
Graph Count: 2
Graph Break Count: 1
Op Count: 3
Break Reasons:
  Break Reason 1:
    Reason: Unsupported Tensor.item() call with capture_scalar_outputs=False
  Explanation: Dynamo does not support tracing `Tensor.item()`.
  Hint: Set `torch._dynamo.config.capture_scalar_outputs = True`.
  Hint: Please report an issue to PyTorch.

  Developer debug context: call_method TensorVariable() item () {}

    User Stack:
      <FrameSummary file train.py, line 30 in step>
      <FrameSummary file model.py, line 7 in forward>
Ops per Graph:
  Ops 1:
    <built-in function add>
"""


def read_text(tmp_path: Path, text: str) -> CompilerRecording:
    path = tmp_path / "explain.txt"
    path.write_text(text)
    assert is_mine(text.encode(), "x")
    return read_file(Source(path=path, label="explain.txt"))


def test_each_break_has_its_line(tmp_path: Path) -> None:
    recording = read_text(tmp_path, TEXT)
    assert [each.graphs for each in recording.counted] == [3]
    assert [(each.location, each.reason) for each in recording.breaks] == [
        ("train.py:11", "Tensor.item() call"),
        ("train.py:14", "Attempted to call function marked as skipped: builtins.print"),
    ]


def test_a_reason_of_newer_versions_has_an_explanation_and_hints(tmp_path: Path) -> None:
    (graph_break,) = read_text(tmp_path, LONG).breaks
    assert graph_break.location == "model.py:7", "the innermost frame"
    assert graph_break.explanation.startswith("Dynamo does not support")
    assert len(graph_break.hints) == 1, "that an issue may be reported is no hint"


def test_a_function_without_breaks_has_none(tmp_path: Path) -> None:
    whole = read_text(tmp_path, "Graph Count: 1\nGraph Break Count: 0\nOp Count: 3\n")
    assert (whole.breaks, [each.graphs for each in whole.counted]) == ((), [1])


def test_a_text_without_counts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "explain.txt"
    path.write_text("Op Count: 3\n")
    with pytest.raises(FormatError, match="no count of graphs"):
        read_file(Source(path=path, label="explain.txt"))


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "dynamo-explain", "explain.txt", TEXT.encode()
