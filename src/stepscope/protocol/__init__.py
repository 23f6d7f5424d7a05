"""What capture and the rest share."""
