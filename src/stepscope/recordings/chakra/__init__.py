"""Execution traces of PyTorch (Chakra)."""
