"""Shapes that all rooms speak, and the few functions on them.

In come numbers and texts; out go structs: Trace, Facts, Finding, Diagnosis, recordings of other
tools (`recordings/`), trials and comparisons (`experiments/`). A document is a struct, and
`contract/` writes it as JSON and reads it. It imports errors and protocol alone.
"""
