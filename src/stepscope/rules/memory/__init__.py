"""Rules about device memory: kernels that its rate limits, and how much of it is in use."""
