"""A plan, in every form."""
