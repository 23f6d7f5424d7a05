"""Training runs with a known answer: recorded with `python -m lab`, read by the scoring of rules
and replay."""
