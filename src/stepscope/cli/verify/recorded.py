"""What the last recorded run of the same command proposed for a finding: its own values, not those
for any job on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stepscope.core.kept_diagnosis import read_diagnosis
from stepscope.errors import StepscopeError
from stepscope.experiments.fix_values import fixes
from stepscope.experiments.fixing import settings_for
from stepscope.protocol.run_folder import RUN_FILE, RUNS
from stepscope.protocol.secrets import masked_words
from stepscope.protocol.settings import Value
from stepscope.protocol.untrusted import read_json_object
from stepscope.readers.run_folder.kept_runs import begun_ns, run_folders

DIAGNOSIS = "diagnosis.json"
MAX_LOOKED = 20
"""Runs, the latest first: older ones are of another state of the job."""


def recorded_fixes(
    code: str, command: Sequence[str], folder: Path | None = None
) -> tuple[Mapping[str, Value] | None, str]:
    """What to try for the finding, and the run that says so; empty where no run of this command
    has it."""
    runs = sorted(run_folders(folder or Path(RUNS)), key=begun_ns, reverse=True)
    wanted = list(masked_words(command))
    for run in runs[:MAX_LOOKED]:
        if read_json_object(run / RUN_FILE).get("command") != wanted:
            continue
        try:
            read = read_diagnosis(run / DIAGNOSIS, "--apply")
        except StepscopeError:
            continue
        found = next((finding for finding in read.findings if finding.code == code), None)
        if found is not None:
            return settings_for(found), str(run)
    return fixes(code), ""
