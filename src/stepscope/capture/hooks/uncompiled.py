"""Our own functions are none of the compiler's business.

What runs after a graph break is read by `torch.compile` function by function, and the probes are
called there: it would compile them, break its graphs at them, and read a tape that grows
meanwhile. torch keeps a mark on each code that it shall leave alone; ours get it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

_OWN = ("stepscope.capture.", "stepscope.protocol.")


def keep_from_compiler(torch: Any) -> None:
    """Marks the codes of all modules that the capture has loaded. torch keeps such a mark for as
    long as there is the code."""
    leave_alone = _marker(torch)
    if leave_alone is None:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith(_OWN):
            for code in _codes(module, name):
                leave_alone(code)


def _marker(torch: Any) -> Callable[[CodeType], object] | None:
    frames = getattr(getattr(getattr(torch, "_C", None), "_dynamo", None), "eval_frame", None)
    strategy, action = (
        getattr(frames, f"_Frame{name}", None) for name in ("ExecStrategy", "Action")
    )
    mark = getattr(frames, "set_code_exec_strategy", None)
    if mark is None or strategy is None or action is None:
        older: Callable[[CodeType], object] | None = getattr(frames, "skip_code", None)
        return older
    # Neither they nor what they call.
    skipped = strategy(action.SKIP, action.SKIP)
    return lambda code: mark(code, skipped)


def _codes(module: Any, name: str) -> Iterator[CodeType]:
    """Code objects of the module's own functions and classes, and of what stands inside them."""
    held = [*vars(module).values()]
    while held:
        value = held.pop()
        if isinstance(value, type) and value.__module__ == name:
            held += vars(value).values()
        elif isinstance(value, property):
            held += (value.fget, value.fset)
        elif isinstance(value, staticmethod | classmethod):
            held.append(value.__func__)
        elif isinstance(value, FunctionType) and value.__module__ == name:
            held.append(value.__code__)
        elif isinstance(value, CodeType):
            yield value
            held += [const for const in value.co_consts if isinstance(const, CodeType)]
