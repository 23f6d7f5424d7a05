"""A comparison, in every form."""
