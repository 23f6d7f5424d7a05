"""A search over the ways to run one kernel."""
