"""The Trace of a source: from its cache, or by the reader of its format."""

from __future__ import annotations

from stepscope.core.trace import Trace
from stepscope.readers import cache
from stepscope.readers.detect import refuse_unknown
from stepscope.readers.format import KINETO, Progress, Source
from stepscope.readers.formats import BY_NAME

MIN_CACHED_BYTES = 8 << 20
"""Below this much text, reading is about as fast as reading a cache."""


def read_trace(
    source: Source, *, use_cache: bool = True, progress: Progress | None = None
) -> Trace:
    """The Trace of a source, from its cache where there is a good one. FormatError says what it is,
    when it is no trace."""
    before = None
    if use_cache:
        trace = cache.load(source)
        if trace is not None:
            return trace
        before = cache.identity(source)
    if source.format is None:
        refuse_unknown(source)
    reader = BY_NAME[source.format or KINETO].reader()
    assert reader.read_trace is not None, source.format
    read = reader.read_trace(source, progress)
    if is_cached(read, use_cache=use_cache):
        cache.store(source, read, before)
    return read


def is_cached(trace: Trace, *, use_cache: bool) -> bool:
    """Whether the user's cache takes it."""
    return use_cache and trace.meta.size_bytes >= MIN_CACHED_BYTES
