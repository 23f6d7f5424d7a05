"""Reads what nccl-tests and rccl-tests print: all_reduce_perf and the like, older headers and
newer, several tests in one file.

    # Collective test starting: all_reduce_perf
    # nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 ...
    #  Rank  0 Group  0 Pid  12345 on  node-a device  0 [0x07] NVIDIA A100-SXM4-40GB
    #  size  count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong
       1024    256  float    sum    -1  13.52   0.08   0.13      0  13.51   0.08   0.13    N/A

The first time is out of place, the second in place. Which test it is stands in the newer headers
alone; else a line with the command, or the file's name, or the ratio of bus to algorithm bandwidth
shows it.

It may stand in a log of NCCL (NCCL_DEBUG=INFO), whose lines another reader takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from stepscope.api import FormatError, InputError, Reader, Source, SystemRecording
from stepscope.core.calibrated import CollectivePoint, Timing, bus_factor
from stepscope.core.recordings.system import LinkRow, LinkTest
from stepscope.protocol.untrusted import finite_text, read_regular
from stepscope.readers.whole_file import whole_text

FORMAT = "nccl-tests"
HEADER = re.compile(rb"size\s{1,40}count\s[^\n]{0,200}algbw\s{1,20}busbw")
"""Header of every version."""
MAX_ROWS = 4096
MAX_BYTES = 64 << 20
USUAL_ITERS = 20
TESTS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "sendrecv": "send_recv",
    "send_recv": "send_recv", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather",
    "scatter": "scatter",
}  # fmt: skip
PREFIX = re.compile(r"^\s*(\[[^\]\s]{1,40}\](<std\w{3}>:)?|\d{1,6}:(?=\s))\s?")
"""What mpirun and srun put before each line."""
# Longest first, so that all_reduce is not read as reduce; alltoallv moves uneven parts and is none
# of these.
NAME = re.compile(
    rf"(?<![a-z])({'|'.join(sorted(TESTS, key=len, reverse=True))})(?![a-uw-z])(_perf)?\b"
)
RANK = re.compile(
    r"#?\s*Rank\s+([0-9]{1,9})\s+(?:Group\s+([0-9]{1,9})\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)"
)
ITERS = re.compile(r"(?<!warmup )(?<!agg )\biters:?\s+([0-9]{1,9})")
STARTS = ("# nThread", "# Collective test starting", "# nccl-tests version", "# rccl-tests")
BANDWIDTH = re.compile(r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")

SIZE = re.compile(r"[0-9]{1,18}")
MIN_US = 1e-3
"""The tests print hundredths of a microsecond."""


class NcclTests(Struct, frozen=True, kw_only=True):
    """What the tests measured. Host names stay behind."""

    device: str | None
    num_nodes: int
    points: tuple[CollectivePoint, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class Section:
    """One test: from its header to the next one's."""

    kind: str | None = None
    iters: int = USUAL_ITERS
    hosts: dict[int, str] = field(default_factory=dict)
    """Hosts by rank, of the first group."""
    device: str | None = None
    rows: list[tuple[int, float | None, float | None, float | None]] = field(default_factory=list)
    """Size, microseconds out of place, in place, and bus over algorithm bandwidth."""
    num_wrong: int = 0


def read_nccl_tests(path: Path) -> NcclTests:
    try:
        text = read_regular(path, MAX_BYTES)
    except OSError as problem:
        raise InputError(
            f"cannot read {path}: {problem.strerror or problem}. Give the tests' output alone"
        ) from None
    return parse_nccl_tests(text.decode("utf-8", "replace"), path.name)


def parse_nccl_tests(text: str, name: str) -> NcclTests:
    """`name` is the file's: it may name the test."""
    sections = [section for section in sections_of(text, kind_in(name.casefold())) if section.rows]
    if not sections:
        raise FormatError(
            f"{name} has no line of measured sizes and times as nccl-tests prints them "
            "(all_reduce_perf and the like)"
        )
    points: list[CollectivePoint] = []
    notes: list[str] = []
    for section in sections:
        points += _points(section, name)
        if section.num_wrong:
            notes.append(
                f"{section.kind} in {name}: {section.num_wrong} sizes left out, their results "
                "were wrong"
            )
    device = next((section.device for section in sections if section.device), None)
    num_nodes = max(len(set(section.hosts.values())) for section in sections)
    return NcclTests(
        device=device, num_nodes=max(num_nodes, 1), points=tuple(points), notes=tuple(notes)
    )


def sections_of(text: str, otherwise: str | None) -> list[Section]:
    section = Section(kind=otherwise)
    sections = [section]
    for line in text.splitlines():
        line = PREFIX.sub("", line, count=1).strip()
        named = kind_in(line) if "_perf" in line else None
        if named or (line.startswith(STARTS) and section.rows):
            # A header has several of these lines; a new test begins at the first after rows.
            if section.rows:
                section = Section(kind=otherwise)
                sections.append(section)
            section.kind = named or section.kind
        _take(section, line)
    return sections


