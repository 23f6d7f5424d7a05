"""What `plan --emit` writes: files with their text, the line that starts them, and notes."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

import msgspec
from msgspec import Struct

from stepscope.errors import UsageError
from stepscope.plan.cluster import Cluster
from stepscope.plan.contract.launch import LaunchFile
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout
from stepscope.plan.layout_words import spelled_out

LAUNCH = "launch.sh"
SCRIPT = "train.py"
SETTINGS = "layout.json"
WIDTH = 72
STARTS = ("torchrun ", "deepspeed ")
"""Lines that may be long and hold no text in quotes with spaces."""
FlagPairs = Iterable[tuple[str, object]]
"""Flags with their values; True is a flag without one."""


class Launch(Struct, frozen=True, kw_only=True):
    """All that starts one layout under one framework."""

    target: str
    layout: str
    command: str
    """The line that starts it on one node."""
    files: tuple[LaunchFile, ...]
    notes: tuple[str, ...] = ()
    """What is left to the reader."""


def refuse(target: str, layout: Layout, reasons: Sequence[str], instead: str = "") -> None:
    """Raise where a layout cannot be expressed there; nothing where there is no reason."""
    if not reasons:
        return
    faults = "; ".join(reasons)
    hint = f". {instead}" if instead else ""
    raise UsageError(f"{layout} cannot be written for {target}: {faults}{hint}")


def cuts_beyond_data(layout: Layout) -> list[str]:
    """A sentence for each way in which the model itself is cut."""
    words = {
        "tp": f"tp{layout.tp} cuts layers over tensor ranks",
        "pp": f"pp{layout.pp} cuts the model into stages",
        "cp": f"cp{layout.cp} cuts sequences over context ranks",
        "ep": f"ep{layout.ep} spreads experts over ranks",
    }
    return [text for name, text in words.items() if getattr(layout, name) > 1]


def torchrun_line(cluster: Cluster, script: str, arguments: Sequence[str] = ()) -> str:
    """The line for one node; on several, each is told its peers by the environment."""
    words = ["torchrun"]
    if cluster.num_nodes == 1:
        words += ["--standalone", f"--nproc-per-node={cluster.devices_per_node}"]
    else:
        words += [
            f"--nnodes={cluster.num_nodes}",
            f"--nproc-per-node={cluster.devices_per_node}",
            "--rdzv-backend=c10d",
            '--rdzv-endpoint="$MASTER_ADDR:${MASTER_PORT:-29500}"',
            '--rdzv-id="${JOB_ID:-planned}"',
        ]
    return " ".join([*words, shlex.quote(script), *arguments])


def broken(command: str) -> tuple[str, ...]:
    """A long line over several, as a shell reads them."""
    lines, line = [], ""
    for word in command.split(" "):
        if line and len(line) + len(word) > WIDTH:
            lines.append(f"{line} \\")
            line = f"  {word}"
        else:
            line = f"{line} {word}" if line else word
    return (*lines, line)


def shell_file(
    job: TrainingJob, layout: Layout, lines: Sequence[str], *, is_on_each: bool = True
) -> LaunchFile:
    """A script for bash that stops at the first failure and says what it starts, on each node or
    once for all."""
    head = ["#!/usr/bin/env bash", *about(job, layout), "set -euo pipefail"]
    if job.cluster.num_nodes > 1 and not is_on_each:
        head.append("# Run this on one node: it reaches the others by ssh.")
    elif job.cluster.num_nodes > 1:
        head += [
            "# Run this on every node.",
            ': "${MASTER_ADDR:?set MASTER_ADDR to the first node}"',
        ]
    body = [
        part for line in lines for part in (broken(line) if line.startswith(STARTS) else (line,))
    ]
    return LaunchFile(name=LAUNCH, text="\n".join([*head, *body, ""]), is_executable=True)


def arguments_file(name: str, flags: FlagPairs) -> LaunchFile:
    """Flags as an array of the shell, for a script to source."""
    lines = [
        f"  --{flag}" if value is True else f"  --{flag} {_quoted(value)}" for flag, value in flags
    ]
    text = "\n".join(["# Sourced by launch.sh.", "ARGUMENTS=(", *lines, ")", ""])
    return LaunchFile(name=name, text=text)


def _quoted(value: object) -> str:
    words = value if isinstance(value, tuple) else (value,)
    return " ".join(shlex.quote(str(word)) for word in words)


def about(job: TrainingJob, layout: Layout) -> list[str]:
    """Comment lines that say what was planned."""
    cluster = _comment(job.cluster.name)
    return [
        f"# {_comment(job.model.name)} on {cluster}, {layout}.",
        *(f"# {line}" for line in textwrap.wrap(spelled_out(layout), WIDTH)),
        f"# {job.global_batch} sequences of {job.seq_len} tokens a step, {job.precision}.",
    ]


def _comment(text: str) -> str:
    """A name that may be a stranger's, on one line."""
    return " ".join(text.split())[:120]


def json_file(name: str, value: Any) -> LaunchFile:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return LaunchFile(name=name, text=f"{text}\n")


def script_file() -> LaunchFile:
    """The training script that is written beside the settings it reads."""
    package = resources.files("stepscope.plan.launch.script")
    return LaunchFile(name=SCRIPT, text=package.joinpath(SCRIPT).read_text("utf-8"))
