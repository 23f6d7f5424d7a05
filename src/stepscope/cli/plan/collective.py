"""What `plan --collective KIND --bytes SIZE --ranks N` does."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.plan.options import Output
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.planner.cluster import Cluster
    from stepscope.planner.collective import Asked, Measured

USUAL = "H100"
OWN = "NCCL's own choice"


def run_collective(arguments: argparse.Namespace, output: Output) -> int:
    from stepscope.cli.report import put_document, put_or_write
    from stepscope.planner.collective import Asked, advice, collective
    from stepscope.report.plan.collective import collective_document, collective_json

    if arguments.model or arguments.emit or arguments.check:
        raise UsageError("--collective is of no model: leave out --model, --emit and --check")
    if arguments.bytes is None:
        raise UsageError("--collective needs a size: --bytes 100MB")
    if output.format == "html":
        raise UsageError("--collective has text and JSON: leave out --format html")
    cluster, notes = _cluster(arguments)
    asked = Asked(
        kind=arguments.collective,
        size_bytes=arguments.bytes,
        num_ranks=arguments.ranks or cluster.num_devices,
    )
    result = collective(cluster, asked)
    measured = read_measured(arguments, asked, cluster.devices_per_node)
    own = next((each for each in measured if each.name == OWN), None)
    others = [each for each in measured if each is not own]
    said = advice(own, others)
    shown = (cluster, result, measured, said, (*notes, *cluster.notes))
    if output.format == "json":
        put_or_write(collective_json(*shown) + "\n", output.out)
    else:
        put_document(collective_document(*shown), output.out)
    return 0


def _cluster(arguments: argparse.Namespace) -> tuple[Cluster, tuple[str, ...]]:
    """By datasheet: what was measured stands beside it, and is not mixed in."""
    from stepscope.planner.cluster_parse import parse_cluster

    if arguments.cluster is not None:
        return parse_cluster(arguments.cluster), ()
    if arguments.ranks is None:
        raise UsageError("--collective needs --ranks, or a --cluster that says how many there are")
    word = f"{arguments.ranks}x{USUAL}"
    return parse_cluster(word), (f"no --cluster was given: {word}",)


def read_measured(
    arguments: argparse.Namespace, asked: Asked, per_node: int
) -> tuple[Measured, ...]:
    """NCCL's own choice from --hardware, others from --measured ALGO=FILE."""
    from stepscope.planner.collective import measured_of
    from stepscope.readers.system.hardware_file import read_hardware

    files = [] if arguments.hardware is None else [(OWN, arguments.hardware)]
    for word in arguments.measured:
        name, is_given, path = word.partition("=")
        plain = name.replace("/", "").replace("_", "").isalnum() and len(name) <= 40
        if not is_given or not path or not plain:
            raise UsageError(f"--measured is ALGO=FILE, such as Tree=tree.json, not {word[:80]!a}")
        files.append((name, Path(path)))
    measured = []
    for name, path in files:
        fit = measured_of(name, read_hardware(path).collective_fits, asked, per_node)
        if fit is None:
            raise UsageError(
                f"{path} has no {asked.kind} over such a group; `stepscope calibrate --ranks "
                f"{asked.num_ranks}` measures it"
            )
        measured.append(fit)
    return tuple(measured)
