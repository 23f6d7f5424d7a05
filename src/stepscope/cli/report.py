"""The report as one HTML file that opens anywhere.

PATH is what `diagnose` takes: traces, a folder of them, a run that `stepscope run` recorded, what other tools recorded
(`stepscope formats`), beside traces or alone; or a diagnosis that was kept as JSON, which has no timeline and no tables of
kernels.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.diagnose import add_hardware, diagnose_paths, hardware_file, num_processes, step_time
from stepscope.cli.printing import note
from stepscope.errors import FormatError
from stepscope.untrusted import is_regular, parse_json, read_regular

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analyses.intervals import Intervals
    from stepscope.core.diagnosis import Diagnosis
    from stepscope.core.facts import RankFacts
    from stepscope.core.hardware import Roofs
    from stepscope.readers.source import Source

MAX_DIAGNOSIS_BYTES = 256 << 20
KEPT = re.compile(rb'"schema"\s*:\s*"stepscope\.')
"""How JSON of ours is told. A profile of a job may name our modules, and is none."""
MAX_RANKS_READ_AGAIN = 8
"""To draw when one of them waited for the others."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="run, traces, other tools' recordings, or a diagnosis as JSON")
    parser.add_argument("-o", "--out", type=Path, default=Path("report.html"), metavar="FILE", help="default: report.html")
    parser.add_argument("--step-ms", type=step_time, metavar="X", help="the step time without a profiler attached, in ms")
    parser.add_argument("--roofs", type=Path, metavar="FILE", help="the machine's measured roofs as JSON (default: datasheets)")
    add_hardware(parser)
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the columnar cache")
    parser.add_argument(
        "--jobs", type=num_processes, metavar="N", help="processes to use for several files (default: one per core)"
    )


def run(arguments: argparse.Namespace) -> int:
    from stepscope.readers.roofs import read_roofs
    from stepscope.report.html import render_page

    kept = _kept_diagnosis(arguments.paths)
    if kept is not None:
        from stepscope.report.html.model import page_of_contract

        page = page_of_contract(kept)
    else:
        roofs = None if arguments.roofs is None else read_roofs(arguments.roofs)
        diagnosis = diagnose_paths(
            arguments.paths,
            step_ms=arguments.step_ms,
            use_cache=not arguments.no_cache,
            jobs=arguments.jobs,
            hardware=arguments.hardware,
        )
        roofs = roofs or given_roofs(diagnosis) or calibrated_roofs(diagnosis, arguments.hardware)
        page = page_for(diagnosis, arguments.paths, use_cache=not arguments.no_cache, roofs=roofs)
    write(render_page(page), arguments.out)
    note(f"{page['headline']}\n{arguments.out}")
    return 0


def given_roofs(diagnosis: Diagnosis) -> Roofs | None:
    """Of a file of measured rates among what was named, where it is of the run's device."""
    beside, ranks = diagnosis.facts.beside, diagnosis.facts.ranks
    rates = () if beside is None or beside.system is None else beside.system.rates
    device = (diagnosis.facts.median_rank.device_name or "").strip().casefold() if ranks else ""
    return next((one.roofs for one in rates if device and one.roofs.device.strip().casefold() == device), None)


def calibrated_roofs(diagnosis: Diagnosis, given: Path | None) -> Roofs | None:
    """The hardware file's roofs, where there is one and it was measured on the device of the run."""
    from stepscope.readers.hardware_file import read_hardware

    path = hardware_file(given)
    if path is None or not diagnosis.facts.ranks:
        return None
    found = read_hardware(path)
    return found.roofs(f"measured, {path.name}") if found.is_of(diagnosis.facts.median_rank.device_name) else None


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
        raise UsageError(f"cannot write {path}: {problem.strerror}. Name another file with -o") from None


def page_for(diagnosis: Diagnosis, paths: Sequence[str], *, use_cache: bool, roofs: Roofs | None = None) -> dict[str, Any]:
    """The page with the timeline of the median rank, whose trace is read once more, and the run's curves."""
    from dataclasses import asdict

    from stepscope.analyses.curves import memory_curve, peak_memory, run_curves
    from stepscope.analyses.timeline import timeline_of
    from stepscope.readers.inputs import find_sources
    from stepscope.readers.sniff import read_trace
    from stepscope.report.html.model import page_of
    from stepscope.report.timeline_json import timeline_values

    timeline, curves, peaks = None, {}, {}
    facts = diagnosis.facts.median_rank if diagnosis.facts.ranks else None
    with find_sources(paths) as found:
        if found.run is not None:
            curves, peaks = run_curves(found.run), peak_memory(found.run)
        mine = [source for source in found.sources if facts is not None and source.label == facts.path]
        if facts is not None and (mine or len(found.sources) == 1):
            trace = read_trace((mine or list(found.sources))[0], use_cache=use_cache)
            waits = _waits(found.sources, facts, use_cache=use_cache) if facts.partition and facts.partition.waits_split else None
            drawn = timeline_of(trace, facts, waiting=waits)
            timeline = None if drawn is None else timeline_values(drawn)
            memory = memory_curve(trace, facts)
            curves = ({} if memory is None else {"step-memory": memory}) | curves
    return page_of(diagnosis, timeline, {name: asdict(curve) for name, curve in curves.items()}, peaks, roofs)


def _waits(sources: Sequence[Source], facts: RankFacts, *, use_cache: bool) -> Intervals | None:
    """When the rank waited for others; None in a job whose ranks are too many to be read once more."""
    from dataclasses import replace

    from stepscope.analyses.ledger import ledger_of
    from stepscope.analyses.matching import match
    from stepscope.analyses.survey import survey
    from stepscope.analyses.waits import waiting
    from stepscope.readers.inputs import assign_ranks
    from stepscope.readers.sniff import read_trace

    if len(sources) > MAX_RANKS_READ_AGAIN:
        return None
    traces = [read_trace(source, use_cache=use_cache) for source in sources]
    ranks, _ = assign_ranks([trace.meta for trace in traces])
    ledgers = [replace(ledger_of(survey(trace, None), rank), rank=rank) for trace, rank in zip(traces, ranks, strict=True)]
    mine = [ledger for ledger in ledgers if ledger.rank == facts.rank and len(ledger)]
    return waiting(mine[0], match([ledger for ledger in ledgers if len(ledger)])) if mine else None


def _kept_diagnosis(paths: Sequence[str]) -> dict[str, Any] | None:
    """The one file named, where it is a diagnosis as JSON and no trace."""
    path = Path(paths[0])
    if len(paths) != 1 or path.suffix != ".json" or not is_regular(path):
        return None
    try:
        data = read_regular(path, MAX_DIAGNOSIS_BYTES)
    except OSError:
        return None
    if not KEPT.search(data[:4096]):
        return None
    try:
        diagnosis = parse_json(data, is_strict=True)
    except ValueError as problem:
        raise FormatError(f"{path} is a diagnosis that cannot be read: {problem}. Diagnose its traces again") from None
    return diagnosis if isinstance(diagnosis, dict) else None
