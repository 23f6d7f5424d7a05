"""One real job, started, watched and ended for a measurement."""
