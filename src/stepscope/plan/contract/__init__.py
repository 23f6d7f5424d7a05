"""The JSON of `stepscope plan`, and of what is made of plans."""
