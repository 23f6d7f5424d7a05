"""What runs in the job's own Python: torch and the standard library alone."""
