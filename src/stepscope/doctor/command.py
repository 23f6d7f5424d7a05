"""What this machine allows a profiler, and what to do about it.

Files of the kernel and of the driver are read; nothing is changed and nothing is run. Exit code 0
when runs can be recorded here, else 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.cli import options as declare
from stepscope.cli.printing import print_document
from stepscope.protocol.run_folder import RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    out: Path = declare.option(
        "--out DIR", f"where runs would be kept (default: {RUNS}/)", Path, Path(RUNS)
    )
    format: str = declare.style(("text", "markdown"))


def run(options: Options) -> int:
    from stepscope.doctor.checks import machine_checks
    from stepscope.doctor.view import doctor_document

    checks = machine_checks(options.out)
    print_document(doctor_document(checks), options.format)
    return int(any(check.is_needed and check.state == "no" for check in checks))
