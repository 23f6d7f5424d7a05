"""The rows of `query`, `stepscope.load` and the exports, a table each."""
