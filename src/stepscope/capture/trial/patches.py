"""Functions of torch that a trial replaces, to be restored when the capture ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stepscope.capture.guard import Guard


def replace(guard: Guard, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """`owner.name` becomes make(what it was), until the capture ends."""
    attribute = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    original = attribute.__func__ if isinstance(attribute, staticmethod) else attribute
    wrapped = make(original)
    replacement = staticmethod(wrapped) if isinstance(attribute, staticmethod) else wrapped
    setattr(owner, name, replacement)

    def undo() -> None:
        # Somebody may have put theirs over ours: then it stays, and calls ours, which does nothing
        # any more.
        if (
            owner.__dict__.get(name) if isinstance(owner, type) else getattr(owner, name, None)
        ) is replacement:
            setattr(owner, name, attribute)

    guard.at_end(undo)


def compiling_asker() -> Callable[[], bool]:
    """Says whether the compiler is reading this very code: then it must see nothing of ours."""
    compiler = getattr(sys.modules["torch"], "compiler", None)
    # The narrower question where it can be asked: it costs half.
    is_compiling = getattr(compiler, "is_dynamo_compiling", getattr(compiler, "is_compiling", None))
    return is_compiling if callable(is_compiling) else lambda: False
