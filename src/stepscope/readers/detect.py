"""What a source is: the one place that looks at bytes to tell a file's format.

Each format's reader says what is its own (`is_mine`, `is_in`; see formats.py), and here they are
asked: about a file's first bytes, and, where these may be a job's output, about all of it. A job
may print for hours before its first line of interest, so such a text is looked at to its end, once,
a block at a time, until every kind has been found.

What is no format of ours and is still easily recognised is called by its name, with what to give
instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from contextlib import closing
from functools import cache
from pathlib import Path, PurePosixPath

from stepscope.errors import FormatError
from stepscope.protocol.run_folder import RUN_FILES, is_run
from stepscope.readers.format import LOGS, NCCL, Format, Reader, Source
from stepscope.readers.formats import BY_NAME, FORMATS
from stepscope.readers.kineto.trace import WANTED
from stepscope.readers.stream import is_header
from stepscope.readers.text_lines import may_be_output, opened

HEAD_BYTES = 64 << 10
"""Logs may have a page of other output before their first line of interest."""
MAX_BYTES = 1 << 30
"""Bytes of a file that are looked at: half a minute for one in which nothing is found, which may be
anything."""
OVERLAP_BYTES = 8 << 10
"""Bytes of a block that are looked at again with the next: a line may lie in both, and Lightning's
table is known by three lines."""
TRACE_NAME = re.compile(r"\.(?:json|trace)(?:\.(?:gz|zst|zstd))?$", re.IGNORECASE)
LOG_NAME = re.compile(r"\.(?:log|txt|out|err)(?:\.(?:gz|zst|zstd))?$|[nr]ccl", re.IGNORECASE)
"""What in a folder or an archive may be a log of NCCL; its first lines decide."""
ARCHIVE_NAME = re.compile(r"\.(?:tar(?:\.(?:gz|zst|zstd))?|tgz)$", re.IGNORECASE)
BRACKETED = re.compile(rb"\[\s*(?:[A-Z]|[a-z]{2}[\w. -]{0,60}\]|[\d.:T /-]{1,40}\][ :])")
SPACE = b"\xef\xbb\xbf \t\r\n"

UTF32 = (
    b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff", b"{\x00\x00\x00", b"[\x00\x00\x00", b"\x00\x00\x00",
)  # fmt: skip
UTF16 = (b"\xff\xfe", b"\xfe\xff", b"{\x00", b"\x00{", b"[\x00", b"\x00[")
BY_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (
        b"SQLite format 3\x00",
        "an SQLite database without the tables of Nsight Systems (rocpd?)",
        (
            "Export it anew: nsys export --type sqlite; and name it .sqlite, if its tables come "
            "late in the file."
        ),
    ),
    (b"PAR1", "a Parquet file", WANTED),
    (b"ARROW1", "an Arrow (Feather) file", WANTED),
    (b"FEA1", "a Feather file", WANTED),
    (
        b"PK\x03\x04",
        "a zip archive (or something torch.save wrote)",
        "Unpack it, or pack the traces as a tar.",
    ),
    (
        b"\xfd7zXZ\x00",
        "xz-compressed",
        "Decompress it first (xz -d), or compress with gzip or zstd.",
    ),
    (
        b"\x04\x22\x4d\x18",
        "lz4-compressed",
        "Decompress it first (lz4 -d), or compress with gzip or zstd.",
    ),
    (
        b"\x1f\x8b",
        "gzip inside gzip: it was packed twice",
        "Unpack it once (gzip -d); what is inside is read as it is.",
    ),
    (
        b"version https://git-lfs.github.com/spec/",
        "a pointer of Git LFS, without the file it stands for",
        "Fetch it first: git lfs pull.",
    ),
    (b"\x7fELF", "a program", WANTED),
    (b"\x89PNG", "a picture", WANTED),
    (b"STEPSCOPE-CACHE\x00", "a cache of ours", "Name the trace it was made of."),
)
JSON_FIELDS = (
    (re.compile(rb'"rocprofiler-sdk-tool"\s*:'), "the JSON of rocprofv3"),
    (re.compile(rb"www\.speedscope\.app"), "a speedscope profile"),
    (
        re.compile(rb'"schema"\s*:\s*"[^"]{0,64}chakra'),
        "a PyTorch execution trace (ExecutionTraceObserver)",
    ),
)
"""Looked for at the start of JSON that has not come to its events yet."""
TEXTS: tuple[tuple[re.Pattern[bytes], str, str], ...] = (
    (re.compile(rb"\A\s*<(?:!doctype|html|\?xml|svg)", re.IGNORECASE), "a web page", WANTED),
    (
        re.compile(rb'"ID","Process ID","Process Name"|==PROF=='),
        "the output of Nsight Compute (ncu)",
        WANTED,
    ),
    (
        re.compile(rb"={8,}NVSMI LOG={8,}"),
        "nvidia-smi -q: one look at one moment",
        (
            "Under Clocks Event Reasons, Active beside a slowdown says that the device is held "
            "down. Record it over time: nvidia-smi dmon -s pucvmet -o DT > dmon.txt."
        ),
    ),
    (
        re.compile(rb"^AUTOTUNE \w{1,40}\(", re.MULTILINE),
        "the log of torch.compile's search for kernels (max-autotune)",
        (
            "The first line of each block is the one it chose; what it gives a step: stepscope "
            "tune --knob compile_mode=default,max-autotune -- python train.py."
        ),
    ),
    (
        re.compile(rb"^Dynamo produced \d{1,9} graphs", re.MULTILINE),
        "what an older torch._dynamo.explain() prints",
        (
            "Its break reasons name the lines; TORCH_LOGS=graph_breaks,recompiles python train.py "
            "2> torch_logs.txt is read in full."
        ),
    ),
    (
        re.compile(rb"^\s{0,8}\d{1,4}, ?\d{1,3} %", re.MULTILINE),
        "nvidia-smi's CSV without its header",
        "Keep the header: --format=csv, without noheader.",
    ),
    (
        re.compile(rb"^GPU\s{1,8}POWER\s[^\n]{0,200}GFX_UTIL", re.MULTILINE),
        "what amd-smi monitor prints for people",
        "Record it with --csv: amd-smi monitor -p -t -u -v -w 1 --csv > amd_smi.csv.",
    ),
    (
        re.compile(rb"(?:samples|images|img|tokens|tok)/s(?:ec)?\b"),
        "a job's own output, with its throughput",
        (
            "How runs of several widths scale: stepscope diagnose --scaling 1=100 8=600 (samples "
            "a second by ranks). Why a step is slow: stepscope run -- python train.py."
        ),
    ),
    (
        re.compile(rb"\b(?:epoch|step|iter(?:ation)?)\b[ :=#]{0,4}\d", re.IGNORECASE),
        "a job's own output, in words of its own",
        (
            "It does not tell what a step's time goes into: stepscope run -- python train.py "
            "records that, and its memory, with nothing edited."
        ),
    ),
)
"""Looked for in what is not JSON."""
BY_SUFFIX = (
    (
        (".nsys-rep", ".qdrep"),
        "a Nsight Systems report",
        "Export it: nsys export --type sqlite FILE, and give what that writes.",
    ),
    (
        (".ncu-rep",),
        "a Nsight Compute report",
        "Export it: ncu --import FILE --csv --page raw > ncu.csv.",
    ),
    (
        (".et",),
        "a Chakra trace in protobuf",
        "Give the JSON that torch.profiler.ExecutionTraceObserver writes.",
    ),
)
SIGN_BYTES = 4096
"""Bytes of the text in which all of these are looked for."""


def detect(source: Source, notes: list[str]) -> tuple[Format, ...]:
    """The formats that the source's bytes are of: one, none where nobody claims it, or several
    where it is a job's output, with NCCL's, the compiler's and the framework's lines anywhere in
    it. A text too long to be looked at whole is noted."""
    name = name_of(source)
    head = head_of(source)
    names = {each.name for each in formats_of(head, name)}
    if _may_be_nccl(source, name) and reader_of(NCCL).is_mine(head, name):
        # A job that NCCL writes into: whatever else its lines look like, it is no table and no
        # trace.
        names = {NCCL} | {each for each in names if _shares_file(BY_NAME[each])}
    if (source.named or names or may_be_log(name)) and _goes_on(head, name, names):
        names |= kinds_in(source, names, notes)
    return tuple(each for each in FORMATS if each.name in names)


def _shares_file(each: Format) -> bool:
    """Lines of it may stand between NCCL's."""
    return each.kind in LOGS or each.is_output


