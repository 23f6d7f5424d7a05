"""Real jobs, each with several single changes: what every piece of advice really gives."""
