"""Traces of torch.profiler, and Chrome traces."""
