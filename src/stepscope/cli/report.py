"""The report as one HTML file that opens anywhere.

PATH is what `diagnose` takes: traces, a folder of them, a run that `stepscope run` recorded, what
other tools recorded (`stepscope formats`), beside traces or alone; or a diagnosis that was kept as
JSON, which has no timeline and no tables of kernels.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.diagnose import add_hardware, num_processes, options_of, step_time
from stepscope.cli.printing import note, print_document, put
from stepscope.protocol.untrusted import is_regular, read_regular

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.contract.diagnosis import DiagnosisContract
    from stepscope.report.document.blocks import Document

KEPT = re.compile(rb'"schema"\s*:\s*"stepscope\.')
"""How JSON of ours is told. A profile of a job may name our modules, and is none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="run, traces, other tools' recordings, or a diagnosis as JSON",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="default: report.html",
    )
    parser.add_argument(
        "--step-ms",
        type=step_time,
        metavar="X",
        help="the step time without a profiler attached, in ms",
    )
    parser.add_argument(
        "--roofs",
        type=Path,
        metavar="FILE",
        help="the machine's measured roofs as JSON (default: datasheets)",
    )
    add_hardware(parser)
    parser.add_argument(
        "--no-cache", action="store_true", help="neither read nor write the columnar cache"
    )
    parser.add_argument(
        "--jobs",
        type=num_processes,
        metavar="N",
        help="processes to use for several files (default: one per core)",
    )


def run(arguments: argparse.Namespace) -> int:
    from stepscope.pipeline.page import page_of_recording
    from stepscope.pipeline.recording import Recording
    from stepscope.readers.system.measured_rates import read_roofs
    from stepscope.report.html import render_page
    from stepscope.report.html.model import page_of, page_of_document

    kept = _kept_diagnosis(arguments.paths)
    if kept is not None:
        page = page_of_document(kept)
    else:
        roofs = None if arguments.roofs is None else read_roofs(arguments.roofs)
        options = replace(options_of(arguments), step_ms=arguments.step_ms)
        with Recording(arguments.paths, options) as recording:
            page = page_of(page_of_recording(recording, roofs))
    write(render_page(page), arguments.out)
    note(f"{page['headline']}\n{arguments.out}")
    return 0


def write(text: str, path: Path) -> None:
    """Whole or not at all: a report that breaks off in the middle is none."""
    from stepscope.errors import UsageError

    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name the file: -o {path / 'report.html'}")
    part = path.with_name(f".{path.name}.part")
    try:
        # Half characters have no encoding.
        part.write_bytes(text.encode("utf-8", "replace"))
        part.replace(path)
    except OSError as problem:
        part.unlink(missing_ok=True)
        raise UsageError(
            f"cannot write {path}: {problem.strerror}. Name another file with -o"
        ) from None


def put_or_write(text: str, path: Path | None, *, errors: str = "replace") -> None:
    """To the file where one is named, which is then told; else to standard output."""
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


def _kept_diagnosis(paths: Sequence[str]) -> DiagnosisContract | None:
    """The one file named, where it is a diagnosis as JSON and no trace."""
    from stepscope.core.contract.codec import decode
    from stepscope.core.contract.diagnosis import MAX_BYTES, DiagnosisContract, refuse_impossible

    path = Path(paths[0])
    if len(paths) != 1 or path.suffix != ".json" or not is_regular(path):
        return None
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError:
        return None
    if not KEPT.search(data[:4096]):
        return None
    diagnosis = decode(data, DiagnosisContract, str(path), is_strict=True)
    refuse_impossible(diagnosis, str(path))
    return diagnosis
