"""What the capture inside a job and the rest of stepscope agree on.

In come and out go the run folder's files, environment variables and settings, with the checks for
what strangers wrote. It imports the standard library alone.
"""
