"""Names of 0.2 that the documentation gave: they stand in stepscope.doors now, and go after 0.3."""
