"""What a search found: of knobs, and of a kernel."""
