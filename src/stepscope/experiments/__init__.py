"""Whether a difference between real runs is real: compare, verify, tune."""
