"""The door: what a source is, by its first bytes, and its Trace.

Kineto and Chrome traces are read here, other formats by readers of their own (formats.py). The obvious other things that people
have at hand are recognised, so that the message can say what it is and what to give instead.
"""

from __future__ import annotations

import re
from contextlib import closing

from stepscope.core.trace import Trace
from stepscope.errors import FormatError
from stepscope.readers import cache
from stepscope.readers.container_log import opened
from stepscope.readers.formats import BY_NAME as FORMATS
from stepscope.readers.kineto.trace import WANTED, Progress, read_kineto
from stepscope.readers.nccl.log import is_log_text
from stepscope.readers.source import Source
from stepscope.readers.tar import is_header

MIN_CACHED_BYTES = 8 << 20
"""Below this much text, reading is about as fast as reading a cache."""
HEAD_BYTES = 4096

UTF16 = (b"\xff\xfe", b"\xfe\xff", b"{\x00", b"\x00{", b"[\x00", b"\x00[")
BY_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (
        b"SQLite format 3\x00",
        "an SQLite database without the tables of Nsight Systems (rocpd?)",
        "Export it anew: nsys export --type sqlite; and name it .sqlite, if its tables come late in the file.",
    ),
    (b"PAR1", "a Parquet file", WANTED),
    (b"ARROW1", "an Arrow (Feather) file", WANTED),
    (b"FEA1", "a Feather file", WANTED),
    (b"PK\x03\x04", "a zip archive (or something torch.save wrote)", "Unpack it, or pack the traces as a tar."),
    (b"\xfd7zXZ\x00", "xz-compressed", "Decompress it first (xz -d), or compress with gzip or zstd."),
    (b"\x04\x22\x4d\x18", "lz4-compressed", "Decompress it first (lz4 -d), or compress with gzip or zstd."),
    (b"\x7fELF", "a program", WANTED),
    (b"\x89PNG", "a picture", WANTED),
    (b"STEPSCOPE-CACHE\x00", "a cache of ours", "Name the trace it was made of."),
)
JSON_FIELDS = (
    (re.compile(rb'"rocprofiler-sdk-tool"\s*:'), "the JSON of rocprofv3"),
    (re.compile(rb"www\.speedscope\.app"), "a speedscope profile"),
    (re.compile(rb'"schema"\s*:\s*"[^"]{0,64}chakra'), "a PyTorch execution trace (ExecutionTraceObserver)"),
)
"""Looked for at the start of JSON that has not come to its events yet."""
TEXTS = (
    (re.compile(rb"\A\s*<(?:!doctype|html|\?xml|svg)", re.IGNORECASE), "a web page"),
    (re.compile(rb'"ID","Process ID","Process Name"|==PROF=='), "the output of Nsight Compute (ncu)"),
)
"""Looked for in what is not JSON."""
BY_NAME = (
    ((".nsys-rep", ".qdrep"), "a Nsight Systems report", "Export it: nsys export --type sqlite FILE, and give what that writes."),
    ((".ncu-rep",), "a Nsight Compute report", "Export it: ncu --import FILE --csv --page raw > ncu.csv."),
    ((".et",), "a Chakra trace in protobuf", "Give the JSON that torch.profiler.ExecutionTraceObserver writes."),
)


def read_trace(source: Source, *, use_cache: bool = True, progress: Progress | None = None) -> Trace:
    """The Trace of a source, from its cache where there is a good one. FormatError says what it is, when it is no trace."""
    was = None
    if use_cache:
        trace = cache.load(source)
        if trace is not None:
            return trace
        was = cache.identity(source)
    if source.format is not None:
        trace = FORMATS[source.format].reader().read(source, progress)
    else:
        refuse_others(source)
        trace = read_kineto(source, progress)
    if is_cached(trace, use_cache=use_cache):
        cache.store(source, trace, was)
    return trace


def is_cached(trace: Trace, *, use_cache: bool) -> bool:
    """Whether the user's cache takes it."""
    return use_cache and trace.meta.size_bytes >= MIN_CACHED_BYTES


def refuse_others(source: Source) -> None:
    """FormatError, where the first bytes say that it is something else than a trace of torch.profiler."""
    head = _head(source)
    what, instead = _what_is(head, source.label)
    if what:
        raise FormatError(f"{source.label} is no trace: it looks like {what}. {instead}")


def refuse_unknown(source: Source) -> None:
    """The same, and where it does not begin like a trace either."""
    refuse_others(source)
    if not _head(source).lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
        raise FormatError(f"{source.label} is nothing that is known here. {WANTED}")


def _head(source: Source) -> bytes:
    """The first bytes of the text, decompressed."""
    with closing(opened(source).blocks()) as blocks:
        return next(blocks, b"")[:HEAD_BYTES]


def _what_is(head: bytes, label: str) -> tuple[str, str]:
    """What the text is, when it is clearly something else, and what to do; two empty strings when it may be a trace."""
    if head.startswith(UTF16):
        return "UTF-16 text", "Convert it first: iconv -f UTF-16 -t UTF-8."
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return "a pickle (a memory snapshot?), and loading one would run code", WANTED
    if is_header(head[:512]):
        return "a tar archive inside the file", "Name it .tar, .tar.gz or .tar.zst, and it is read as one."
    for magic, what, instead in BY_MAGIC:
        if head.startswith(magic):
            return what, instead
    for suffixes, what, instead in BY_NAME:
        if label.lower().endswith(suffixes):
            return what, instead
    if is_log_text(head):
        return "a log of NCCL", "Name it .log or .txt, and give it alone or beside the traces of the run."
    is_json = head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))
    for pattern, what in JSON_FIELDS if is_json and b'"traceEvents"' not in head else () if is_json else TEXTS:
        if pattern.search(head):
            return what, WANTED
    return "", ""
