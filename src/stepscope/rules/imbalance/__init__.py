"""Rules about ranks that wait for one another."""
