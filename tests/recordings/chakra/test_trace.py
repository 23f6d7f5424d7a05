"""Execution traces (Chakra): a real one of this machine's torch, older schemas, damaged and hostile
ones."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.recordings.training_log import ExecutionGraph, TrainingLog
from stepscope.errors import FormatError, StepscopeError
from stepscope.readers.detect import format_of
from stepscope.readers.format import Source
from stepscope.recordings.chakra import trace as chakra
from tests.installed import package
from tests.recording_texts import texts_of
from tests.wording import any_mentions

BATCH, WIDTH, HIDDEN, OUT, STEPS = 16, 32, 64, 8, 2


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Two steps of a model of two layers."""
    torch = package("torch")
    path = tmp_path_factory.mktemp("chakra") / "et.json"
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, OUT)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(BATCH, WIDTH)).sum().backward()
        optimizer.step()
    observer.stop()
    observer.unregister_callback()
    return path.read_bytes()


def read_bytes(tmp_path: Path, data: bytes, name: str = "et.json") -> TrainingLog:
    path = tmp_path / name
    path.write_bytes(data)
    return chakra.read([Source(path=path, label=name)])


def only(log: TrainingLog) -> ExecutionGraph:
    (graph,) = log.recordings[0].graphs
    return graph


def test_a_real_trace_s_operators_are_counted(recorded: bytes, tmp_path: Path) -> None:
    graph = only(read_bytes(tmp_path, recorded))
    nodes = json.loads(recorded)["nodes"]
    names = [node["name"] for node in nodes]
    assert (graph.num_nodes, graph.schema) == (len(nodes), json.loads(recorded)["schema"])
    counts = {one.name: one.num for one in graph.operators}
    assert counts == {name: names.count(name) for name in set(names) if name.startswith("aten::")}
    assert graph.num_operators == sum(counts.values())
    assert graph.collectives == ()


def test_a_real_trace_s_flops_are_those_of_its_layers_once(recorded: bytes, tmp_path: Path) -> None:
    graph = only(read_bytes(tmp_path, recorded))
    first, second = 2 * BATCH * WIDTH * HIDDEN, 2 * BATCH * HIDDEN * OUT
    flops = {one.name: one.flops for one in graph.operators if one.flops is not None}
    # aten::linear is around aten::addmm. The first layer's input needs no gradient.
    assert flops == {
        "aten::addmm": STEPS * (first + second),
        "aten::mm": STEPS * (first + 2 * second),
    }
    assert graph.flops == STEPS * (2 * first + 3 * second)


def test_a_real_trace_s_tensors_have_their_bytes(recorded: bytes, tmp_path: Path) -> None:
    graph = only(read_bytes(tmp_path, recorded))
    by_name = {one.name: one for one in graph.operators}
    calls = [
        HIDDEN + BATCH * WIDTH + WIDTH * HIDDEN + BATCH * HIDDEN,
        OUT + BATCH * HIDDEN + HIDDEN * OUT + BATCH * OUT,
    ]
    assert by_name["aten::addmm"].tensor_bytes == STEPS * 4 * sum(calls)
    assert graph.storage_bytes >= 4 * (WIDTH * HIDDEN + HIDDEN + HIDDEN * OUT + OUT)


def test_it_is_known_by_its_first_bytes(recorded: bytes) -> None:
    assert chakra.is_mine(recorded[: 64 << 10], "whatever")
    found = format_of(recorded[: 64 << 10], "rank0.json")
    assert found is not None
    assert found.name == "chakra"
    for other in (
        b"",
        b"{}",
        b'{"schema": "stepscope.diagnosis/1"}',
        b'{"schemaVersion": 1, "nodes": []}',
        b'{"schema": "1.0.0", "a": 1}',
    ):
        assert not chakra.is_mine(other, "et.json")


