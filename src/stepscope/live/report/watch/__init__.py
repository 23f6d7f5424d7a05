"""A run as it goes on: for people as blocks, for Prometheus as its text."""
