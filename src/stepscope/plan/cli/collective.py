"""What `plan --collective KIND --bytes SIZE --ranks N` does."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli.report import put_document, put_or_write
from stepscope.core.trace import DeviceProperties
from stepscope.errors import UsageError
from stepscope.hardware.lookup import find_spec
from stepscope.plan.cli.options import Options
from stepscope.plan.cluster import Cluster
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.collective import CollectiveRequest, advice, collective, measured_of
from stepscope.plan.contract.collective import Measurement
from stepscope.plan.report.collective import collective_document, collective_json
from stepscope.readers.hardware_file import read_hardware

USUAL = "H100"
OWN = "NCCL's own choice"


def run_collective(options: Options, kind: str) -> int:
    given, output = options.collective, options.output
    if options.model or options.launched.emit or options.launched.check:
        raise UsageError("--collective is of no model: leave out --model, --emit and --check")
    if given.bytes is None:
        raise UsageError("--collective needs a size: --bytes 100MB")
    if output.format == "html":
        raise UsageError("--collective has text and JSON: leave out --format html")
    cluster, notes = _cluster(options)
    asked = CollectiveRequest(
        kind=kind,
        size_bytes=given.bytes,
        num_ranks=given.ranks or cluster.num_devices,
    )
    result = collective(cluster, asked)
    measured = read_measured(options, asked, cluster.devices_per_node)
    own = next((each for each in measured if each.name == OWN), None)
    others = [each for each in measured if each is not own]
    said = advice(own, others, asked.num_ranks)
    shown = (
        cluster,
        result,
        measured,
        said,
        (*notes, *_elsewhere(options, cluster), *cluster.notes),
    )
    if output.format == "json":
        put_or_write(collective_json(*shown) + "\n", output.out)
    else:
        put_document(collective_document(*shown), output.out)
    return 0


def _cluster(options: Options) -> tuple[Cluster, tuple[str, ...]]:
    """Cluster by datasheet: what was measured stands beside it, and is not mixed in."""
    if options.cluster is not None:
        return parse_cluster(options.cluster), ()
    if options.collective.ranks is None:
        raise UsageError("--collective needs --ranks, or a --cluster that says how many there are")
    word = f"{options.collective.ranks}x{USUAL}"
    return parse_cluster(word), (f"no --cluster was given: {word}",)


def _elsewhere(options: Options, cluster: Cluster) -> tuple[str, ...]:
    """Note that a file is of another device than the cluster's: its links are another machine's."""
    if options.hardware is None:
        return ()
    machine = read_hardware(options.hardware).machine
    properties = DeviceProperties(
        index=0,
        name=machine.device,
        memory_bytes=machine.memory_bytes,
        num_sms=machine.num_sms,
        compute_capability=None,
        warp_size=None,
    )
    spec = find_spec(properties) if machine.kind != "cpu" else None
    if machine.kind != "cpu" and (spec is None or spec.key == cluster.device.key):
        return ()
    words = (
        f"{options.hardware} was measured on {machine.device} ({machine.kind}), not on "
        f"{cluster.device.name}: it says nothing of this cluster's links"
    )
    return (words,)


def read_measured(
    options: Options, asked: CollectiveRequest, per_node: int
) -> tuple[Measurement, ...]:
    """NCCL's own choice from --hardware, others from --measured ALGO=FILE."""
    files: list[tuple[str, Path]] = []
    if options.hardware is not None:
        files.append((OWN, options.hardware))
    for word in options.collective.measured:
        name, is_given, file = word.partition("=")
        plain = name.replace("/", "").replace("_", "").isalnum() and len(name) <= 40
        if not is_given or not file or not plain:
            raise UsageError(f"--measured is ALGO=FILE, such as Tree=tree.json, not {word[:80]!a}")
        files.append((name, Path(file)))
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
