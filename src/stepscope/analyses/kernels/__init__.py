"""What the device does."""
