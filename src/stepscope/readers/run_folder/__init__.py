"""The folder of a run that `stepscope run` recorded."""
