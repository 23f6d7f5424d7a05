"""What was proven of findings, as `fix` and `verify` kept it beside the runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from stepscope.core.codec import decode
from stepscope.core.experiments.experiment import Verified
from stepscope.core.experiments.fixed import KEPT, Fixed
from stepscope.errors import StepscopeError
from stepscope.protocol.run_folder import RUN_FILE
from stepscope.protocol.untrusted import read_json_object, read_regular

FIX_FILE, VERIFICATION_FILE = "fix.json", "verification.json"
MAX_BYTES = 16 << 20
SOURCE = re.compile(r"^the diagnosis \((.*)\)$")
"""Source of a prediction: the code of the finding whose fix was applied."""


class Proof(NamedTuple):
    """Whether a finding's fix was proven to make this command faster."""

    command: tuple[str, ...]
    code: str
    is_proven: bool
    speedup: float | None


def proofs_of(folder: Path) -> tuple[Proof, ...]:
    """Proofs of a folder of trials; read again where its results were written again."""
    made: list[Proof] = []
    for name in (FIX_FILE, VERIFICATION_FILE):
        try:
            state = (folder / name).lstat()
        except OSError:
            continue
        made += _read(folder / name, state.st_mtime_ns, state.st_size)
    return tuple(made)


@lru_cache(maxsize=256)
def _read(path: Path, _changed_ns: int, _size: int) -> tuple[Proof, ...]:
    try:
        data = read_regular(path, MAX_BYTES)
        if path.name == FIX_FILE:
            return tuple(_of_fix(decode(data, Fixed, str(path))))
        return tuple(_of_verification(path.parent, decode(data, Verified, str(path))))
    except (OSError, StepscopeError):
        return ()


def _of_fix(fixed: Fixed) -> Iterator[Proof]:
    for attempt in fixed.attempts:
        verified = attempt.verified
        if verified is not None and verified.speedup is not None:
            is_proven = attempt.outcome == KEPT
            yield Proof(fixed.command, attempt.code, is_proven, verified.speedup.value)


def _of_verification(folder: Path, verified: Verified) -> Iterator[Proof]:
    """Proof of a verification that applied a finding's fix: the command is that of its runs."""
    if verified.prediction is None or verified.speedup is None:
        return
    for file in sorted(folder.glob(f"*/{RUN_FILE}"))[:1]:
        command = read_json_object(file).get("command")
        if isinstance(command, list):
            words = tuple(map(str, command))
            code = SOURCE.sub(r"\1", verified.prediction.source)
            yield Proof(words, code, verified.is_gain, verified.speedup.value)
