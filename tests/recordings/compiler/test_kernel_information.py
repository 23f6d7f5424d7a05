"""kernel_information.json: compiled kernels get the lines they are of, in the table of kernels
too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.compiler import CompilerReport
from stepscope.errors import FormatError
from stepscope.readers.detect import formats_of
from stepscope.readers.format import Source
from stepscope.recordings.compiler import kernel_information
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.terminal import to_text
from tests.scenarios import SCENARIOS
from tests.wording import mentions

STACK = (
    'File "/home/me/site/train.py", line 40, in main\n    out = model(x)\n'
    'File "/home/me/nets/model.py", line 9, in forward\n    return torch.relu(y)\n'
)
WRITTEN: dict[str, Any] = {
    "triton_poi_fused_relu_0:2": {
        "stack_traces": [STACK, STACK],
        "post_grad_nodes": ["relu_1"],
        "pre_grad_nodes": ["relu"],
    },
    "triton_poi_fused_relu_0:5": {"stack_traces": [], "post_grad_nodes": [], "pre_grad_nodes": []},
    "extern_kernels.mm:1": {"stack_traces": [], "post_grad_nodes": ["mm"], "pre_grad_nodes": []},
}
"""Formed by hand after what torch 2.13 writes."""


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "kernel-information", "kernel_information.json", json.dumps(WRITTEN).encode()


def read(tmp_path: Path, value: object) -> Any:
    path = tmp_path / "kernel_information.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return CompilerReport(
        recordings=(kernel_information.read_file(Source(path=path, label=path.name)),)
    )


def test_a_kernel_has_the_innermost_line_of_its_stack(tmp_path: Path) -> None:
    head = json.dumps(WRITTEN, indent=1).encode()
    assert [each.name for each in formats_of(head, "k.json")] == ["kernel-information"]
    report = read(tmp_path, WRITTEN)
    first, second = report.recordings[0].origins
    assert first.kernel == "triton_poi_fused_relu_0"
    assert first.lines == ("nets/model.py:9 in forward",)
    assert (first.nodes, second.nodes) == (("relu",), ("mm",))
    assert report.kernel_lines == {"triton_poi_fused_relu_0": "nets/model.py:9 in forward"}


def test_the_table_of_kernels_has_the_line(tmp_path: Path) -> None:
    diagnosis = next(
        made
        for make in SCENARIOS.values()
        if (made := make()).facts.ranks[:1] and (made.facts.ranks[0].kernels)
    )
    rank = diagnosis.facts.median_rank
    kernel = replace(rank.kernels[0], name="triton_poi_fused_relu_0", op="CompiledFunction")
    ranks = tuple(
        replace(each, kernels=(kernel,)) if each.rank == rank.rank else each
        for each in diagnosis.facts.ranks
    )
    beside = Auxiliary(compiler=read(tmp_path, WRITTEN))
    facts = replace(diagnosis.facts, ranks=ranks, auxiliary=beside)
    text = to_text(diagnosis_document(replace(diagnosis, facts=facts)), width=200)
    assert any(
        "triton_poi_fused_relu_0" in line and "forward" in line for line in text.splitlines()
    )


@pytest.mark.parametrize("text", ["{", '{"a": ', "[1"])
def test_half_a_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FormatError, match=r"not JSON.*again"):
        read(tmp_path, text)


def test_what_is_of_no_kernel_is_counted(tmp_path: Path) -> None:
    (recording,) = read(tmp_path, WRITTEN | {"x": 3, "y": {"stack_traces": [1, None]}}).recordings
    (note,) = recording.notes
    assert mentions(note, "1 entries", "no kernel", "left out")
    assert recording.origins[-1].lines == ()
