"""`stepscope query`."""
