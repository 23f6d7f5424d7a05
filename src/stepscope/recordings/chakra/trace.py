"""Execution traces (Chakra) of torch.profiler.ExecutionTraceObserver, JSON: which operators ran, on
which tensors. No times.

    {"schema": "1.1.1-chakra.0.0.4", "pid": 19046, "nodes": [
      {"id": 19, "name": "aten::addmm", "ctrl_deps": 10,
       "inputs": {"values": [[13,14,0,64,4,"cpu"], ...], "shapes": [[64],[16,32],[32,64],[],[]],
                  "types": ["Tensor(float)", ...]},

`ctrl_deps` is the node that called this one; a tensor is [its id, its storage's, offset, elements,
bytes of one, device] (torch/csrc/profiler/standalone/execution_trace_observer.cpp). Before 1.0.3,
inputs is a list and input_shapes a field of its own. A node is read as soon as the next one begins:
what a file holds in memory is one node and the counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing

from stepscope.api import FormatError, Reader, Source, Stream, TrainingLog
from stepscope.core.recordings.training_log import ExecutionGraph, TrainingRecording

MAX_NODE_BYTES = 4 << 20
"""Bytes of one node's text at most; a list of ten thousand tensors is below 1 MiB."""
MAX_NODES = 2_000_000
SCHEMA = re.compile(rb"[\s\xef\xbb\xbf]*\{\s*\"schema\"\s*:\s*\"(\d{1,4}\.[\w.+-]{1,40})\"\s*,")
NODES = re.compile(rb"\"(?:nodes|ctrl_deps|rf_id|start_ts)\"\s*:")
FIRST = re.compile(rb"\"nodes\"\s{0,64}:\s{0,64}\[\s{0,64}(?=\{)")
NEXT = re.compile(rb"\}\s{0,64},\s{0,64}(?=\{\s{0,64}\"id\"\s{0,64}:)")
END = re.compile(
    rb"\}\s{0,64}\]\s{0,64}(?:,\s{0,64}\"\w{1,40}\"\s{0,64}:\s{0,64}[\w.\"-]{1,64}\s{0,64}){0,16}\}\s{0,64}$"
)
"""End of the list of nodes, after which stand a few plain values."""
LOOK_BACK = 512
"""Bytes of a text that may hold the beginning of a mark."""
PROTOBUF = re.compile(rb"[\x05-\x20]\x0a[\x03-\x1e]\d{1,3}\.\d{1,3}\.\d")
"""The length of the first message, then its only field: a version."""
RECORD = "torch.profiler.ExecutionTraceObserver().register_callback('et.json')"


def is_mine(head: bytes, name: str) -> bool:
    if SCHEMA.match(head):
        return NODES.search(head) is not None
    return PROTOBUF.match(head) is not None or (name.endswith(".et") and b"\0" in head)


def read(sources: Sequence[Source]) -> TrainingLog:
    """Every execution trace, one beside the other: each rank writes its own."""
    notes = ["an execution trace has no times: it tells what ran, not how long"]
    graphs = tuple(_read_file(source, notes) for source in sources)
    paths = tuple(graph.path for graph in graphs)
    recording = TrainingRecording(format="chakra", paths=paths, notes=tuple(notes), graphs=graphs)
    return TrainingLog(recordings=(recording,))


def _read_file(source: Source, notes: list[str]) -> ExecutionGraph:
    from stepscope.recordings.chakra.nodes import GraphBuilder

    stream, builder = Stream(source.path, source.offset, source.length), GraphBuilder()
    with closing(stream.blocks()) as blocks:
        head = next(blocks, b"")
        match = SCHEMA.match(head)
        if match is None:
            raise _refused(source, head)
        schema = match[1].decode("ascii", "replace")
        for text in _node_texts(head, blocks):
            builder.add(text)
            if builder.num_nodes >= MAX_NODES:
                notes.append(f"{source.label}: only its first {MAX_NODES} nodes were read")
                break
    if not builder.num_nodes:
        raise FormatError(
            f"{source.label} begins like an execution trace (Chakra), but no node in it can be "
            "read (a node begins with its id). Was it written to its end? unregister_callback() "
            f"closes it. Record it again: {RECORD}."
        )
    if stream.problem:
        notes.append(f"{source.label}: {stream.problem}")
    if builder.num_bad:
        notes.append(
            f"{source.label}: {builder.num_bad} node(s) are damaged, cut off or not what the "
            "observer writes; left out"
        )
    if builder.tensors.num_left_out:
        notes.append(
            f"{source.label}: {builder.tensors.num_left_out:,} tensor(s) beyond the first million "
            "are not in the memory's sum"
        )
    return builder.finished(source.label, schema)


def _node_texts(head: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The text of each node. One that is longer than any should be comes cut, and is then counted
    as damaged."""
    first = FIRST.search(head)
    if first is None:
        return
    rest, looked = head[first.end() :], 0
    while True:
        begin = 0
        for match in NEXT.finditer(rest, looked):
            yield rest[begin : match.start() + 1][:MAX_NODE_BYTES]
            begin = match.end()
        rest = rest[begin : begin + MAX_NODE_BYTES + LOOK_BACK]
        looked = max(0, len(rest) - LOOK_BACK)
        block = next(blocks, b"")
        if not block:
            break
        rest += block
    last = END.search(rest, max(0, len(rest) - 4096))
    yield (rest[: last.start() + 1] if last else rest)[:MAX_NODE_BYTES]


def _refused(source: Source, block: bytes) -> FormatError:
    if PROTOBUF.match(block) or b"\0" in block[:4096]:
        return FormatError(
            f"{source.label} is an execution trace in protobuf (Chakra's .et), which is not read."
            f" Name the JSON that it was converted from, or record one: {RECORD}."
        )
    return FormatError(
        f"{source.label} is not an execution trace (Chakra) in JSON. Record one: {RECORD}."
    )


READER = Reader(is_mine=is_mine, read_together=read)
