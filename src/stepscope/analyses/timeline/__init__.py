"""Timelines: of one step, and of a whole recording."""
