"""Which ranges cover 80 % of what was measured, each source judged by the others.

    PYTHONPATH=src python -m benchmarks.plan_ranges ROWS.jsonl...

For dense models and for mixtures: measured / predicted of every row, each source with the weight of
one. Mixtures have two sources, too few to leave one out: there each model of a source counts as
one, since what a plan gets wrong of a mixture goes with the model; those of few rows count as one
together. A range is from one quantile to
the opposite one of all; how much it covers is counted on each group with the range of the others
(leave one out), and the mean of that is told. The quantiles that bring it to 80 % are those of
`plan/ranges.py`, with the devices that rows are of.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planner import measured_memory_gib, measured_step_s
from benchmarks.planner_sources import with_source_facts
from stepscope.plan.row_parts import cluster_of, model_of
from stepscope.plan.rows import predict, read_rows

WANTED = 0.80
MIN_ROWS = 5
MIN_SOURCES = 3
Ratios = dict[str, list[float]]


def quantile(ratios: Sequence[list[float]], share: float) -> float:
    """Of all, each source's rows together with the weight of one."""
    values = np.concatenate([np.log(each) for each in ratios])
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in ratios])
    order = np.argsort(values)
    heights = np.cumsum(weights[order]) / weights.sum()
    index = min(int(np.searchsorted(heights, share)), len(values) - 1)
    return float(np.exp(values[order][index]))


def coverage(of_source: Ratios, tail: float) -> dict[str, float]:
    """How much of each source lies in the range of the others."""
    covered = {}
    for source, own in of_source.items():
        others = [ratios for name, ratios in of_source.items() if name != source]
        if others:
            low, high = quantile(others, tail), quantile(others, 1 - tail)
            covered[source] = float(np.mean([low <= ratio <= high for ratio in own]))
    return covered


def calibrated(of_source: Ratios) -> tuple[float, float, float, dict[str, float]]:
    """The widest tails, in steps of a hundredth, that still cover as much as wanted."""
    best = 0.01
    if len(of_source) < MIN_SOURCES:
        # Nobody is left to judge by: what covers as much of them as is wanted.
        tail = (1 - WANTED) / 2
        ratios = list(of_source.values())
        return tail, quantile(ratios, tail), quantile(ratios, 1 - tail), {}
    for tail in np.arange(0.01, 0.20, 0.01):
        if np.mean(list(coverage(of_source, tail).values())) >= WANTED:
            best = float(tail)
    ratios = list(of_source.values())
    return best, quantile(ratios, best), quantile(ratios, 1 - best), coverage(of_source, best)


def pooled(of_group: Ratios) -> Ratios:
    """Models of a source with few rows count as one group."""
    made: Ratios = defaultdict(list)
    for name, ratios in of_group.items():
        few = f"{name.split(',')[0]}, models of few rows"
        made[name if len(ratios) >= MIN_ROWS or "," not in name else few] += ratios
    return made


def ratios_of(rows: list[dict[str, Any]]) -> tuple[dict[tuple[str, str], Ratios], Counter[str]]:
    """Measured / predicted by figure and kind of model, and rows of each device."""
    made: dict[tuple[str, str], Ratios] = defaultdict(lambda: defaultdict(list))
    devices: Counter[str] = Counter()
    for row in map(with_source_facts, rows):
        blind = {key: value for key, value in row.items() if key != "measured"}
        told = predict(blind)
        if "unsupported" in told or row["measured"].get("oom_or_crash"):
            continue
        model = model_of(row)
        kind, group = "dense", row["source"]
        if model.experts is not None:
            kind, group = "mixture", f"{row['source']}, {model.name}"
        step, memory = measured_step_s(row), measured_memory_gib(row)
        if step:
            made["step", kind][group].append(step / told["step_s"])
            devices[cluster_of(row).device.key] += 1
        if memory is not None:
            made["memory", kind][group].append(memory / told["memory_gb"])
    return made, devices


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, nargs="+")
    rows = [row for path in parser.parse_args().rows for row in read_rows(path)]
    made, devices = ratios_of(rows)
    for (figure, kind), every in sorted(made.items()):
        groups = pooled(every)
        of_source = {name: each for name, each in groups.items() if len(each) >= MIN_ROWS}
        if not of_source:
            continue
        tail, low, high, covered = calibrated(of_source)
        judged = "too few to leave one out"
        if covered:
            judged = f"left out in turn: {np.mean(list(covered.values())):.0%} covered"
        print(
            f"{figure}, {kind}: {low:.2f} to {high:.2f} x planned (tails of {tail:.2f}); "
            f"{len(of_source)} groups, {judged}"
        )
        for name, share in sorted(covered.items()):
            print(f"    {name}: {share:.0%} of {len(of_source[name])}")
    print("rows of devices:", dict(devices.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
