"""Tables that libraries print, and people paste."""
