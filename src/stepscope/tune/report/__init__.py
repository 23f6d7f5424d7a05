"""A tuned job, in every form."""
