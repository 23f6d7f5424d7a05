"""Counters of network ports, as tools print them."""
