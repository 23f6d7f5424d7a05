"""What is a fault, its fix, and the one judge.

In comes a measured job (`job.py: Job`); out goes a Diagnosis: the bound, findings with replayed
gains, what could not be judged. Each rule is one file that ends with its `Rule`; `registry.py` has
them all, in the order in which they are asked. It imports replay and what lies below.
"""
