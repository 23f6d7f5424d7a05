"""Explains why a PyTorch training run is slow, from its Kineto trace."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "LightningCallback",
    "TransformersCallback",
    "__version__",
    "diagnose",
    "load",
    "log_to",
    "profile",
]

__version__ = "0.2.0"


def __getattr__(name: str) -> "Any":
    """What a training script or a notebook may use; imported when it is asked for: commands and
    readers need none of it."""
    if name == "profile":
        with _own_imports():
            from stepscope.capture.api import profile

        return profile
    if name in ("LightningCallback", "TransformersCallback"):
        with _own_imports():
            from stepscope.capture import callbacks

        return (
            callbacks.lightning_callback()
            if name == "LightningCallback"
            else callbacks.transformers_callback()
        )
    if name in ("diagnose", "load"):
        # By its name: the capture imports this package, and must not be bound to what a notebook
        # needs.
        return getattr(_module("stepscope.tables.run"), name)
    if name in ("load_ipython_extension", "unload_ipython_extension"):
        # Of `%load_ext stepscope`, in a notebook.
        return getattr(_module("stepscope.tables.magic"), name)
    if name == "log_to":
        return _module("stepscope.doors.trackers").log_to
    raise AttributeError(f"module 'stepscope' has no attribute {name!r}")


def _module(name: str) -> "Any":
    import importlib

    return importlib.import_module(name)


def _own_imports() -> "Any":
    from stepscope.capture.own_imports import OwnImports

    return OwnImports()


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        # It was removed: Python found nothing to put first either.
        return ""


def _leave_start_folder() -> None:
    """Takes the folder that Python puts first for a program off sys.path, where the program is
    stepscope: the script's, or with -m the working folder, which may be a stranger's. Nothing is
    imported before it but what every Python has imported by itself."""
    # A program that embeds Python may have given it no words.
    words = getattr(sys, "argv", None) or [""]
    if words[0] == "-m":
        # What stood after -m; -mNAME is one word.
        module = sys.orig_argv[-len(words)].rpartition("-m")[2]
        if module.partition(".")[0] != "stepscope":
            return
        folder = _working_folder()
    elif os.path.basename(words[0]) == "stepscope":
        folder = os.path.dirname(os.path.realpath(words[0]))
    else:
        return
    if sys.path[:1] == [folder]:
        del sys.path[0]
    from stepscope.process.isolation import trusted_path

    sys.path[:] = trusted_path()


_leave_start_folder()
