"""How runs of one job scale with their width: `diagnose --scaling`.

In come runs of several widths as the core measured them, out go speedup, efficiency and where the
loss lies, in words or as `stepscope.scaling/1`. It may import the core.
"""
