"""Rules about copies between host and device."""
