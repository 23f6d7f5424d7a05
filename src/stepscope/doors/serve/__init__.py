"""`stepscope serve`: what a folder holds, as pages for this machine alone."""
