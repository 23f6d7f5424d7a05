"""A diagnosis: for people as blocks, for programs as JSON."""
