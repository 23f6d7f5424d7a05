"""Training runs of several ranks with a known answer: real NCCL, all ranks on one GPU."""
