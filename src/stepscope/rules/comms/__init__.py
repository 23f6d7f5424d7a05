"""Rules about communication between ranks."""
