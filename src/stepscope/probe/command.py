"""Time operators here, as they ran and as a fix would have them.

RUN is a folder that `stepscope run` made, or a trace, on the same kind of device as this machine's.
Its heaviest operators are timed as they were called and as each finding would have them: in TF32 or
16 bits, with channels last, with cuDNN's trials, with other attention, with a fused optimizer. What
is measured takes the model's place in the gains, and is kept: a second run of the same model times
only what is new. With --script OP nothing is timed here: it prints a file of Python that times that
operator by itself, for a bug report.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.options import int_in_range
from stepscope.cli.printing import note, print_document, put

if TYPE_CHECKING:
    from collections.abc import Sequence

BUDGET_S = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    paths: list[str] = declare.paths("RUN", "the run or trace whose operators are timed")
    step_ms: float | None = declare.step_ms()
    budget_s: int = declare.option(
        "--budget SECONDS",
        f"for all timing (default: {BUDGET_S})",
        int_in_range("a number of seconds: 1 to 3600", 1, 3600),
        BUDGET_S,
    )
    python: str | None = declare.option(
        "--python FILE", "the Python whose torch is timed (default: the run's own, else this one)"
    )
    script: str | None = declare.option(
        "--script OP", "print a file that times this operator by itself: mm, or convolution"
    )


def run(options: Options) -> int:
    from stepscope.pipeline.options import Options as ReadingOptions
    from stepscope.probe.probing import judge, probe
    from stepscope.probe.report import probe_document

    reading = ReadingOptions(use_cache=False, step_ms=options.step_ms)
    judged = judge(options.paths, reading)
    if options.script is not None:
        from stepscope.probe.script import script_of

        put(script_of(options.script, judged))
        return 0
    probed = None
    if judged.cases:
        note(f"timing {len(judged.cases)} cases for up to {options.budget_s} s")
        python = options.python or recorded_python(options.paths)
        probed = probe(judged, python, options.budget_s)
    after = judge(options.paths, reading) if probed is not None else judged
    print_document(probe_document(judged, probed, after.diagnosis))
    return 0


def recorded_python(paths: Sequence[str]) -> str:
    """The Python that the run's command starts, where this user made the run here."""
    from stepscope.errors import StepscopeError
    from stepscope.probe.process import python_of
    from stepscope.protocol.made_here import doubt
    from stepscope.protocol.run_folder import is_run
    from stepscope.readers.run_folder.folder import read_run

    for path in map(Path, paths):
        try:
            metadata = read_run(path).metadata if is_run(path) else {}
        except StepscopeError:
            continue
        command = metadata.get("command")
        if isinstance(command, list) and command and doubt(path, metadata) is None:
            return python_of([str(word) for word in command])
    return sys.executable
