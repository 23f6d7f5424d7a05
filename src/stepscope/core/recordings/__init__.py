"""What other tools recorded of a run, in one shape per kind."""
