"""Nsight Compute."""