def test_the_recording_says_it_has_no_times(recorded: bytes, tmp_path: Path) -> None:
    log = read_bytes(tmp_path, gzip.compress(recorded), "et.json.gz")
    (recording,) = texts_of(log)
    assert (recording.format, log.step_ns) == ("chakra", None)
    assert any("no times" in note for note in recording.notes)
    assert next(table.title for table in recording.tables) == "operators by calls"
    assert all(len(row) == len(table.columns) for table in recording.tables for row in table.rows)


def trace(*nodes: dict[str, Any], schema: str = "1.1.1-chakra.0.0.4") -> bytes:
    return json.dumps(
        {
            "schema": schema,
            "pid": 1,
            "time": "now",
            "start_ts": 1,
            "nodes": list(nodes),
            "finish_ts": 2,
        }
    ).encode()


def node(
    ident: int,
    name: str,
    caller: int = 1,
    shapes: object = (),
    types: object = (),
    values: object = (),
) -> dict[str, Any]:
    sides = {"values": values, "shapes": shapes, "types": types}
    return {
        "id": ident,
        "name": name,
        "ctrl_deps": caller,
        "inputs": sides,
        "outputs": {"values": [], "shapes": [], "types": []},
    }


HALF = [7, 8, 0, 1000, 2, "cuda:0"]


def test_collectives_and_lists_of_tensors(tmp_path: Path) -> None:
    other = [9, 8, 1000, 24, 2, "cuda:0"]
    types = ["GenericList[Tensor(c10::Half),Tensor(c10::Half)]", "Object"]
    listed = node(
        2,
        "c10d::allreduce_",
        shapes=[[[1000], [24]], []],
        types=types,
        values=[[HALF, other], "<Object>"],
    )
    graph = only(
        read_bytes(
            tmp_path, trace(listed, node(3, "nccl:all_reduce", caller=2), listed | {"id": 4})
        )
    )
    (one,) = graph.collectives
    assert (one.name, one.num, one.tensor_bytes) == ("c10d::allreduce_", 2, 2 * 2048)
    # Two tensors, one behind the other in one storage.
    assert (graph.num_tensors, graph.storage_bytes, graph.num_operators, graph.num_nodes) == (
        2,
        2048,
        2,
        3,
    )


def test_an_old_schema_has_its_shapes_beside_its_inputs(tmp_path: Path) -> None:
    old = {
        "name": "aten::mm",
        "parent": 1,
        "inputs": [HALF, HALF],
        "input_shapes": [[10, 100], [100, 10]],
        "input_types": ["Tensor(c10::Half)"] * 2,
        "outputs": [],
        "output_shapes": [],
        "output_types": [],
    }
    graph = only(read_bytes(tmp_path, trace({"id": 5} | old, schema="1.0.1")))
    assert (graph.schema, graph.flops, graph.operators[0].tensor_bytes) == (
        "1.0.1",
        2 * 10 * 100 * 10,
        4000,
    )


