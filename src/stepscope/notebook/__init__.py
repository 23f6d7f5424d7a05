"""A recorded run in a notebook.

`stepscope.load(path)`, its tables, plots, SQL, and experiment trackers.
"""
