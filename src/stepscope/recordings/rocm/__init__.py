"""rocprof, rocprofv3 and roctracer."""