def test_a_trace_that_ends_early_is_read_up_to_there(recorded: bytes, tmp_path: Path) -> None:
    whole = only(read_bytes(tmp_path, recorded)).num_nodes
    most = 0
    for end in range(200, len(recorded), 4999):
        if recorded[:end].count(b'"id":') < 2:
            with pytest.raises(FormatError, match=r"et\.json"):
                read_bytes(tmp_path, recorded[:end])
            continue
        log = read_bytes(tmp_path, recorded[:end])
        assert most <= only(log).num_nodes < whole
        most = only(log).num_nodes
        assert any("cut off" in note for note in log.recordings[0].notes)
    assert most > whole - 12


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x07\x0a\x050.0.4" + bytes(100),
        b'{"schema": "1.1.1-chakra.0.0.4", "nodes": ',
        b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}',
        b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [1, 2, 3]}',
        b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": "one", "name": 3}]}',
        b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1, "name": ' + b"[" * 100_000,
        b"plain text",
    ],
)
def test_what_is_none_is_refused_in_words(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(FormatError, match=r"ExecutionTraceObserver"):
        read_bytes(tmp_path, data, "rank0.et")


def test_protobuf_is_known_and_told_apart(tmp_path: Path) -> None:
    data = b"\x07\x0a\x050.0.4" + bytes(100)
    assert chakra.is_mine(data, "rank0.et")
    with pytest.raises(FormatError, match="protobuf"):
        read_bytes(tmp_path, data, "rank0.et")


HOSTILE: tuple[Any, ...] = (
    None,
    True,
    2**80,
    -1,
    "x" * 100_000,
    [[]] * 1000,
    [[[[[[[1]]]]]]],
    {"a": 1},
    1e308,
    "\x00",
    [2**62] * 5 + ["cpu"],
)


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_values_in_every_place(tmp_path: Path, hostile: object) -> None:
    good = node(
        2,
        "aten::mm",
        shapes=[[10, 100], [100, 10]],
        types=["Tensor(c10::Half)"] * 2,
        values=[HALF, HALF],
    )
    bad: list[dict[str, Any]] = [good | {key: hostile} for key in good]
    bad += [
        good | {"inputs": good["inputs"] | {key: value}}
        for key in ("values", "shapes", "types")
        for value in (hostile, [hostile] * 2)
    ]
    bad += [good | {"inputs": good["inputs"] | {"shapes": [[hostile, 100], [100, 10]]}}]
    bad += [good | {"inputs": good["inputs"] | {"values": [[hostile] * 6, HALF]}}]
    for at, one in enumerate(bad):
        try:
            graph = only(
                read_bytes(tmp_path, trace(good, one | ({"id": at + 10} if one["id"] == 2 else {})))
            )
        except StepscopeError as problem:
            pytest.fail(f"a good node stands beside it: {problem}")
        assert graph.num_nodes >= 1
        assert graph.flops >= 20_000


def test_callers_in_a_circle_end(tmp_path: Path) -> None:
    shaped = {
        "shapes": [[10, 100], [100, 10]],
        "types": ["Tensor(float)"] * 2,
        "values": [HALF, HALF],
    }
    graph = only(
        read_bytes(
            tmp_path,
            trace(node(2, "aten::mm", caller=3, **shaped), node(3, "aten::mm", caller=2, **shaped)),
        )
    )
    assert graph.num_operators == 2


def test_many_names_and_long_nodes_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepscope.recordings.chakra import nodes as chakra_nodes

    monkeypatch.setattr(chakra_nodes, "MAX_NAMES", 10)
    monkeypatch.setattr(chakra, "MAX_NODE_BYTES", 5000)
    monkeypatch.setattr(chakra, "MAX_NODES", 50)
    long = node(1000, "aten::long", values=["y" * 20_000])
    log = read_bytes(
        tmp_path,
        trace(node(1, "aten::a"), long, *(node(at, f"aten::op{at}") for at in range(2, 99))),
    )
    graph = only(log)
    assert len(graph.operators) == 11
    assert graph.num_nodes == 50
    assert {one.name: one.num for one in graph.operators}["(others)"] == 40
    assert any("damaged" in note for note in log.recordings[0].notes)
    assert any_mentions(log.recordings[0].notes, "first 50 nodes")


def test_tensors_beyond_the_limit_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepscope.recordings.chakra import nodes as chakra_nodes

    monkeypatch.setattr(chakra_nodes, "MAX_TENSORS", 3)
    nodes = [node(at, "aten::a", values=[[at, 100 + at, 0, 10, 4, "cpu"]]) for at in range(2, 7)]
    log = read_bytes(
        tmp_path, trace(*nodes, node(9, "aten::a", values=[[2, 102, 0, 20, 4, "cpu"]]))
    )
    graph = only(log)
    assert (graph.num_tensors, graph.storage_bytes) == (3, 20 * 4 + 2 * 10 * 4), (
        "one that is known may reach further"
    )
    assert any("2 tensor(s) beyond" in note for note in log.recordings[0].notes)


def samples() -> Iterator[tuple[str, str, bytes]]:
    types = ["Tensor(c10::Half)"] * 2
    product = node(2, "aten::mm", shapes=[[10, 100], [100, 10]], types=types, values=[HALF, HALF])
    yield "chakra", "et.json", trace(product, node(3, "c10d::allreduce_", caller=2))
