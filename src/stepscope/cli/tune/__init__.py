"""`stepscope tune`."""
