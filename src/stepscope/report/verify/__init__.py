"""A proof, in every form."""
