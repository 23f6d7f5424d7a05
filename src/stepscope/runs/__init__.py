"""The runs that are kept in a folder: verdicts, names, and a clean-up.

In come run folders as the core lists them, out go a table or `stepscope.runs/1`; what is pruned is
removed. It may import the core.
"""
