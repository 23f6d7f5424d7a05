"""Hooks on datasets that the training loop iterates itself, with no DataLoader around them.

A DataLoader's batches are seen by its own hook. Of the rest what is a generator is timed:
`__iter__` of an IterableDataset's subclass, or a method that it names. It stays the job's own
function, and what it makes stays its own generator; around each `yield` two calls are compiled in.
"""

from __future__ import annotations

import ast
import inspect
import sys
import weakref
from collections.abc import Iterable, Iterator
from threading import get_ident
from types import FunctionType
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.guard import Guard
from stepscope.capture.hooks.probes import Probe, parsed, put_in, surround
from stepscope.capture.hooks.rewrite import MARK, rewritten
from stepscope.capture.session import Session
from stepscope.capture.tape import WAITED

LOADING = ("/torch/utils/data/", "/torch/utils/data/_utils/")
"""Whoever is called from these files feeds a DataLoader, which is timed as a whole."""
MAX_FRAMES = 40
MAX_CLASSES = 1_000
_END = object()


class Datasets:
    """The subclasses of IterableDataset there are, each hooked once."""

    def __init__(self, guard: Guard, torch: Any, session: Session) -> None:
        self._guard, self._session = guard, session
        self._base = torch.utils.data.IterableDataset
        self._pipes = getattr(torch.utils.data, "IterDataPipe", ())
        self._hooked = weakref.WeakSet[type]()
        self._busy: dict[int, weakref.ref[_Pass]] = {}
        """Passes at work, by thread: of several, one inside another, the outermost is timed."""
        self._took = guard.watch(self._note)
        self._probe = _StreamProbe(self, guard)

    def hook(self) -> None:
        """Called when an optimizer is made: by then the job has defined what it iterates."""
        kinds, seen = [self._base], 0
        while kinds and seen < MAX_CLASSES:
            kind, seen = kinds.pop(), seen + 1
            kinds += type.__subclasses__(kind)
            is_torchs = kind.__module__.startswith("torch.") or issubclass(kind, self._pipes)
            is_jobs = kind is not self._base and not is_torchs
            if is_jobs and kind not in self._hooked:
                self._hooked.add(kind)
                for function in _generators(kind):
                    made = rewritten(function, _around_yields, self._probe)
                    if made is not None:
                        put_in(self._guard, function, made)

    def begin(self, dataset: Any = None, *_: Any) -> _Pass | None:
        if not self._guard.is_on or _feeds_loader():
            return None
        begun = _Pass(dataset)
        self.go_on(begun)
        return begun

    def go_on(self, passed: _Pass) -> None:
        """The generator is asked for a batch."""
        thread = get_ident()
        held = self._busy.get(thread)
        other = None if held is None else held()
        if other is None or other is passed or not other.begun:
            self._busy[thread] = passed.itself
            passed.own_begun = clocks.thread_time_ns()
            passed.begun = clocks.perf_counter_ns()

    def stop(self, passed: _Pass, batch: Any, *, is_over: bool = False) -> None:
        """Note that it has made one, or is over."""
        begun, passed.begun = passed.begun, 0
        if begun:
            own_ns = None if is_over else clocks.thread_time_ns() - passed.own_begun
            self._took(passed.dataset, batch, begun, clocks.perf_counter_ns(), own_ns)

    def _note(self, dataset: Any, batch: Any, begun: int, ended: int, own_ns: int | None) -> None:
        session = self._session
        # What another thread prepares holds no step up.
        if session.writer is not None and not session.writer.is_in_training_thread:
            return
        session.tape.append((WAITED, begun, ended, own_ns))
        if session.window is not None:
            name = f"enumerate(IterableDataset)#{type(dataset).__name__}.__next__"
            session.window.mark(name, begun, ended, None)
        if not session.free_steps:
            session.took_batch(dataset, batch)


class _Pass:
    """One generator's run; `begun` is 0 while it waits at a yield."""

    __slots__ = ("__weakref__", "begun", "dataset", "itself", "own_begun")

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.begun = self.own_begun = 0
        self.itself = weakref.ref(self)


class _StreamProbe(Probe):
    """Called from within a generator. What goes through `out`, `back` and `through` comes out of
    them."""

    __slots__ = ("_go_on", "_stop")

    def __init__(self, datasets: Datasets, guard: Guard) -> None:
        super().__init__(guard.watch(datasets.begin), self._end)
        self._go_on, self._stop = guard.watch(datasets.go_on), guard.watch(datasets.stop)

    def _end(self, passed: _Pass | None, _: Any) -> None:
        if passed is not None:
            self._stop(passed, None, is_over=True)

    def out(self, passed: _Pass | None, batch: Any) -> Any:
        if passed is not None:
            self._stop(passed, batch)
        return batch

    def back(self, passed: _Pass | None, sent: Any) -> Any:
        if passed is not None:
            self._go_on(passed)
        return sent

    def through(self, passed: _Pass | None, source: Iterable[Any]) -> Iterable[Any]:
        """What a `yield from` takes its batches from. One that may be sent to, or closed, by way
        of this generator stays as it is, and is not timed here."""
        if passed is None:
            return source
        batches = iter(source)
        if any(hasattr(type(batches), name) for name in ("send", "throw", "close")):
            passed.begun = 0
            return batches
        passed.begun = 0

        def resumed() -> None:
            self._go_on(passed)

        def made(_: None, batch: Any) -> Any:
            return self.out(passed, batch)

        return map(made, iter(resumed, _END), batches)


def _generators(kind: type) -> Iterator[FunctionType]:
    """`__iter__` of a class where it is a generator, and the generators that it names."""
    own = kind.__dict__.get("__iter__")
    if not isinstance(own, FunctionType):
        return
    found = [own, *(inspect.getattr_static(kind, name, None) for name in own.__code__.co_names)]
    for function in found:
        if isinstance(function, FunctionType) and function.__code__.co_flags & inspect.CO_GENERATOR:
            yield function


def _around_yields(definition: ast.FunctionDef, _: Any) -> None:
    body = definition.body
    definition.body = [_Yields().visit(part) for part in body]
    surround(definition, None, f"{MARK}0", None)


class _Yields(ast.NodeTransformer):
    def _call(self, name: str, value: ast.expr | None, at: ast.AST) -> Any:
        (made,) = parsed(f"stepscope_probe.{name}(stepscope_token, None)", at)
        if value is not None:
            made.value.args[1] = value
        return made.value

    def visit_Yield(self, node: ast.Yield) -> Any:
        self.generic_visit(node)
        node.value = self._call("out", node.value, node)
        return self._call("back", node, node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> Any:
        self.generic_visit(node)
        node.value = self._call("through", node.value, node)
        return self._call("back", node, node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # type: ignore[assignment] # noqa: N815


def _feeds_loader() -> bool:
    """Whether a DataLoader, here or in a worker, is among those who asked for this batch."""
    frame = sys._getframe(1)  # noqa: SLF001 - the only way to it
    for _ in range(MAX_FRAMES):
        folder = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[0] + "/"
        if folder.endswith(LOADING):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
