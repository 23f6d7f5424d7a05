"""The step as a graph of tasks, simulated.

In comes a Trace with its links and steps; out go a graph without the profiler's cost, how long its
step takes, and how long it takes after a change. Ranks that exchange data are simulated together.
It imports analyses and what lies below.
"""
