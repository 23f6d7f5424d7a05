"""Measures the machine at hand: products, attention, copies, launches, collectives; and fits few constants to them."""
