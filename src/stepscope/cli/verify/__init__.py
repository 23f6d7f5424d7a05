"""`stepscope verify`."""
