"""Jobs as processes: how they are started, watched, passed signals and ended. The standard library
alone is imported here."""
