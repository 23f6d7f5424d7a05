"""Measures the machine at hand: products, attention, copies, launches, collectives.

Fits a few constants to them.
"""
