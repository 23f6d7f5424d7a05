"""Device memory, from the allocator's events of a trace."""
