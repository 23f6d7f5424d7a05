"""Rules about the host: launches, synchronization, Python, the compiler."""
