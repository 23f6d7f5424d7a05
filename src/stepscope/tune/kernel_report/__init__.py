"""A tuned kernel, in every form."""
