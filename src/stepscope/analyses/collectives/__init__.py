"""Collectives between ranks: found, matched, timed."""
