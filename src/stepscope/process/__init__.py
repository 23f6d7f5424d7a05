"""Jobs as processes: started, watched, passed signals and ended.

In come a command and its environment; out go its exit code and what it wrote to stderr. Nothing of
a job outlives it: a watchdog ends what is left. It imports the standard library and protocol alone.
"""
