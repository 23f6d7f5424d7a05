"""The tables of `query` and `stepscope.load`."""
