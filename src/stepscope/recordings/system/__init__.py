"""Clocks, power, counters and rates of the machine."""
