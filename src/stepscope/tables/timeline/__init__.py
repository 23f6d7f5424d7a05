"""What a timeline draws: spans, counters and flows, as columns over time."""
