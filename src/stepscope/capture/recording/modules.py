"""Marks of the modules' forward passes in a recording, on the profiler's own clock.

A backward pass needs none: its operators know the forward ones that they belong to.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from typing import Any

from stepscope.capture.guard import Guard
from stepscope.protocol.run_folder import MODULE_PREFIX


class ModuleMarks:
    """Hooks on every module, there while a recording is."""

    def __init__(self, torch: Any, guard: Guard) -> None:
        self._torch, self._guard = torch, guard
        self._thread = 0
        self._names: dict[int, str] = {}
        self._kinds: Counter[str] = Counter()
        self._open: list[tuple[int, Any]] = []
        self._handles: list[Any] = []
        self._range: Any = getattr(torch._C._profiler, "_RecordFunctionFast", None)  # noqa: SLF001

    def begin(self) -> bool:
        """Whether modules are marked. Hooks would have the compiler compile again, and its code has
        no modules: a job that compiles goes without."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        counters = {} if dynamo is None else getattr(dynamo, "counters", {})
        if self._range is None or counters.get("frames"):
            return False
        self._thread = threading.get_ident()
        modules = self._torch.nn.modules.module
        self._handles = [
            modules.register_module_forward_pre_hook(self._guard.watch(self._enter)),
            modules.register_module_forward_hook(self._guard.watch(self._leave), always_call=True),
        ]
        return True

    def end(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def _enter(self, module: Any, _: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        name = self._names.get(id(module)) or self._named(module)
        mark = self._range(name)
        mark.__enter__()
        self._open.append((id(module), mark))

    def _leave(self, module: Any, _: Any, __: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        # Whatever began inside and was not left is left with it.
        while self._open:
            entered, mark = self._open.pop()
            mark.__exit__(None, None, None)
            if entered == id(module):
                break

    def _named(self, module: Any) -> str:
        """Name as the profiler names modules in its stacks: by class, in the order of their first
        calls."""
        kind = type(module).__name__
        name = self._names[id(module)] = f"{MODULE_PREFIX}{kind}_{self._kinds[kind]}"
        self._kinds[kind] += 1
        return name
