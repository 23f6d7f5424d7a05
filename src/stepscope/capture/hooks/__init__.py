"""Where the capture listens."""
