"""How a job scales, in every form."""
