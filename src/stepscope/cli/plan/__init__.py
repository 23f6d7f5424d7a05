"""`stepscope plan`."""
