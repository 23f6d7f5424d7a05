"""Two runs compared: what changed, and by how much."""
