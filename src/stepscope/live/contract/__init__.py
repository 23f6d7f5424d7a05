"""The JSON of alerts and of triage."""
