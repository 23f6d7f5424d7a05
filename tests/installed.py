"""Everything a test may find absent, and how to get it: the one place that skips.

A module, a fixture or a test says `need("optuna")`; `@needs("the compiled library")` is the mark of
a test whose fixtures need not run. Nothing here imports what it looks for: each process that
collects the tests would pay for that.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import pytest

from stepscope.core import compiled

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Thing(NamedTuple):
    """What a test may need, and the line that a skipped one says."""

    is_here: Callable[[], bool]
    how: str


def find_browser() -> str | None:
    """Path of the Chromium that draws the pages."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def has_modules(*names: str) -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in names)
    except ModuleNotFoundError:  # the package that a dotted name lies in
        return False


def _has_program(*names: str) -> bool:
    return any(shutil.which(name) for name in names)


def _has_browser() -> bool:
    return find_browser() is not None and has_modules("playwright", "axe_playwright_python")


def _has_spy() -> bool:
    return _has_program("py-spy", str(Path(sys.executable).with_name("py-spy")))


HIDE_PROC = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
"""Starts a command in a mount namespace of its own, where /proc is an empty folder."""


def _may_mount() -> bool:
    if not _has_program("unshare"):
        return False
    return subprocess.run([*HIDE_PROC, "true"], capture_output=True, check=False).returncode == 0


def _packages(*names: str, extra: str = "") -> Thing:
    """Modules, each with the package that brings it where that has another name: `yaml=PyYAML`."""
    modules = [name.partition("=")[0] for name in names]
    packages = [name.rpartition("=")[2] for name in names]
    how = f"pip install {' '.join(packages)}"
    return Thing(partial(has_modules, *modules), f"{how}, or -e '.[{extra}]'" if extra else how)


THINGS: dict[str, Thing] = {
    # Packages, by the extra that brings them.
    "Dask": _packages("distributed", extra="cluster"),
    "duckdb": _packages("duckdb", extra="sql"),
    "fsspec": _packages("fsspec", extra="remote"),
    "IPython": _packages("IPython=ipython", extra="dev"),
    "matplotlib": _packages("matplotlib", extra="notebook"),
    "mcp": _packages("mcp", extra="mcp"),
    "mkdocs": _packages("mkdocs", extra="docs"),
    "optuna": _packages("optuna", extra="tune"),
    "pandas and polars": _packages("pandas", "polars", extra="notebook"),
    "py-spy": Thing(_has_spy, "pip install py-spy, or -e '.[attach]'"),
    "pyarrow": _packages("pyarrow", extra="sql"),
    "scipy": _packages("scipy", extra="tune"),
    "torch": _packages("torch", extra="dev"),
    # Packages that no extra brings: too large, or of one test.
    "accelerate": _packages("accelerate"),
    "cloudpickle": _packages("cloudpickle"),
    "deepspeed": _packages("deepspeed"),
    "megatron-core": _packages("megatron=megatron-core"),
    "transformers": _packages("transformers", "accelerate"),
    "the frameworks": _packages("accelerate", "lightning", "transformers"),
    "mlflow": _packages("mlflow"),
    "OpenTelemetry's protocol": _packages(
        "google.protobuf=protobuf", "opentelemetry.proto=opentelemetry-proto"
    ),
    "PyYAML": _packages("yaml=PyYAML"),
    "tensorboard": _packages("tensorboard"),
    "torchtitan": _packages("torchtitan"),
    "Triton": _packages("triton"),
    "wandb": _packages("wandb"),
    # Programs and folders beside the repository.
    "a browser": Thing(
        _has_browser, "scripts/setup-and-test --with-browser, or Chromium from your system"
    ),
    "a git checkout": Thing(
        lambda: (ROOT / ".git").exists() and _has_program("git"), "clone the repository"
    ),
    "bash": Thing(partial(_has_program, "bash"), "apt-get install bash"),
    "git": Thing(partial(_has_program, "git"), "apt-get install git"),
    "Megatron-LM": Thing(
        lambda: "MEGATRON" in os.environ, "no package has its parser; MEGATRON names a checkout"
    ),
    "the compiled library": Thing(
        lambda: compiled.load() is not None,
        "a C compiler and scripts/build-native",
    ),
    "the shared recordings": Thing(SHARED.is_dir, "a folder beside the checkout, ../shared"),
    "timeout": Thing(partial(_has_program, "timeout"), "apt-get install coreutils"),
    # What the machine and its user are.
    "/dev/full": Thing(Path("/dev/full").exists, "a system that has it, such as Linux"),
    "Linux": Thing(lambda: sys.platform.startswith("linux"), "run the tests there"),
    "pseudo-terminals": Thing(lambda: hasattr(os, "openpty"), "run the tests on Unix"),
    "rights to mount over /proc": Thing(_may_mount, "run the tests as root, outside a container"),
    "x86-64 or ARM": Thing(
        lambda: platform.machine() in {"x86_64", "aarch64"}, "no other machine code is known"
    ),
    "a user who is not root": Thing(
        lambda: os.geteuid() != 0, "root may read everything; run the tests as somebody else"
    ),
}


@cache
def has(name: str) -> bool:
    return THINGS[name].is_here()


def reason(name: str) -> str:
    return f"needs {name}: {THINGS[name].how}"


def need(*names: str) -> None:
    """Skips the module, fixture or test that asks, where one of these is absent."""
    for name in names:
        if not has(name):
            absent(reason(name))


def needs(name: str) -> pytest.MarkDecorator:
    """The mark of a test that is skipped where this is absent."""
    return pytest.mark.skipif(not has(name), reason=reason(name))


def package(module: str, *names: str) -> Any:
    """Imports a module of an optional package, or skips; without a name, of the module's own."""
    need(*(names or (module.partition(".")[0],)))
    return importlib.import_module(module)


def once_unless(name: str, cases: Sequence[T]) -> Sequence[T]:
    """The cases; one of them where this is absent, which counts once then."""
    return cases if has(name) else cases[:1]


def absent(why: str) -> NoReturn:
    """Skips for what no name above says: a reason that names what is absent and how to get it."""
    pytest.skip(why, allow_module_level=True)
