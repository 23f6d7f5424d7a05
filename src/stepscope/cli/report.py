"""The report as one HTML file that opens anywhere.

PATH is what `diagnose` takes: traces, a folder of them, a run that `stepscope run` recorded, what
other tools recorded (`stepscope formats`), beside traces or alone; or a diagnosis that was kept as
JSON, which has no timeline and no tables of kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.printing import note, print_document, put, refuse_empty
from stepscope.errors import UsageError
from stepscope.protocol.untrusted import is_regular, open_regular, read_regular
from stepscope.protocol.whole_write import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.diagnosis import DiagnosisDocument
    from stepscope.report.document.blocks import Document

KEPT = re.compile(rb'"schema"\s*:\s*"stepscope\.')
"""How JSON of ours is recognized. A profile of a job may name our modules, and is none."""
HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    paths: list[str] = declare.paths(
        "PATH", "run, traces, other tools' recordings, or a diagnosis as JSON"
    )
    out: Path = declare.option("-o/--out FILE", "default: report.html", Path, Path("report.html"))
    step_ms: float | None = declare.step_ms()
    roofs: Path | None = declare.option(
        "--roofs FILE", "the machine's measured roofs as JSON (default: datasheets)", Path
    )
    hardware: Path | None = declare.hardware()
    no_cache: bool = declare.no_cache()
    jobs: int | None = declare.jobs()


def run(options: Options) -> int:
    from stepscope.core.timings import followed
    from stepscope.pipeline.page import page_of_recording
    from stepscope.pipeline.recording import Recording
    from stepscope.readers.measured_rates import read_roofs
    from stepscope.report.html import render_page
    from stepscope.report.html.model import page_of, page_of_document

    kept = _kept_diagnosis(options.paths)
    if kept is not None:
        page = page_of_document(kept)
    else:
        rates = None if options.roofs is None else read_roofs(options.roofs)
        with Recording(options.paths, declare.reading_of(options, options.step_ms)) as recording:
            _ = recording.diagnosis  # Reading and judging have bars of their own.
            with followed("drawing", 3) as advance:
                recorded = page_of_recording(recording, rates)
                advance(2)
                page = page_of(recorded)
                advance(3)
    write(render_page(page), options.out)
    note(f"{page['headline']}\n{options.out}")
    return 0 if kept is not None else refuse_empty(recording.diagnosis)


def write(text: str, path: Path) -> None:
    """Whole or not at all: a report that breaks off in the middle is none."""
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder. Name the file: -o {path / 'report.html'}")
        keep(text, path)
    except OSError as problem:
        raise UsageError(
            f"cannot write {path}: {problem.strerror}. Name another file with -o"
        ) from None


def keep(text: str, path: Path) -> None:
    """Whole or not at all; OSError where there is no room, or it may not."""
    # Half characters have no encoding.
    write_whole(path, text.encode("utf-8", "replace"))


def put_or_write(text: str, path: Path | None, *, errors: str = "replace") -> None:
    """Write to the file where one is named, and its name to stderr; else to standard output."""
    if path is None:
        put(text, errors=errors)
        return
    write(text, path)
    note(path)


def put_document(document: Document, path: Path | None) -> None:
    """The same for a document, as text."""
    from stepscope.report.document.terminal import to_text

    if path is None:
        print_document(document)
    else:
        put_or_write(to_text(document), path)


def _kept_diagnosis(paths: Sequence[str]) -> DiagnosisDocument | None:
    """The one file named, where it is a diagnosis as JSON and no trace."""
    from stepscope.core.codec import decode
    from stepscope.core.diagnosis import DiagnosisDocument
    from stepscope.core.kept_diagnosis import MAX_BYTES, refuse_impossible

    path = Path(paths[0])
    if len(paths) != 1 or path.suffix != ".json" or not is_regular(path):
        return None
    try:
        # A trace may have gigabytes: its head says that it is none of ours.
        with open_regular(path) as file:
            if not KEPT.search(file.read(HEAD_BYTES)):
                return None
        data = read_regular(path, MAX_BYTES)
    except OSError:
        return None
    diagnosis = decode(data, DiagnosisDocument, str(path), is_strict=True)
    refuse_impossible(diagnosis, str(path))
    return diagnosis
