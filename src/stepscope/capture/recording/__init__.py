"""A few steps recorded by torch.profiler."""
