"""Packages that stepscope does not bring by itself.

Imported where they are used, missed in words.
"""

from __future__ import annotations

import importlib
from typing import Any

from stepscope.errors import UsageError


def need(module: str, extra: str, why: str) -> Any:
    """The module, or the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        package = module.partition(".")[0]
        raise UsageError(
            f"{why} needs {package}, which cannot be imported here. Install it: pip install "
            f"'stepscope[{extra}]'"
        ) from problem
