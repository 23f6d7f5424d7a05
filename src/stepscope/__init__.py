"""Explains why a PyTorch training run is slow, from its Kineto trace."""

from typing import Any

__all__ = ["LightningCallback", "TransformersCallback", "__version__", "profile"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What a training script may use; imported when it is asked for, because commands and readers need none of it."""
    if name == "profile":
        from stepscope.capture.api import profile

        return profile
    if name in ("LightningCallback", "TransformersCallback"):
        from stepscope.capture import callbacks

        return callbacks.lightning_callback() if name == "LightningCallback" else callbacks.transformers_callback()
    raise AttributeError(f"module 'stepscope' has no attribute {name!r}")
