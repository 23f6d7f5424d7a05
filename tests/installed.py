"""Tests that need a package which takes long to import: each process that collects them would."""

from __future__ import annotations

import importlib.util

import pytest


def need(package: str, reason: str = "") -> None:
    """Skips the module that asks where the package is not there, and imports nothing."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(reason or f"{package} is not installed", allow_module_level=True)
