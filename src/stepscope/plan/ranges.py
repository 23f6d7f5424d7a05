"""How far a plan may be off: ranges that cover 80 % of what others measured.

Each is of measured / planned over published results, every source with the weight of one, and was
calibrated with sources left out in turn (`python -m benchmarks.plan_ranges`, docs/planner.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.plan.contract.launch import Range
from stepscope.plan.job import TrainingJob

VALIDATED = frozenset(
    {
        "a100-sxm-40gb", "a100-sxm-80gb", "a800-sxm-80gb", "b200", "b300", "gb200", "gb300",
        "h100-sxm", "h200-sxm",
    }
)  # fmt: skip
"""Devices that published or recorded steps were compared with; each has ten rows or more, but the
H200, which has eight steps of our own, and the A800, an A100 with fewer links."""

FEW = {"mi325x": 5, "mi355x": 1}
"""Published steps of devices that have too few for a range (benchmarks/rows_more.jsonl:
0.93 to 0.99 times what is planned)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Range from `low` to `high` times what is planned."""

    low: float
    high: float

    def around(self, value: float) -> tuple[float, float]:
        return self.low * value, self.high * value

    def range_of(self, value: float) -> Range:
        low, high = self.around(value)
        return Range(value=value, low=low, high=high)

    def of_rate(self, value: float) -> tuple[float, float]:
        """Range of what goes with one over the time."""
        return value / self.high, value / self.low


STEP_DENSE = Span(low=0.90, high=1.18)
"""17 sources; with each left out in turn, 81 % of it is covered in the mean."""
STEP_MIXTURE = Span(low=0.85, high=1.32)
"""Six groups of models in three sources; with each left out in turn 0.87 to 1.28 would do, which
covers all of the small ones and 70 % of each of the three large: these are what it is set by."""
STEP_UNSEEN = Span(low=0.80, high=1.65)
"""What the last generation that no row was of came to: 43 steps of B200s were 0.88 to 1.66 times
what its datasheet and Hopper's efficiencies gave."""
STEP_UNSEEN_MIXTURE = Span(
    low=STEP_UNSEEN.low * STEP_MIXTURE.low / STEP_DENSE.low,
    high=STEP_UNSEEN.high * STEP_MIXTURE.high / STEP_DENSE.high,
)
"""Both: nothing was compared with either. The one figure at hand, Qwen3-235B on 32 MI355X without
its batch (Primus, primus_pipeline.md), takes 1.1 to 1.45 times what is planned."""
MEMORY = Span(low=0.96, high=1.16)
"""6 sources, all on NVIDIA's devices; with each left out in turn, 80 %."""
MEMORY_UNSEEN = Span(low=0.91, high=1.32)
"""Range for another maker's devices: what the source came to that the others' range covers least,
nanotron's sweep, four fifths of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Ranges of one job's plans."""

    step: Span
    memory: Span
    words: str
    """What the ranges rest on."""
    is_validated: bool = True
    """Whether enough steps of this device were compared with plans."""
    num_compared: int | None = None
    """Number of rows that were compared, where they are too few."""

    def of(
        self, *, step_s: float, memory_bytes: float, rates: dict[str, float]
    ) -> dict[str, tuple[float, float]]:
        """Lowest and highest of each figure."""
        return {
            "step_s": self.step.around(step_s),
            **{name: self.step.of_rate(value) for name, value in rates.items()},
            "memory_bytes": self.memory.around(memory_bytes),
        }


def ranges_of(job: TrainingJob) -> Ranges:
    """How far plans of this job may be off."""
    device, is_mixture = job.cluster.device, job.model.experts is not None
    memory = MEMORY if device.vendor == "nvidia" else MEMORY_UNSEEN
    if device.key not in VALIDATED and not job.cluster.gemms:
        step = STEP_UNSEEN_MIXTURE if is_mixture else STEP_UNSEEN
        compared = f"No published step of {device.name} was compared with a plan"
        if num := FEW.get(device.key, 0):
            compared = f"{num} published step{'s' if num > 1 else ''} of {device.name} alone"
            compared = f"{compared} could be compared with a plan, too few for a range"
        words = (
            f"{compared}: a step may take "
            f"{step.low:.2f} to {step.high:.2f} times as long, as the last generation did before "
            "it was known; memory was compared on NVIDIA's alone, and may come to "
            f"{memory.low:.2f} to {memory.high:.2f} times; `stepscope calibrate` measures yours"
        )
        return Ranges(
            step=step,
            memory=memory,
            words=words,
            is_validated=False,
            num_compared=FEW.get(device.key, 0),
        )
    if is_mixture:
        words = (
            f"80 % of published steps of mixtures took {STEP_MIXTURE.low:.2f} to "
            f"{STEP_MIXTURE.high:.2f} times what is planned (models left out in turn), and memory, "
            f"of dense models alone, came to {memory.low:.2f} to {memory.high:.2f} times"
        )
        return Ranges(step=STEP_MIXTURE, memory=memory, words=words)
    words = (
        f"80 % of published steps took {STEP_DENSE.low:.2f} to {STEP_DENSE.high:.2f} times what is "
        f"planned, and memory came to {memory.low:.2f} to {memory.high:.2f} times (sources left "
        "out in turn)"
    )
    return Ranges(step=STEP_DENSE, memory=memory, words=words)


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
