"""A training run before it is paid for.

Model x Cluster x Layout -> Estimate, and the search for the best layout.
"""
