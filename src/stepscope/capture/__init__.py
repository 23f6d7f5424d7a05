"""What runs inside the training process.

It needs torch and the standard library alone, and its failure is never the job's.
"""
