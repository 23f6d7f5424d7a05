"""rocprof, rocprofv3, roctracer, and MIOpen."""
