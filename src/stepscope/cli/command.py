"""The door for a subcommand: its name, its line of help, and the module that does its work."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


class Action(NamedTuple):
    """What a command's module has."""

    options: type[Any]
    """`Options`: a dataclass whose fields `cli.options.option` makes."""
    run: Callable[[Any], int]
    """`run(options)` does the work, and gives the exit code."""
    text: str
    """The module's docstring, which is the command's help."""


INSTALLED = "of installed packages"


class Command(NamedTuple):
    """A subcommand. Its module is imported when it is asked for."""

    name: str
    """As a user writes it."""
    about: str
    """The first line of its module's docstring."""
    module: str
    group: str = INSTALLED
    """The heading that `stepscope --help` has it under."""

    def load(self) -> Action:
        module = import_module(self.module)
        return Action(options=module.Options, run=module.run, text=(module.__doc__ or "").strip())
