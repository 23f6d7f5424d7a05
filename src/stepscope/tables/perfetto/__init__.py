"""A timeline that Perfetto opens."""
