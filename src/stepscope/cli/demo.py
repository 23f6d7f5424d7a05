"""Diagnose a real trace that ships with stepscope: needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from stepscope.cli import options as declare
from stepscope.cli.printing import print_diagnosis

TRACE = "demo.pt.trace.json.gz"
STEP_MS = 65.48
"""The step time of the recorded run with no profiler attached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    format: str = declare.style((*declare.FORMATS, "brief"))
    verbose: bool = declare.verbose()


def run(options: Options) -> int:
    from stepscope.pipeline.options import Options as ReadingOptions
    from stepscope.pipeline.recording import diagnose

    with resources.as_file(resources.files("stepscope") / "data" / TRACE) as path:
        diagnosis = diagnose([path], ReadingOptions(step_ms=STEP_MS, use_cache=False))
    print_diagnosis(
        diagnosis, options.format, whole=None if options.verbose else "stepscope demo -v"
    )
    return 0
