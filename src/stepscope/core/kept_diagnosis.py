"""A diagnosis that was kept as JSON, read again."""

from __future__ import annotations

from pathlib import Path

from stepscope.core.codec import decode
from stepscope.core.diagnosis import DiagnosisDocument
from stepscope.errors import FormatError, InputError
from stepscope.protocol.untrusted import read_regular

MAX_BYTES = 256 << 20
TOO_LARGE = 1e12
"""Milliseconds of no step: 31 years."""


def read_diagnosis(path: Path, option: str) -> DiagnosisDocument:
    """The diagnosis in a file that `option` names."""
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        how = "Make one: stepscope diagnose ... --format json > FILE"
        raise InputError(f"{option}: there is no {path}. {how}") from None
    except OSError as problem:
        raise InputError(f"{option}: cannot read {path}: {problem.strerror or problem}") from None
    return decode(data, DiagnosisDocument, f"{option} {path}")


def refuse_impossible(diagnosis: DiagnosisDocument, where: str) -> None:
    """FormatError where a time or a gain is beyond all that could be drawn, or compared."""
    numbers = [diagnosis.step.ms, diagnosis.step.profiled_ms, *diagnosis.ladder]
    numbers += [ms for rank in diagnosis.ranks for ms in rank.parts_ms.values()]
    for finding in diagnosis.findings:
        numbers += [finding.predicted_high, finding.predicted_step_ms]
    if any(number is not None and number >= TOO_LARGE for number in numbers):
        raise FormatError(f"{where} holds a time or a gain that is none. {diagnosis.AGAIN}")
