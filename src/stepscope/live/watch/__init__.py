"""`stepscope watch`, and what `run` does beside its job."""
