"""Whether a difference between real runs is real.

In come a command and what to change in it, or recordings of two runs; out go trials, an interval of
the gain, checks of the loss, a verdict: `verify`, `compare`, `fix`, and what `tune` builds on. It
imports analyses and what lies below, and process to start jobs.
"""
