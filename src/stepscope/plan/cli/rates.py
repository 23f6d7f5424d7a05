"""What a recorded run reached, put in place of datasheets: `plan --from RUN --model ...`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from stepscope.core.comms_facts import CommsFacts
from stepscope.core.facts import KernelRow
from stepscope.errors import InputError
from stepscope.hardware.links import Tier
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import measure
from stepscope.plan.cluster import Cluster, Gemm
from stepscope.plan.constants import DEFAULT

MIN_NS = 1_000_000
"""Of kernels of a kind, to take a rate from them."""
MIN_BYTES = 1 << 20
"""Of a collective, to take a bandwidth from it: smaller ones are latency."""


def as_in_run(
    cluster: Cluster, paths: Sequence[str], *, use_cache: bool
) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster with the rates of products, attention and links that a run reached, and a line
    for each."""
    facts = measure(paths, Options(use_cache=use_cache)).facts
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
