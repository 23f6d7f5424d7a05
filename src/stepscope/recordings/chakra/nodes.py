"""Nodes of an execution trace, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stepscope.core.codec import decode_with
from stepscope.core.recordings.training_log import ExecutionGraph, RecordedOperator
from stepscope.workload.inputs import MAX_RANK, MAX_SIZE, ParsedInputs, Shape, Shapes

MAX_NAMES = 4096
"""Different operators that are kept apart."""
MAX_NAME = 200
OTHERS = "(others)"
MAX_DEPTH = 256
"""Callers that are looked up above a node."""
MAX_TENSORS = 1 << 20
NOT_OPERATORS = ("autograd::engine::", "torch::autograd::")
COLLECTIVES = "c10d::"
SCALARS = {"Int", "Double", "Bool", "Float", "SymInt", "ComplexDouble"}


class Node(msgspec.Struct):
    id: int
    name: str
    ctrl_deps: int | None = None
    parent: int | None = None
    """What ctrl_deps was called before."""
    inputs: Any = None
    input_shapes: Any = None
    input_types: Any = None
    outputs: Any = None

    @property
    def caller(self) -> int | None:
        return self.ctrl_deps if self.ctrl_deps is not None else self.parent

    @property
    def is_operator(self) -> bool:
        return "::" in self.name and not self.name.startswith(NOT_OPERATORS)


_NODE = msgspec.json.Decoder(Node)


@dataclass(slots=True)
class _Count:
    num: int = 0
    tensor_bytes: int = 0
    flops: float = 0.0
    has_flops: bool = False


@dataclass(slots=True)
class _Tensors:
    """Tensors seen, and how far into each storage they reach."""

    seen: set[int] = field(default_factory=set)
    storages: dict[tuple[int, str], int] = field(default_factory=dict)
    num_left_out: int = 0

    def bytes_of(self, values: Any) -> int:
        total = 0
        for tensor, storage, offset, num, item, device in _tensors(values):
            total += num * item
            if tensor in self.seen or len(self.seen) < MAX_TENSORS:
                self.seen.add(tensor)
                key = (storage, device)
                self.storages[key] = max(self.storages.get(key, 0), (offset + num) * item)
            else:
                self.num_left_out += 1
        return total


@dataclass(slots=True)
class GraphBuilder:
    """Nodes, counted as they come."""

    num_nodes: int = 0
    num_bad: int = 0
    num_operators: int = 0
    counts: dict[str, _Count] = field(default_factory=dict)
    tensors: _Tensors = field(default_factory=_Tensors)
    callers: dict[int, int | None] = field(default_factory=dict)
    work: dict[int, tuple[float, str]] = field(default_factory=dict)
    """FLOPs of matrix products and the like, by node, and under which name they are counted."""

    def add(self, text: bytes) -> None:
        try:
            node = decode_with(_NODE, text)
        except ValueError:
            self.num_bad += 1
            return
        self.num_nodes += 1
        self.callers[node.id] = node.caller
        size = self.tensors.bytes_of(_part(node.inputs, "values")) + self.tensors.bytes_of(
            _part(node.outputs, "values")
        )
        if node.is_operator:
            self._add_operator(node, size)

    def _add_operator(self, node: Node, size: int) -> None:
        from stepscope.workload.model import work_of

        self.num_operators += 1
        name = node.name[:MAX_NAME]
        if name not in self.counts and len(self.counts) >= MAX_NAMES:
            name = OTHERS
        count = self.counts.setdefault(name, _Count())
        count.num += 1
        count.tensor_bytes += size
        inputs = inputs_of(node)
        work = None if inputs is None else work_of(node.name, inputs)
        if work is not None and work.is_matrix and work.flops is not None:
            self.work[node.id] = (work.flops, name)

    def _charge(self) -> None:
        """Charge FLOPs to the innermost alone: the operator around it has the same FLOPs. A node is
        written after those that it called."""
        around: set[int] = set()
        for ident in self.work:
            caller, depth = self.callers.get(ident), 0
            while caller is not None and caller not in around and depth < MAX_DEPTH:
                around.add(caller)
                caller, depth = self.callers.get(caller), depth + 1
        for ident, (flops, name) in self.work.items():
            if ident not in around:
                self.counts[name].flops += flops
                self.counts[name].has_flops = True

    def finished(self, path: str, schema: str) -> ExecutionGraph:
        self._charge()
        operators = [
            RecordedOperator(
                name=name,
                num=count.num,
                tensor_bytes=count.tensor_bytes,
                flops=count.flops if count.has_flops else None,
            )
            for name, count in self.counts.items()
        ]
        operators.sort(key=lambda operator: (-operator.num, operator.name))
        return ExecutionGraph(
            path=path,
            schema=schema,
            num_nodes=self.num_nodes,
            num_operators=self.num_operators,
            operators=tuple(operators),
            collectives=tuple(
                operator for operator in operators if operator.name.startswith(COLLECTIVES)
            ),
            num_tensors=len(self.tensors.seen),
            storage_bytes=sum(self.tensors.storages.values()),
            flops=sum(operator.flops or 0.0 for operator in operators),
        )


def inputs_of(node: Node) -> ParsedInputs | None:
    """An operator's inputs as a trace of the profiler has them; None where they are not what the
    observer writes."""
    values, types = _part(node.inputs, "values"), _part(node.inputs, "types")
    shapes = _part(node.inputs, "shapes")
    strides = _part(node.inputs, "strides") if isinstance(node.inputs, dict) else []
    if isinstance(node.inputs, list):
        shapes, types = node.input_shapes, node.input_types
    if not isinstance(shapes, list) or not isinstance(types, list) or not isinstance(values, list):
        return None
    if not len(shapes) == len(types) == len(values) or not all(
        isinstance(text, str) for text in types
    ):
        return None
    words = tuple(_type(text) for text in types)
    dims = tuple(_shape(shape, word) for shape, word in zip(shapes, words, strict=True))
    if None in dims:
        return None
    steps: tuple[Shape | Shapes | None, ...] = ()
    if isinstance(strides, list) and len(strides) == len(shapes):
        steps = tuple(_shape(stride, word) for stride, word in zip(strides, words, strict=True))
    return ParsedInputs(
        dims=tuple(shape for shape in dims if shape is not None),
        types=words,
        strides=() if None in steps else tuple(step for step in steps if step is not None),
        concrete=tuple(_text(value, word) for value, word in zip(values, words, strict=True)),
    )


def _part(side: Any, name: str) -> Any:
    """One part of inputs or outputs: in old traces these are the values themselves."""
    if isinstance(side, dict):
        return side.get(name)
    return side if name == "values" else None


def _type(text: str) -> str:
    """`Tensor(float)` as `float`, `GenericList[Tensor(float)]` as `TensorList`, as the profiler
    writes them."""
    if text.startswith("Tensor(") and text.endswith(")"):
        return text[7:-1]
    if text.startswith("GenericList["):
        return "TensorList" if "Tensor(" in text else "ScalarList"
    return "Scalar" if text in SCALARS else ""


def _shape(shape: Any, word: str) -> Shape | Shapes | None:
    if word in ("Scalar", "ScalarList", ""):
        return ()
    if not isinstance(shape, list):
        return None
    if word == "TensorList":
        inner = tuple(_sizes(sizes) for sizes in shape)
        return None if None in inner else tuple(sizes for sizes in inner if sizes is not None)
    return _sizes(shape)


def _sizes(shape: Any) -> Shape | None:
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        return None
    is_sound = all(type(size) is int and -MAX_SIZE <= size <= MAX_SIZE for size in shape)
    return tuple(shape) if is_sound else None


def _text(value: Any, word: str) -> str:
    is_scalar = word in ("Scalar", "ScalarList") and isinstance(value, (int, float, list))
    return str(value)[:1000] if is_scalar else ""


def _tensors(values: Any, depth: int = 0) -> Iterator[tuple[int, int, int, int, int, str]]:
    """Every tensor among values: six entries, five of them whole numbers."""
    for value in values if isinstance(values, list) and depth < 4 else ():
        if not isinstance(value, list):
            continue
        if (
            len(value) == 6
            and isinstance(value[5], str)
            and all(type(number) is int and 0 <= number <= MAX_SIZE for number in value[:5])
        ):
            yield value[0], value[1], value[2], value[3], value[4], value[5]
        elif value and isinstance(value[0], list):
            yield from _tensors(value, depth + 1)
