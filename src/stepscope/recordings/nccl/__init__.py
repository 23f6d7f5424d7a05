"""Logs of NCCL and RCCL, and of nccl-tests."""