def name_of(source: Source) -> str:
    return PurePosixPath(source.label.replace(os.sep, "/")).name


def head_of(source: Source) -> bytes:
    """The first bytes of the text, decompressed."""
    with closing(opened(source).blocks()) as blocks:
        head = b""
        for block in blocks:
            head += block[: HEAD_BYTES - len(head)]
            if len(head) == HEAD_BYTES:
                break
        return head


def format_of(head: bytes, name: str) -> Format | None:
    """The first format that claims these first bytes; NCCL's logs are looked for apart."""
    return next(
        (
            each
            for each in FORMATS
            if each.name != NCCL and reader_of(each.name).is_mine(head, name)
        ),
        None,
    )


def formats_of(head: bytes, name: str) -> tuple[Format, ...]:
    """The same; and where it is a job's output, what else stands between its lines: the compiler's
    log, the framework's steps."""
    first = format_of(head, name)
    if first is None or first.kind not in LOGS:
        return () if first is None else (first,)
    return tuple(
        each for each in FORMATS if each.kind in LOGS and reader_of(each.name).is_mine(head, name)
    )


def may_be_log(name: str) -> bool:
    """Whether a file of a folder or an archive is named like a log."""
    return (
        LOG_NAME.search(name) is not None
        and not TRACE_NAME.search(name)
        and not ARCHIVE_NAME.search(name)
    )


