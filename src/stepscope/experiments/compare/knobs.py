"""The settings of a run, flat, and which of them differ between two."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from stepscope.core.experiments.comparison import Knob
from stepscope.core.run import RunFacts
from stepscope.readers.run_folder.folder import RankRecord, RunRecord

SECTIONS = ("flags", "versions", "environment", "machine")
"""Sections of RUN/rank-N/rank.json whose entries are settings."""
PLAIN = ("python", "world_size", "local_world_size", "backend", "system")
OWN = re.compile(
    r"^environment\.(MASTER_PORT|TORCHELASTIC_RUN_ID|SLURM_JOB_ID|PYTHONPATH|TORCHELASTIC_\w*(ERROR_FILE|RUN_ID|RESTART)\w*)$"
    r"|(^|\.)(pid|perf_ns|wall_ns|uuid|num_objects\w*|tasks_outstanding|free_bytes|load\w*|\w*_free\w*|\w*available\w*)$"
)
"""Settings that differ from run to run by themselves."""
MAX_CHARS = 200
MAX_DEPTH = 4


def knobs_of_run(run: RunRecord) -> dict[str, str]:
    """The first rank's settings, and the command."""
    command = run.metadata.get("command")
    knobs = {"command": " ".join(map(str, command))} if isinstance(command, list) else {}
    return knobs | (_of_rank(run.ranks[0]) if run.ranks else {})


def _of_rank(rank: RankRecord) -> dict[str, str]:
    recorded = rank.metadata
    knobs: dict[str, str] = {}
    for name in SECTIONS:
        _flatten(name, recorded.get(name), knobs)
    for name in PLAIN:
        _flatten(name, recorded.get(name), knobs)
    loaders = recorded.get("loaders")
    if isinstance(loaders, list) and loaders:
        _flatten("loader", loaders[0], knobs)
    _flatten("loader", recorded.get("loader_iter"), knobs)
    for name in ("optimizers", "ddp", "grad_scalers", "models"):
        rows = recorded.get(name)
        if isinstance(rows, list) and rows:
            _flatten(name.removesuffix("s"), rows[0], knobs)
    return {name: value for name, value in knobs.items() if not OWN.search(name)}


def _flatten(name: str, value: Any, into: dict[str, str], depth: int = 0) -> None:
    """`{"a": {"b": 1}}` as `name.a.b = 1`."""
    if isinstance(value, dict):
        if depth < MAX_DEPTH:
            for key, inner in value.items():
                _flatten(f"{name}.{str(key)[:80]}", inner, into, depth + 1)
    elif isinstance(value, bool | int | float | str):
        into[name] = str(value)[:MAX_CHARS]
    elif isinstance(value, list) and all(
        isinstance(item, bool | int | float | str) for item in value
    ):
        into[name] = ", ".join(map(str, value))[:MAX_CHARS]


def knobs_of_facts(run: RunFacts) -> dict[str, str]:
    """What a diagnosis keeps of them."""
    knobs = {"command": " ".join(run.command)} if run.command else {}
    if not run.ranks:
        return knobs
    rank = run.ranks[0]
    _flatten("loader", None if rank.loader is None else asdict(rank.loader), knobs)
    recorded = {
        "threads": rank.threads,
        "flags.cudnn_benchmark": rank.cudnn_benchmark,
        "flags.matmul_tf32": rank.tf32,
        "optimizer": ", ".join(rank.optimizers) or None,
        "model": rank.model,
        "cores": rank.cores,
        "local_world_size": rank.local_ranks,
    }
    for name, value in recorded.items():
        _flatten(name, value, knobs)
    _flatten("ddp", None if rank.ddp is None else dict(rank.ddp), knobs)
    return knobs


def changed_knobs(
    before: Mapping[str, str] | None, after: Mapping[str, str] | None
) -> tuple[Knob, ...]:
    """Settings that differ. Nothing is said of a run whose settings were not recorded."""
    if before is None or after is None:
        return ()
    names = sorted(set(before) | set(after), key=lambda name: (_order(name), name))
    return tuple(
        Knob(name=name, before=before.get(name), after=after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )


def _order(name: str) -> int:
    """What people turn first, what the machine is last."""
    firsts = (
        "command", "loader", "flags", "optimizer", "ddp", "model", "grad_scaler", "environment",
        "versions",
    )  # fmt: skip
    return next(
        (index for index, first in enumerate(firsts) if name.startswith(first)), len(firsts)
    )
