"""Counters of the device and the host, once a second."""