def _may_be_nccl(source: Source, name: str) -> bool:
    return not TRACE_NAME.search(name) if source.named else may_be_log(name)


def _goes_on(head: bytes, name: str, formats: Iterable[str]) -> bool:
    """Whether what follows the first bytes may tell more of what a file is: a job's output, or a
    text that may be one. That is neither data nor a program, nor words about logs."""
    if len(head) < HEAD_BYTES or head.startswith(b"<") or TRACE_NAME.search(name):
        return False
    is_output = all(BY_NAME[each].is_output for each in formats)
    return is_output and may_be_output(head, name)


def kinds_in(source: Source, formats: Collection[str], notes: list[str]) -> frozenset[str]:
    """The formats of a job's output that the text has lines of, other than these; with a note
    where it is too long to be looked at. Nothing is read here: the readers of the kinds that were
    found do that, each its own lines."""
    missing = {
        each.name: is_in
        for each in FORMATS
        if each.is_output
        and each.name not in formats
        and (is_in := reader_of(each.name).is_in) is not None
    }
    kinds: set[str] = set()
    size, tail = 0, b""
    with closing(opened(source).blocks()) as blocks:
        for block in blocks:
            piece = tail + block
            new = [kind for kind, is_in in missing.items() if is_in(piece)]
            kinds.update(new)
            for kind in new:
                del missing[kind]
            size += len(block)
            if not missing or size >= MAX_BYTES:
                break
            tail = _from_line(piece[-OVERLAP_BYTES:])
    if missing and size >= MAX_BYTES:
        notes.append(_note(source))
    return frozenset(kinds)


def _from_line(tail: bytes) -> bytes:
    """Rest from the first beginning of a line in it: half a line is not known by how it begins."""
    return tail[tail.find(b"\n") + 1 :]


def _note(source: Source) -> str:
    words = (
        f"{source.label}: whose lines it holds was looked for in its first {MAX_BYTES:,} bytes of "
        "text"
    )
    return (
        f"{words}; a kind that begins later is not read: keep the end in a file of its own (tail "
        "-n 100000), and name that too"
    )


def refuse_unknown(source: Source) -> None:
    """FormatError, where what nobody claims is no JSON either, or clearly something else than a
    list of events."""
    run = _run_around(source)
    if run is not None:
        raise FormatError(f"{source.label} is a file of a recorded run. Give the run: {run}")
    head = head_of(source)
    what, instead = _what_is(head[:SIGN_BYTES], source.label)
    if what:
        raise FormatError(f"{source.label} is no trace: it looks like {what}. {instead}")
    if head and not _may_be_json(head):
        raise FormatError(
            f"{source.label} is not a trace, nor another format that stepscope reads. {WANTED}"
        )


def _run_around(source: Source) -> Path | None:
    """The run that a file belongs to, unless it is a trace."""
    path = source.path
    if not isinstance(path, Path) or path.name not in RUN_FILES:
        return None
    return next((folder for folder in list(path.parents)[:2] if is_run(folder)), None)


def _what_is(head: bytes, label: str) -> tuple[str, str]:
    """What the text is, when it is clearly something else, and what to do; two empty strings when
    it may be a trace."""
    if head.startswith(UTF32):
        return "UTF-32 text", "Convert it first: iconv -f UTF-32 -t UTF-8."
    if head.startswith(UTF16):
        return "UTF-16 text", "Convert it first: iconv -f UTF-16 -t UTF-8."
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return "a pickle (a memory snapshot?), and loading one would run code", WANTED
    if is_header(head[:512]):
        return (
            "a tar archive inside the file",
            "Name it .tar, .tar.gz or .tar.zst, and it is read as one.",
        )
    for magic, what, instead in BY_MAGIC:
        if head.startswith(magic):
            return what, instead
    for suffixes, what, instead in BY_SUFFIX:
        if label.lower().endswith(suffixes):
            return what, instead
    if reader_of(NCCL).is_mine(head, label):
        return (
            "a log of NCCL",
            "Name it .log or .txt, and give it alone or beside the traces of the run.",
        )
    is_json = _may_be_json(head)
    if is_json and b'"traceEvents"' in head:
        return "", ""
    if head.lstrip(SPACE).startswith(b"{'"):
        return (
            "a dict as Python prints it",
            "Write it as JSON: json.dump(stats, open('memory_stats.json', 'w')).",
        )
    texts = [(pattern, what, WANTED) for pattern, what in JSON_FIELDS] if is_json else TEXTS
    return next(
        ((what, instead) for pattern, what, instead in texts if pattern.search(head)), ("", "")
    )


def _may_be_json(head: bytes) -> bool:
    """Not a line that begins with a rank, a time or a level in brackets."""
    text = head.lstrip(SPACE)
    return text.startswith((b"{", b"[")) and not BRACKETED.match(text)


@cache
def reader_of(name: str) -> Reader:
    """The reader of a format."""
    return BY_NAME[name].reader()
