"""The training loops of the lab, by family: each function builds one variant of one run.

Sizes are chosen on an H200 so that the planted fault, or its absence, shows; without a GPU they
shrink to a rehearsal.
"""
