"""What published collectives reached of what is estimated, and how far an estimate may be off."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.plan.ranges import Span

Shares = dict[str, dict[int, float]]
REACHED: Shares = {
    "all_reduce": {1: 0.94, 2: 0.79, 4: 1.02, 8: 0.82, 16: 1.0, 32: 1.22, 64: 1.07},
    "all_gather": {1: 0.8, 2: 1.07, 4: 1.0, 8: 0.92, 16: 1.27, 32: 1.19, 64: 0.89},
    "reduce_scatter": {1: 0.8, 2: 1.05, 4: 0.97, 8: 0.91, 16: 1.26, 32: 1.18, 64: 0.89},
}
"""By nodes, measured over estimated bus bandwidth of the published collectives of the ultra-scale
playbook's cluster, taken as EFA, by the way that NCCL takes. The all-reduces gave TREE_WAITS.
Gathers and scatters showed that each step of a ring waits for the hop between nodes there (`Tier`);
no constant was set on them."""
REACHED_IN_ORDER: Shares = {
    "all_reduce": {2: 0.8, 4: 1.36, 8: 1.23, 16: 0.84, 32: 0.84},
    "all_gather": {2: 0.84, 4: 1.16, 8: 1.17, 16: 1.0, 32: 0.84},
}
"""The same of EFA with NCCL 2.28 and aws-ofi-nccl 1.16, whose writes keep order
(crazyguitar/aws-gpu-communication-benchmark); no constant was set on it."""
COMPARED = "hopper"
"""The generation of the devices that they ran on."""


def span_of(generation: str | None) -> Span:
    """Four fifths of the published took from `low` to `high` times as long as is estimated. Of
    devices that none was published of, twice as wide."""
    shares = [
        share
        for published in (REACHED, REACHED_IN_ORDER)
        for by_nodes in published.values()
        for share in by_nodes.values()
    ]
    low, high = 1 / np.quantile(shares, (0.9, 0.1))
    power = 1 if generation == COMPARED else 2
    return Span(low=float(low**power), high=float(high**power))


def span_words(generation: str | None) -> str:
    span = span_of(generation)
    came = f"{span.low:.2f} to {span.high:.2f} times"
    if generation == COMPARED:
        return f"80 % of published collectives of H100s took {came} what is estimated"
    return f"no published collective of such devices was compared: the range, {came}, is a guess"


def reached_words(kind: str, *, waits: bool) -> Iterator[str]:
    """What was published of this kind; `waits`: each step of a ring for the hop between nodes."""
    published = REACHED if waits else REACHED_IN_ORDER
    if kind not in published:
        return
    figures = ", ".join(
        f"{share:g} at {nodes} node{'' if nodes == 1 else 's'}"
        for nodes, share in published[kind].items()
    )
    where = "EFA" if waits else "EFA that keeps order"
    yield (
        f"of what is estimated here, published {kind.replace('_', '-')}s of 256 MB reached "
        f"{figures} (8 H100s each, on {where}): `stepscope calibrate` measures yours"
    )
