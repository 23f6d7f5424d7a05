"""The job that `plan` is asked about: the model, the cluster, and what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from stepscope.core.calibrated import Calibrated
from stepscope.core.comms import CommsFacts
from stepscope.core.facts import KernelRow
from stepscope.errors import InputError, UsageError
from stepscope.hardware.links import Tier
from stepscope.pipeline.options import Options as ReadingOptions
from stepscope.pipeline.recording import hardware_file, measure
from stepscope.plan.catalog import find_model
from stepscope.plan.cli.learn import read_calibration, words_of
from stepscope.plan.cli.options import Options
from stepscope.plan.cluster import Cluster, Gemm
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.constants import DEFAULT
from stepscope.plan.devices import find_device
from stepscope.plan.framework import MEGATRON_CORE, find_framework, grads_setting, with_grads
from stepscope.plan.job import OPTIMIZERS, TrainingJob
from stepscope.plan.learn import as_mapping, recalibrated, with_factors
from stepscope.readers.hardware_file import read_hardware

USUAL_SEQ = 4096
"""Tokens of a sequence, where nobody says."""


def job_of(options: Options) -> tuple[TrainingJob, tuple[str, ...]]:
    """All but the layout, and what of the machine was not measured."""
    is_largest = options.questions.largest
    needed: dict[str, object] = {"--model": options.model, "--cluster": options.cluster}
    missing = [name for name, value in needed.items() if value is None]
    if is_largest and missing == ["--model"]:
        missing = []
    if missing:
        example = "stepscope plan --model llama3-8b --cluster 1x8xH100 --seq 8192"
        raise UsageError(f"{' and '.join(missing)} must be given, as in: {example}")
    assert options.cluster is not None
    cluster, notes = cluster_of(options.cluster, options.hardware)
    if options.run.paths is not None:
        cluster, taken = as_in_run(cluster, options.run.paths, use_cache=not options.run.no_cache)
        notes += taken
    constants = DEFAULT
    if options.calibration is not None:
        calibration = read_calibration(options.calibration, cluster.device.name)
        factors = as_mapping(calibration.factors)
        constants = with_factors(DEFAULT, factors)
        cluster = recalibrated(cluster, factors)
        notes += (words_of(calibration),)
    if options.pins.host_memory is not None:
        cluster = replace(cluster, host_memory_bytes=options.pins.host_memory * 2**30)
    if options.pins.nvme is not None:
        cluster = replace(cluster, disk_bytes_per_s=options.pins.nvme * 1e9)
    if options.questions.price is not None:
        cluster = replace(cluster, price_per_hour=options.questions.price)
    if cluster.gemms and options.precision not in cluster.gemms:
        notes += (f"{options.precision} products were not measured: their rate is the datasheet's",)
    named = find_framework(options.framework or "")
    framework = named or MEGATRON_CORE
    if options.grads is not None:
        framework = with_grads(framework, options.grads)
        if named is not None:
            notes += (f"gradients in {options.grads}: {grads_setting(named, options.grads)}",)
    model = find_model(options.model or "7b")
    job = TrainingJob(
        model=model,
        cluster=cluster,
        seq_len=options.seq or min(USUAL_SEQ, model.max_positions or USUAL_SEQ),
        global_batch=options.global_batch or 4 * cluster.num_devices,
        precision=options.precision,
        framework=framework,
        grads=options.grads,
        optimizer=OPTIMIZERS[options.optimizer],
        is_adapter=options.adapters,
        constants=constants,
    )
    return job, notes


def cluster_of(word: str, hardware: Path | None) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster with what was measured put in place of datasheets, and what of it was not
    measured."""
    cluster = parse_cluster(word)
    if hardware is not None:
        return measured(cluster, hardware)
    usual = hardware_file(None)
    if usual is None:
        return cluster, ()
    try:
        return measured(cluster, usual)
    except UsageError as problem:
        # Nobody asked for it here: a plan for another machine goes by that machine's datasheet.
        return cluster, (f"{problem}: not used",)


def measured(cluster: Cluster, path: Path) -> tuple[Cluster, tuple[str, ...]]:
    """Rates of products, of memory and of links, each where the file has it.

    The planner takes a share of a datasheet's bandwidth; what was measured was reached, so it is
    put in as what gives that share.
    """
    hardware, source = read_hardware(path), str(path)
    if not _is_same(hardware.machine.device, cluster.device.name):
        raise UsageError(
            f"{path} was measured on {hardware.machine.device[:80]}, and the cluster has "
            f"{cluster.device.name}; calibrate there, or plan by the datasheet"
        )
    fits = [
        fit for precision in cluster.peak_flops if (fit := hardware.gemm(precision)) is not None
    ]
    gemms = {
        fit.precision: Gemm(
            peak=fit.peak_flops, efficiency=fit.efficiency, half_k=fit.half_k, source=source
        )
        for fit in fits
    }
    attention = _attention(hardware)
    notes = []
    if not attention:
        notes.append(
            "attention was not measured in half precision: its rate is what is usual on such "
            "devices"
        )
    if not gemms:
        notes.append(f"{path} has no fitted matrix products: their rates are the datasheet's")
    copied, pinned = hardware.copy_bytes_per_s(), hardware.copy_bytes_per_s("to_device_pinned")
    tiers, missing = _tiers(cluster, hardware, source)
    return replace(
        cluster,
        gemms=gemms,
        attention=attention,
        tiers=tiers,
        bandwidth_bytes_per_s=cluster.bandwidth_bytes_per_s
        if copied is None
        else copied / DEFAULT.stream_share,
        host_bytes_per_s=pinned or cluster.host_bytes_per_s,
    ), (*notes, *missing)


