"""Snapshots, statistics and timelines of device memory."""
