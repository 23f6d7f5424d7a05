"""What a trace does not say.

Who this process is, its machine, its environment, and the knobs of the job's live objects.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.describe.environment import environment_notes
from stepscope.capture.describe.flags import flag_notes
from stepscope.capture.describe.knobs import LineOf, find_live_objects, object_notes
from stepscope.capture.describe.machine import machine_notes
from stepscope.capture.describe.model import model_notes
from stepscope.capture.describe.peek import ask, attempt

PACKAGES = {
    "lightning": "lightning", "pytorch_lightning": "pytorch-lightning",
    "transformers": "transformers", "accelerate": "accelerate", "deepspeed": "deepspeed",
    "torchvision": "torchvision", "triton": "triton", "flash_attn": "flash-attn",
    "transformer_engine": "transformer-engine", "apex": "apex", "numpy": "numpy",
}  # fmt: skip
"""Packages worth a version where the job has imported them,
and the names they are installed under."""


def process_notes() -> dict[str, Any]:
    """What is known at the first step."""
    torch = sys.modules["torch"]
    return {
        "pid": os.getpid(),
        "perf_ns": clocks.perf_counter_ns(),
        "wall_ns": clocks.time_ns(),
        "started_ns": attempt(started_ns),
        "python": sys.version.split()[0],
        "host": attempt(socket.gethostname),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "program": os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else None,
        **rank_numbers(torch),
        "versions": version_notes(torch),
        "machine": machine_notes(torch),
        "environment": environment_notes(os.environ),
    }


def started_ns(root: Path = Path("/")) -> int:
    """When this process began, by time.perf_counter_ns; to a hundredth of a second."""
    # The name before it may have blanks and brackets.
    fields = (root / "proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = float((root / "proc/uptime").read_text().split()[0])
    age = since_boot - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return clocks.perf_counter_ns() - round(1e9 * max(age, 0.0))


def live_notes(loader_iter: Any, line_of: LineOf = lambda _: None) -> dict[str, Any]:
    """What the job's objects say.

    `loader_iter` is the iterator that gave the last batch, or None; `line_of` tells which line of
    the training code made an object.
    """
    torch = sys.modules["torch"]
    begun = clocks.perf_counter_ns()
    live = find_live_objects(torch)
    notes = {
        "flags": flag_notes(torch),
        **object_notes(torch, live, loader_iter, line_of),
        **model_notes(torch, live.modules),
        "num_objects": live.num_objects,
        "num_objects_seen": live.num_seen,
        "num_objects_frozen": live.num_frozen,
    }
    notes["look_ns"] = clocks.perf_counter_ns() - begun
    return notes


def rank_numbers(torch: Any) -> dict[str, Any]:
    """Rank, rank on this host and numbers of ranks: as torch.distributed has them,
    else as the launcher says."""
    rank, world = (
        _first("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
        _first("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"),
    )
    backend = None
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
        backend = attempt(distributed.get_backend)
    return {
        "rank": rank if rank is not None else 0,
        "local_rank": _first("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
        "world_size": world if world is not None else 1,
        "local_world_size": _first("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        "backend": None if backend is None else str(backend),
    }


def version_notes(torch: Any) -> dict[str, Any]:
    """Versions of what is loaded already; nothing is imported to ask it."""
    version = getattr(torch, "version", None)
    notes = {
        "torch": str(torch.__version__),
        "cuda": getattr(version, "cuda", None),
        "hip": getattr(version, "hip", None),
    }
    if ask(torch, "cuda.is_initialized"):
        notes["cudnn"] = ask(torch, "backends.cudnn.version")
        notes["nccl"] = _dotted(ask(torch, "cuda.nccl.version"))
    for module, package in PACKAGES.items():
        if module in sys.modules:
            notes[module] = _version(module, package)
    return notes


def _version(module: str, package: str) -> str | None:
    text = vars(sys.modules[module]).get("__version__")
    if isinstance(text, str):
        return text
    return attempt(version, package)  # type: ignore[no-any-return]


def _dotted(version: Any) -> str | None:
    if version is None:
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _first(*names: str) -> int | None:
    """The first of these variables that is a number."""
    for name in names:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return None
