"""What was measured: events to facts.

In comes a Trace (or a run folder's records); out go numbers: steps, parts of a step, kernels,
collectives between ranks, memory over time. Nothing is judged, printed or read from files. It
imports readers' shapes, core, hardware and workload.
"""
