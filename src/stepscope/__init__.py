"""Explains why a PyTorch training run is slow, from its Kineto trace."""

__all__ = ["__version__"]

__version__ = "0.1.0"