def _attention(hardware: Calibrated) -> dict[str, float]:
    """The best of each direction in half precision, for heads of 128; nothing unless both were
    measured."""
    best: dict[str, float] = {}
    for point in hardware.attention:
        if point.head_dim == 128 and point.precision in ("fp16", "bf16"):
            # A backward counts as two forwards there, and as two and a half here.
            scale = 1.25 if point.direction == "backward" else 1.0
            rate = point.flops / point.time.seconds * scale
            best[point.direction] = max(best.get(point.direction, 0.0), rate)
    return best if {"forward", "backward"} <= best.keys() else {}


def _is_same(measured_on: str, named: str) -> bool:
    """Whether the file's device is the cluster's, by the datasheet that both lead to."""
    try:
        return find_device(measured_on).spec.name == named
    except UsageError:
        return False


def _tiers(
    cluster: Cluster, hardware: Calibrated, source: str
) -> tuple[tuple[Tier, ...], list[str]]:
    """All-reduces of the largest group of each tier; a tier that was not measured stays the
    datasheet's.

    Between nodes that is a group with one rank in each. One of all ranks uses every card of a node
    at once: each has its part.
    """
    tiers, missing = [], []
    for level, tier in enumerate(cluster.tiers):
        wanted: tuple[str, ...] = ("across", "world")
        share = DEFAULT.network_share
        if level == 0:
            wanted, share = ("node",), DEFAULT.link_share
        fits = [
            fit
            for fit in hardware.collective_fits
            if fit.tier in wanted and fit.kind == "all_reduce"
        ]
        fit = min(fits, key=lambda each: (wanted.index(each.tier), -each.group_size), default=None)
        beta = None if fit is None else fit.regions[-1].beta_bytes_per_s
        if fit is not None and beta is not None:
            cards = cluster.devices_per_node if fit.tier == "world" else 1
            rate, latency_s = beta / share / cards, fit.regions[0].alpha_s
            tiers.append(
                structs.replace(
                    tier, bytes_per_s=rate, latency_s=latency_s, source=source, is_measured=True
                )
            )
            continue
        tiers.append(tier)
        if tier.size > 1 and (level == 0 or cluster.num_nodes > 1):
            missing.append(f"the {tier.name} link was not measured: it is the datasheet's")
    return tuple(tiers), missing


MIN_NS = 1_000_000
"""Time of kernels of a kind from which a rate is taken."""
MIN_BYTES = 1 << 20
"""Size of a collective to take a bandwidth from it: smaller ones are latency."""


def as_in_run(
    cluster: Cluster, paths: Sequence[str], *, use_cache: bool
) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster with the rates of products, attention and links that a run reached, and a line
    for each."""
    facts = measure(paths, ReadingOptions(use_cache=use_cache)).facts
    kernels = facts.median_rank.kernels
    source = paths[0]
    gemms = products(kernels, cluster, source)
    if not gemms:
        raise InputError(
            f"{source}: no matrix products with known FLOPs were recorded, so there are no rates "
            "to take from it; record with record_shapes=True, or leave out --from"
        )
    notes = [
        f"{name} products at {gemm.peak / 1e12:.0f} TFLOP/s, as in {source}"
        for name, gemm in gemms.items()
    ]
    rate = _rate(
        [
            row
            for row in kernels
            if row.category == "attention" and row.precision in ("bf16", "fp16")
        ]
    )
    if rate is not None:
        notes.append(f"attention at {rate / 1e12:.0f} TFLOP/s, as in {source}")
    tiers = links(cluster, facts.comms, source)
    notes += [
        f"{tier.name} links at {tier.bytes_per_s / 1e9:.0f} GB/s, from {source}"
        for tier in tiers
        if tier.source == source
    ]
    attention = {} if rate is None else {"forward": rate, "backward": rate}
    return replace(cluster, gemms=gemms, attention=attention, tiers=tiers), tuple(notes)


def products(kernels: Sequence[KernelRow], cluster: Cluster, source: str) -> dict[str, Gemm]:
    """A rate for each precision that products were recorded in. Their shapes are the run's own: no
    more is taken off."""
    gemms = {}
    for precision in cluster.peak_flops:
        rate = _rate(
            [row for row in kernels if row.category == "gemm" and row.precision == precision]
        )
        if rate is not None:
            gemms[precision] = Gemm(peak=rate, efficiency=1.0, half_k=0.0, source=source)
    return gemms


def _rate(rows: list[KernelRow]) -> float | None:
    spent_ns = sum(row.total_ns for row in rows if row.flops)
    if spent_ns < MIN_NS:
        return None
    return sum(row.flops for row in rows if row.flops) * 1e9 / spent_ns


def links(cluster: Cluster, comms: CommsFacts | None, source: str) -> tuple[Tier, ...]:
    """Each tier at the best bus bandwidth that a large collective reached on it; as it was where
    none did."""
    tiers = []
    for level, tier in enumerate(cluster.tiers):
        share = DEFAULT.link_share if level == 0 else DEFAULT.network_share
        rows = () if comms is None else comms.rows
        # Over nodes a group may use all cards of a node at once: each has its part of what was
        # reached.
        cards = 1 if level == 0 else cluster.devices_per_node
        reached = [
            row.busbw_bytes_per_s
            / min(cards, max(1, (row.num_ranks or 1) // max(1, cluster.num_nodes)))
            for row in rows
            if row.on_device
            and row.busbw_bytes_per_s
            and (row.bytes or 0) >= MIN_BYTES
            and row.crosses_nodes is (level > 0)
            and not row.includes_waits
        ]
        if reached:
            rate = max(reached) / share
            tier = structs.replace(tier, bytes_per_s=rate, source=source, is_measured=True)
        tiers.append(tier)
    return tuple(tiers)
