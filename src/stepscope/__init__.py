"""Explains why a PyTorch training run is slow, from its Kineto trace."""

import importlib
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


def __getattr__(name: str) -> Any:
    """What a training script or a notebook may use; imported when it is asked for: commands and
    readers need none of it."""
    if name == "profile":
        from stepscope.capture.api import profile

        return profile
    if name in ("LightningCallback", "TransformersCallback"):
        from stepscope.capture import callbacks

        return (
            callbacks.lightning_callback()
            if name == "LightningCallback"
            else callbacks.transformers_callback()
        )
    if name in ("diagnose", "load"):
        # By its name: the capture imports this package, and must not be bound to what a notebook
        # needs.
        return getattr(importlib.import_module("stepscope.notebook.run"), name)
    if name == "log_to":
        return importlib.import_module("stepscope.notebook.trackers").log_to
    raise AttributeError(f"module 'stepscope' has no attribute {name!r}")
