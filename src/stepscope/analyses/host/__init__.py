"""What the host does."""
