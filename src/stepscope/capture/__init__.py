"""What runs inside the training process.

In come torch's calls, steps and counters; out goes a run folder (`protocol/run_folder.py` has its
format). Its failure is never the job's: it switches itself off and says so. It imports torch, the
standard library and protocol alone.
"""
