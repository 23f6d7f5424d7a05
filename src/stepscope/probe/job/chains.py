"""A chain of small operators, made of a case: one after the other, or compiled into what
torch.compile makes of them.

A chain has its operators as `parts`. A tensor of a part is `@2`, what part 2 made, or `#5`, one
that comes in; a result is told from its part's others by its size and type. What a part overwrites
without reading it is made in the chain, as the training script's own operators do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from stepscope.probe.job.operators import overload_of
from stepscope.probe.job.tensors import DTYPES, Maker, UnbuildableError, value_of

MADE, GIVEN, EMPTY = "@", "#", "empty"
NORM_BACKWARD = "cudnn_batch_norm_backward"
RESERVED = 8
"""The argument of it that only a forward pass of cuDNN makes."""
Source = tuple[Any, ...]
Run = Callable[..., Any]


class Chain:
    """The operators as a function of the tensors that come in."""

    def __init__(self, maker: Maker, call: dict[str, Any]) -> None:
        self.torch, self._maker = maker.torch, maker
        self.given: list[Any] = []
        self._numbers: dict[str, int] = {}
        self._steps: list[tuple[Any, list[Source], dict[str, Source]]] = []
        self._made: list[Any] = []
        for part in call["parts"]:
            self._add(part)
        out = [self._place(int(index)) for index in call["concrete"]]
        self._out = list(dict.fromkeys((*out, *self._beside())))
        self._made.clear()

    def run(self, *given: Any) -> list[Any]:
        """What goes out of it."""
        made: list[Any] = []

        def value(source: Source) -> Any:
            kind, *rest = source
            if kind == MADE:
                return _shaped(_of(made[rest[0]], rest[1]), *rest[2:])
            if kind == GIVEN:
                return _shaped(given[rest[0]], *rest[1:])
            if kind == EMPTY:
                return self._empty(*rest)
            return rest[0]

        for function, plain, named in self._steps:
            arguments = [value(source) for source in plain]
            made.append(function(*arguments, **{name: value(each) for name, each in named.items()}))
        return [_of(made[part], result) for part, result in self._out]

    def _add(self, part: dict[str, Any]) -> None:
        name = part["op"].removeprefix("aten::")
        pairs = [self._argument(part, index) for index in range(len(part["dims"]))]
        if name == NORM_BACKWARD:
            # What cuDNN keeps of a forward pass for the backward one.
            image, weight = pairs[0][1], pairs[2][1]
            run = self.torch.ops.aten.cudnn_batch_norm.default
            kept = run(image, weight, self.torch.zeros_like(weight), None, None, True, 0.1, 1e-5)
            pairs[RESERVED] = self._input(kept[3])
        values = [value for _, value in pairs]
        function, plain, named, made = overload_of(self.torch, name, values)
        schema = function._schema.arguments  # noqa: SLF001 - torch says nowhere else what an overload takes
        recorded = [source for source, _ in pairs]
        by_name = {
            argument.name: source for argument, source in zip(schema, recorded, strict=False)
        }
        # What stands in for an argument that was not recorded is a plain value.
        sources = [
            self._source(recorded[i], taken) if i < len(recorded) else ("is", taken)
            for i, taken in enumerate(plain)
        ]
        self._steps.append(
            (
                function,
                sources,
                {key: self._source(by_name[key], taken) for key, taken in named.items()},
            )
        )
        self._made.append(made)

    def _source(self, source: Source, taken: Any) -> Source:
        return source if isinstance(taken, self.torch.Tensor) else ("is", taken)

    def _argument(self, part: dict[str, Any], index: int) -> tuple[Source, Any]:
        dims, dtype, text = (part[key][index] for key in ("dims", "types", "concrete"))
        strides = part["strides"][index] if part["strides"] else []
        if dtype not in DTYPES:
            if dims:
                raise UnbuildableError(f"a tensor of type {dtype or 'unknown'}")
            return ("is", None), value_of(text)
        if text.startswith(MADE):
            kind = getattr(self.torch, DTYPES[dtype])
            found = self._result(int(text[1:]), math.prod(dims), kind)
            if found is not None:
                shape = (tuple(dims), tuple(strides))
                value = _shaped(_of(self._made[int(text[1:])], found), *shape)
                return (MADE, int(text[1:]), found, *shape), value
        if text == EMPTY:
            kind = getattr(self.torch, DTYPES[dtype])
            empty = (tuple(dims), tuple(strides), kind)
            return (EMPTY, *empty), self._empty(*empty)
        number = self._numbers.get(text)
        if number is None:
            return self._input(self._maker.tensor(dims, strides, dtype), text)
        form = (tuple(dims), tuple(strides))
        return (GIVEN, number, *form), _shaped(self.given[number], *form)

    def _input(self, tensor: Any, text: str = "") -> tuple[Source, Any]:
        """A tensor that comes in, and may be asked for again by this text."""
        if text.startswith(GIVEN):
            self._numbers[text] = len(self.given)
        self.given.append(tensor)
        return (GIVEN, len(self.given) - 1, tuple(tensor.shape), ()), tensor

    def _empty(self, dims: tuple[int, ...], strides: tuple[int, ...], kind: Any) -> Any:
        if not strides:
            return self.torch.empty(dims, dtype=kind, device=self._maker.device)
        return self.torch.empty_strided(dims, strides, dtype=kind, device=self._maker.device)

    def _result(self, part: int, size: int, kind: Any) -> int | None:
        """Index of a part's result that has this size and type; None where none has."""
        made = self._made[part]
        results = made if isinstance(made, (tuple, list)) else (made,)
        for place, each in enumerate(results):
            if isinstance(each, self.torch.Tensor) and each.numel() == size and each.dtype == kind:
                return place
        return None

    def _beside(self) -> Iterator[tuple[int, int]]:
        """Results of operators that have several and that no other reads: a compiler leaves out
        what does not go out, as the gradients of a norm's weights."""
        sources = [
            source for _, plain, named in self._steps for source in (*plain, *named.values())
        ]
        read = {source[1:3] for source in sources if source[0] == MADE}
        for part, made in enumerate(self._made):
            if not isinstance(made, (tuple, list)):
                continue
            for place, each in enumerate(made):
                is_tensor = isinstance(each, self.torch.Tensor) and each.numel()
                if is_tensor and (part, place) not in read:
                    yield part, place

    def _place(self, part: int) -> tuple[int, int]:
        """The first result of a part that is a tensor."""
        made = self._made[part]
        results = made if isinstance(made, (tuple, list)) else (made,)
        for place, each in enumerate(results):
            if isinstance(each, self.torch.Tensor):
                return part, place
        raise UnbuildableError("an operator of the chain makes no tensor")


