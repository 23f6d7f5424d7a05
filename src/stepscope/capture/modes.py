"""What the capture computes is no part of the job: its modes must not see it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_modes() -> Iterator[None]:
    """While this lasts, neither a TorchDispatchMode nor a TorchFunctionMode of the job sees an
    operator: it may count them, or refuse some."""
    torch = sys.modules["torch"]
    modes: Any = sys.modules.get("torch.utils._python_dispatch")
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        num = getattr(torch._C, "_len_torch_dispatch_stack", int)()  # noqa: SLF001
        popped: list[Any] = []
        try:
            popped.extend(modes._pop_mode() for _ in range(num))  # noqa: SLF001
            yield
        finally:
            for mode in reversed(popped):
                modes._push_mode(mode)  # noqa: SLF001
