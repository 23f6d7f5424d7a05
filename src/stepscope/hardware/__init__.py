"""Device specs as data, each number with its source,
and the way from a recorded device to its spec: see `lookup`."""
