"""Logs of a job that hold several kinds."""
