"""Changes of code as a patch file, for a person to apply."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.printing import say
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.diagnosis import Diagnosis, Finding

PATCH_NAMES = (".diff", ".patch")


def refuse_patch(path: Path) -> None:
    """A file that may be the training code is not written over; said before anything is run."""
    if path.exists() and path.suffix not in PATCH_NAMES:
        raise UsageError(
            f"{path} is there already, and --patch writes over files alone that are named "
            f"{' or '.join(PATCH_NAMES)}"
        )


def write_patch(path: Path, run: Path, diagnosis: Diagnosis, findings: Sequence[Finding]) -> None:
    """Writes what these findings change in the code, and says what is not in it, and why."""
    from stepscope.pipeline.code_changes import patch_of
    from stepscope.readers.run_folder.folder import read_run

    patch = patch_of(diagnosis, read_run(run), findings)
    for code, why in patch.left:
        say(f"{code} is not in the patch: {why}")
    if not patch.text:
        say(f"{path} was not written: no line of code can be changed surely")
        return
    try:
        path.write_text(patch.text, encoding="utf-8", newline="")
    except OSError as problem:
        raise UsageError(f"{path} could not be written: {problem.strerror}") from None
    named = shlex.quote(str(path))
    say(f"{named} has {', '.join(patch.codes)}; to apply it: git apply {named}")
