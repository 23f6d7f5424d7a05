"""Looks at objects of the job without running a line of its code where that can be helped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stepscope.capture.guard import is_ours


def attempt(read: Callable[..., Any], *args: Any) -> Any:
    """What read(*args) returns, or None: one value that cannot be read must not cost the others."""
    try:
        return read(*args)
    except Exception as error:
        # Part of the boundary: what a stranger's object raises is anybody's guess.
        if not is_ours(error):
            raise
        return None


def ask(holder: Any, path: str, *args: Any) -> Any:
    """What holder.path(*args) returns, or None where a part of the path is missing or the call
    fails."""

    def call() -> Any:
        function = holder
        for name in path.split("."):
            function = getattr(function, name)
        return function(*args)

    return attempt(call)


def attributes(obj: Any) -> dict[str, Any]:
    """The object's own attributes.

    No property runs, no __getattr__ of a wrapper answers for what it wraps.
    """
    try:
        own = object.__getattribute__(obj, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return own if type(own) is dict else {}


def tensor_methods(torch: Any) -> Any:
    """The class in C under torch.Tensor: its methods stay torch's own, whatever the job, or a class
    of its tensors, puts in their place."""
    return torch.Tensor.__mro__[1]


def class_of(obj: Any) -> str | None:
    """The name of its class, None for None."""
    return None if obj is None else type(obj).__name__


def plain(value: Any) -> Any:
    """The value where a file can say it as it is, else a short word for it, else None."""
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) is str:
        return value[:200]
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    name = attributes(value).get("_name_")
    return name if type(name) is str else None


def chosen(obj: Any, *names: str) -> dict[str, Any]:
    """Some of its own attributes, plain; None for one that it has not."""
    own = attributes(obj)
    return {name: plain(own.get(name)) for name in names}


def counted(rows: Iterable[dict[str, Any]], most: int = 16) -> list[dict[str, Any]]:
    """Equal rows become one with their number, the most frequent first.

    [{"a": 1}, {"a": 2}, {"a": 1}] -> [{"a": 1, "num": 2}, {"a": 2, "num": 1}]
    """
    groups: dict[str, dict[str, Any]] = {}
    for row in rows:
        group = groups.setdefault(repr(row), {**row, "num": 0})
        group["num"] += 1
    return sorted(groups.values(), key=lambda group: -int(group["num"]))[:most]
