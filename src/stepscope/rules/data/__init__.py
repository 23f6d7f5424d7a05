"""Rules about input: loaders and what they read."""
