"""What a run that stepscope recorded lacks, said in the options of `stepscope run`."""

from __future__ import annotations

import re

from msgspec.structs import replace

from stepscope.core.diagnosis import Diagnosis

OPTIONS = (
    (
        "with_stack=True in the profiler records them, and slows the host more",
        "rerun with --stacks, which slows the host more",
    ),
    ("record with profile_memory=True and record_shapes=True", "rerun with --memory"),
    ("Record with_stack=True", "Rerun with --stacks"),
    ("profile with profile_memory=True", "rerun with --memory"),
    ("record with profile_memory=True", "rerun with --memory"),
    ("profile_memory=True", "--memory"),
    ("with_stack=True", "--stacks"),
    ("torch.profiler.schedule(wait=1, warmup=1, active=3)", "rerun with --steps 3"),
)
"""The profiler's own argument, and ours; the longest wording first. Shapes and both activities are
always recorded."""
_ANY = re.compile("|".join(re.escape(words) for words, _ in OPTIONS))
_OURS = dict(OPTIONS)


def in_run_options(diagnosis: Diagnosis) -> Diagnosis:
    """The same with our options in place of the profiler's, which the user of `stepscope run` does
    not call."""
    if diagnosis.facts.run is None:
        return diagnosis
    findings = tuple(
        replace(
            finding,
            action=_ours(finding.action),
            evidence=tuple(map(_ours, finding.evidence)),
        )
        for finding in diagnosis.findings
    )
    abstentions = tuple(replace(each, needs=_ours(each.needs)) for each in diagnosis.abstentions)
    ranks = tuple(
        replace(rank, notes=tuple(map(_ours, rank.notes))) for rank in diagnosis.facts.ranks
    )
    return replace(
        diagnosis,
        findings=findings,
        abstentions=abstentions,
        notes=tuple(map(_ours, diagnosis.notes)),
        facts=replace(diagnosis.facts, ranks=ranks),
    )


def _ours(text: str) -> str:
    return _ANY.sub(lambda match: _OURS[match[0]], text)