def _take(section: Section, line: str) -> None:
    rank = RANK.match(line)
    if rank:
        if int(rank[2] or 0) == 0:
            section.hosts[int(rank[1])] = rank[3]
        section.device = section.device or rank[4].strip()[:100] or None
        return
    if line.startswith("#"):
        match = ITERS.search(line)
        section.iters = max(int(match[1]), 1) if match else section.iters
        return
    words = line.split()
    if len(words) < 11 or not all(SIZE.fullmatch(word) for word in words[:2]):
        return
    # From the end: older headers have no root. time, algbw, busbw, wrong; twice.
    out, inside = words[-8:-4], words[-4:]
    size = int(words[0])
    if any(_number(wrong) not in (0.0, None) for wrong in (out[3], inside[3])) and not _is_error(
        words
    ):
        section.num_wrong += 1
        return
    ratio = next(
        (
            b / a
            for a, b in ((_number(w[1]), _number(w[2])) for w in (out, inside))
            if a and b and a > 1
        ),
        None,
    )
    times = _time(out[0]), _time(inside[0])
    if size > 0 and times != (None, None):
        section.rows.append((size, *times, ratio))


def _is_error(words: list[str]) -> bool:
    """Older tests print the largest difference, which is not zero where sums are rounded (1e-06),
    instead of counting."""
    return "e" in words[-1].casefold() or "e" in words[-5].casefold()


def _points(section: Section, name: str) -> list[CollectivePoint]:
    size, kind = len(section.hosts), kind_of(section, name)
    hosts = len(set(section.hosts.values()))
    tier = "node" if hosts == 1 else "across" if hosts == size else "world"
    points = []
    for size_bytes, out_us, in_us, _ in section.rows:
        both = [value * 1e-6 for value in (out_us, in_us) if value is not None]
        time = Timing(seconds=both[0], low_s=min(both), high_s=max(both), repeats=section.iters)
        points.append(
            CollectivePoint(
                kind=kind,
                backend="nccl",
                tier=tier,
                group_size=size,
                size_bytes=size_bytes,
                time=time,
            )
        )
    return points


def kind_of(section: Section, name: str) -> str:
    """Kind of the test. FormatError where nothing tells, or the ranks are not named."""
    if len(section.hosts) < 2:
        raise FormatError(
            f"{name} does not name its ranks (lines with `# Rank 0 ... on HOST device 0`): keep "
            "the tests' whole header"
        )
    section.kind = section.kind or _guess(section, len(section.hosts))
    if section.kind is None:
        raise FormatError(
            f"{name} does not say which test it is. Name the file for it, as in all_gather_perf.txt"
        )
    return section.kind


def _guess(section: Section, size: int) -> str | None:
    """All-reduce alone has this ratio, with more than two ranks."""
    ratios = sorted(row[3] for row in section.rows if row[3])
    if not ratios or size == 2:
        return None
    return (
        "all_reduce" if abs(ratios[len(ratios) // 2] / (2 * (size - 1) / size) - 1) < 0.03 else None
    )


def kind_in(text: str) -> str | None:
    match = NAME.search(text)
    return TESTS[match[1]] if match else None


def _number(text: str) -> float | None:
    return finite_text(text, 0) if BANDWIDTH.fullmatch(text) else None


def _time(text: str) -> float | None:
    value = _number(text)
    return value if value and MIN_US <= value < 1e12 else None


def is_mine(head: bytes, _name: str) -> bool:
    return is_in(head)


def is_in(text: bytes) -> bool:
    """Whether the table's header is somewhere in a text."""
    return HEADER.search(text) is not None


def read_file(source: Source) -> SystemRecording:
    data, problem = whole_text(source, MAX_BYTES, "keep the tests' own lines (grep -v NCCL)")
    name = source.label.replace("\\", "/").rsplit("/", 1)[-1]
    text = data.decode("utf-8", "replace")
    every = sections_of(text, kind_in(name.casefold()))
    sections = [each for each in every if each.rows or each.num_wrong]
    if not sections:
        raise FormatError(
            f"{source.label} has the header of nccl-tests and no line of measured sizes and "
            "times: keep the whole output"
        )
    notes = [] if problem is None else [f"{source.label}: {problem}"]
    return SystemRecording(
        format=FORMAT,
        paths=(source.label,),
        notes=tuple(notes),
        link_tests=tuple(_test(section, source.label) for section in sections),
    )


def _test(section: Section, label: str) -> LinkTest:
    kind, num_ranks = kind_of(section, label), len(section.hosts)
    rows = []
    for size_bytes, out_us, in_us, _ in sorted(section.rows, key=lambda row: row[0])[:MAX_ROWS]:
        seconds = (out_us if out_us is not None else in_us or 0.0) * 1e-6
        rows.append(
            LinkRow(
                size_bytes=size_bytes,
                seconds=seconds,
                in_place_s=None if in_us is None else in_us * 1e-6,
                bus_bytes_per_s=size_bytes * bus_factor(kind, num_ranks) / seconds,
            )
        )
    return LinkTest(
        path=label,
        kind=kind,
        device=section.device,
        num_ranks=num_ranks,
        num_nodes=max(len(set(section.hosts.values())), 1),
        rows=tuple(rows),
        num_wrong=section.num_wrong,
    )


READER = Reader(is_mine=is_mine, read_file=read_file, is_in=is_in)
