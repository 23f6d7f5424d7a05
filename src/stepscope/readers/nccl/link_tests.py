"""The output of nccl-tests and rccl-tests as a recording: each size's time and bus bandwidth. It
may stand in a log of NCCL (NCCL_DEBUG=INFO), whose lines another reader takes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepscope.core.calibrated import bus_factor
from stepscope.core.recordings.system import LinkRow, LinkTest, SystemRecording, SystemReport
from stepscope.errors import FormatError
from stepscope.readers.nccl.tests import MAX_BYTES, Section, kind_in, kind_of, sections_of
from stepscope.readers.source import Source
from stepscope.readers.whole_file import whole_text

FORMAT = "nccl-tests"
HEADER = re.compile(rb"size\s{1,40}count\s[^\n]{0,200}algbw\s{1,20}busbw")
"""Of every version."""
MAX_ROWS = 4096


def is_mine(head: bytes, _name: str) -> bool:
    return is_in(head)


def is_in(text: bytes) -> bool:
    """Whether the table's header is somewhere in a text."""
    return HEADER.search(text) is not None


def read(sources: Sequence[Source]) -> SystemReport:
    """All files, a recording each."""
    return SystemReport(recordings=tuple(map(_read, sources)))


def _read(source: Source) -> SystemRecording:
    data, problem = whole_text(source, MAX_BYTES, "keep the tests' own lines (grep -v NCCL)")
    name = source.label.replace("\\", "/").rsplit("/", 1)[-1]
    text = data.decode("utf-8", "replace")
    sections = [each for each in sections_of(text, kind_in(name.casefold())) if each.rows]
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
