"""A search over settings with real trials."""
