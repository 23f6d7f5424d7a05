"""The contract `stepscope.diagnosis/1` as it is read back: one decoder for whoever takes a diagnosis in JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stepscope.core.comms_facts import CommsFacts
from stepscope.core.diagnosis import Abstention, Finding, ReplayCheck, StepTime, Verdict
from stepscope.core.json_decode import convert_json
from stepscope.core.run import RunFacts
from stepscope.errors import FormatError, InputError
from stepscope.protocol.untrusted import read_regular

SCHEMA = "stepscope.diagnosis/1"
MAX_BYTES = 256 << 20


class ContractRank(msgspec.Struct):
    """One rank, as the contract has it."""

    rank: int
    partition_ms: dict[str, float | None] | None
    gpu_busy_ms: float | None
    mfu: float | None = None


class DiagnosisContract(msgspec.Struct):
    """A diagnosis as it was kept. Fields that later versions added have a default: what an older one wrote still opens."""

    schema: str
    verdict: Verdict
    step: StepTime
    replay: ReplayCheck | None
    ranks: list[ContractRank]
    findings: list[Finding]
    notes: list[str]
    ladder: list[float] = []
    abstentions: list[Abstention] = []
    run: RunFacts | None = None
    comms: CommsFacts | None = None


def decode_contract(text: str | bytes, where: str) -> DiagnosisContract:
    """FormatError where it is no diagnosis. Half characters, which names may hold, are let by; NaN was not measured."""
    again = "Diagnose its traces again"
    try:
        told = convert_json(text, DiagnosisContract)
    except ValueError as problem:
        raise FormatError(f"{where} is not a diagnosis of the schema {SCHEMA!r}: {problem}. {again}") from None
    if told.schema != SCHEMA:
        raise FormatError(f"{where} has the schema {told.schema[:80]!r}; this version reads {SCHEMA!r}. {again}")
    return told


def read_contract(path: Path, option: str) -> DiagnosisContract:
    """The diagnosis in a file that `option` names."""
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        raise InputError(f"{option}: there is no {path}. Make one: stepscope diagnose ... --format json > FILE") from None
    except OSError as problem:
        raise InputError(f"{option}: cannot read {path}: {problem.strerror or problem}") from None
    return decode_contract(data, f"{option} {path}")