def chain_calls(
    maker: Maker, call: dict[str, Any], copies: int, *, run: Run | None = None
) -> list[Callable[[], Any]]:
    """Calls of the chain, one for each copy of what comes in; of `run` where it was compiled."""
    chain = Chain(maker, call)
    copied = [chain.given]
    copied += [[_another(each) for each in chain.given] for _ in range(copies - 1)]
    return [_bound(run or chain.run, given) for given in copied]


def compiled_chain(maker: Maker, call: dict[str, Any]) -> Run:
    """The chain by torch.compile, run once. It is code of its own: torch keeps only so many
    compiled forms of one function, and looks through them in each call."""
    chain = Chain(maker, call)
    code = Chain.run.__code__.replace(co_name=f"run_{id(chain)}")
    own = FunctionType(code, Chain.run.__globals__, "run", None, Chain.run.__closure__)
    run: Run = maker.torch.compile(own.__get__(chain), dynamic=False)
    run(*chain.given)
    chain.given.clear()
    return run


def _bound(run: Callable[..., Any], given: list[Any]) -> Callable[[], Any]:
    return lambda: run(*given)


def _another(tensor: Any) -> Any:
    """A tensor of its sizes and strides elsewhere in memory."""
    flat = tensor.as_strided((_extent(tensor),), (1,)).clone() if tensor.numel() else tensor.clone()
    return flat.as_strided(tensor.size(), tensor.stride()) if tensor.numel() else flat


def _extent(tensor: Any) -> int:
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    return 1 + sum((int(size) - 1) * int(step) for size, step in pairs)


def _of(made: Any, place: int) -> Any:
    return made[place] if isinstance(made, (tuple, list)) else made


def _shaped(value: Any, dims: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """The same numbers in these sizes, their axes in the order of the strides."""
    if tuple(value.shape) == dims:
        return value
    order = sorted(range(len(dims)), key=lambda axis: -strides[axis]) if strides else []
    if order == list(range(len(dims))) or len(order) != len(dims):
        return value.reshape(dims)
    inner = value.reshape([dims[axis] for axis in order])
    return inner.permute([order.index(axis) for axis in range(len(dims))])
