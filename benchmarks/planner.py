"""How far the planner's predictions are from published, measured results.

    PYTHONPATH=src python -m benchmarks.planner ROWS.jsonl [--source NAME] [--bare] [--json FILE]

ROWS.jsonl has a row for each result (see docs/planner.md); what was measured is taken out of a row
before it is predicted, and what its source says elsewhere (benchmarks/planner_sources.py) is added
to it; with --bare nothing is. Told for each source:

- **step**: |predicted / measured - 1| of the step time, median and 90th percentile, and the median
  of predicted / measured.
  Where a row has tokens/s or TFLOP/s alone, the step time is what its own batch or convention
  makes of them.
- **memory**: the same for the peak. Sources mean different things by it (allocated, reserved, what
  the driver shows; GB or GiB): the prediction is put in the same kind before it is compared.
- **order**: Spearman's correlation of predicted and measured throughput over the layouts of one job
  (same model, batch, length
  and number of devices), where there are at least five; the median over jobs.
  Rows whose batch is not data ranks x micro-batch x accumulation are left out of this and the next.
- **regret**: how much slower the layout that we would choose is than the best that was measured,
  median and worst over jobs.
- **fits**: of the layouts that ran, how many we say would; of those that did not run, how many we
  say would not.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.planner_sources import with_source_facts
from stepscope.plan.model import model_flops_per_token
from stepscope.plan.row_parts import model_of
from stepscope.plan.rows import predict, read_rows

MIN_LAYOUTS = 5
GIB = 2**30


def measured_step_s(row: dict[str, Any]) -> float | None:
    """Seconds of a step, told or made of TFLOP/s by the source's own convention."""
    told = row["measured"]
    if told.get("step_s"):
        return float(told["step_s"])
    rate, num = told.get("tokens_per_s_per_gpu"), row["cluster"]["num_gpus"]
    if rate and row.get("seq_len") and row.get("global_batch"):
        return float(row["global_batch"] * row["seq_len"] / (rate * num))
    tflops = told.get("tflops_per_gpu")
    if not tflops or not row.get("seq_len") or not row.get("global_batch"):
        return None
    model, seq, batch = model_of(row), row["seq_len"], row["global_batch"]
    kind = str(told.get("tflops_kind"))
    if "hardware" in kind:
        # Narayanan et al. 2021, section 5.1: the recomputed forward counts.
        whole = 1 + seq / (6 * model.hidden) + model.vocab / (16 * model.layers * model.hidden)
        flops = 96 * batch * seq * model.layers * model.hidden**2 * whole
    else:
        flops = model_flops_per_token(model, seq, halves_causal="halved" in kind) * seq * batch
    return float(flops / (tflops * 1e12 * num))


def measured_memory_gib(row: dict[str, Any]) -> float | None:
    """The peak in GiB."""
    told = row["measured"]
    peak, kind = told.get("peak_mem_gb"), str(told.get("mem_kind") or "")
    is_gb = "GB" in kind and "GiB" not in kind
    return float(peak) * (1e9 / GIB if is_gb else 1.0) if peak else None


def contradicts_itself(row: dict[str, Any]) -> bool:
    """Whether the batch is not what its layout makes of it: such a row says nothing about which
    layout is best for that batch."""
    layout = row["layout"]
    parts = [layout.get(name) for name in ("dp", "micro_batch", "grad_accum")]
    return all(parts) and bool(row.get("global_batch")) and math.prod(parts) != row["global_batch"]


def spearman(first: list[float], second: list[float]) -> float:
    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def ranks(values: list[float]) -> Any:
    """Equal values share the mean of their ranks: one layout, measured in several versions of its
    framework, has one prediction."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[index]


def score(rows: list[dict[str, Any]], *, is_bare: bool = False) -> dict[str, dict[str, Any]]:
    """`is_bare` is of the rows as they are, nothing added."""
    found: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in rows if is_bare else map(with_source_facts, rows):
        mine = found[row["source"]]
        blind = {key: value for key, value in row.items() if key != "measured"}
        told = predict(blind)
        if "unsupported" in told:
            mine["unsupported"].append(told["unsupported"])
            continue
        failed = row["measured"].get("oom_or_crash")
        mine["fits" if not failed else "fails"].append(told["fits"])
        step = None if failed else measured_step_s(row)
        if step:
            mine["step"].append(told["step_s"] / step)
            cluster, model = row["cluster"], row["model"]
            job = (
                model.get("name"),
                cluster.get("gpu"),
                cluster.get("num_gpus"),
                row.get("seq_len"),
                row.get("global_batch"),
            )
            if not contradicts_itself(row):
                mine["jobs"].append((job, 1 / told["step_s"], 1 / step, told["fits"]))
        memory = measured_memory_gib(row)
        if memory is not None and not failed:
            mine["memory"].append(told["memory_gb"] / memory)
    return {source: summary(mine) for source, mine in found.items()}


def summary(mine: dict[str, list[Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {"unsupported": len(mine["unsupported"])}
    for name in ("step", "memory"):
        if mine[name]:
            off = [abs(ratio - 1) for ratio in mine[name]]
            told[name] = {
                "rows": len(off),
                "median_error": statistics.median(off),
                "p90_error": float(np.percentile(off, 90)),
                "median_ratio": statistics.median(mine[name]),
            }
    jobs = defaultdict(list)
    for job, predicted, measured, fits in mine["jobs"]:
        jobs[job].append((predicted if fits else predicted * 1e-6, measured))
    many = [layouts for layouts in jobs.values() if len(layouts) >= MIN_LAYOUTS]
    if many:
        told["order"] = statistics.median(
            spearman([a for a, _ in each], [b for _, b in each]) for each in many
        )
        regrets = [max(b for _, b in each) / max(each)[1] - 1 for each in many]
        told |= {
            "jobs": len(many),
            "median_regret": statistics.median(regrets),
            "worst_regret": max(regrets),
        }
    told["said_fits_of_those_that_ran"] = [sum(mine["fits"]), len(mine["fits"])]
    if mine["fails"]:
        told["said_not_of_those_that_failed"] = [
            len(mine["fails"]) - sum(mine["fails"]),
            len(mine["fails"]),
        ]
    return told


def table(scores: dict[str, dict[str, Any]]) -> str:
    head = (
        "source|rows|step error|p90|ratio|memory error|p90|ratio|jobs|order|regret|worst|not judged"
    )
    lines = [head.split("|")]
    for source, told in sorted(scores.items()):
        step, memory = told.get("step"), told.get("memory")
        line = [source, str((step or memory or {"rows": 0})["rows"])]
        for part in (step, memory):
            line += (
                ["-", "-", "-"]
                if part is None
                else [
                    f"{part['median_error']:.1%}",
                    f"{part['p90_error']:.0%}",
                    f"{part['median_ratio']:.2f}",
                ]
            )
        if "order" in told:
            line += [
                str(told["jobs"]),
                f"{told['order']:.2f}",
                f"{told['median_regret']:.1%}",
                f"{told['worst_regret']:.0%}",
            ]
        else:
            line += ["-", "-", "-", "-"]
        lines.append([*line, str(told["unsupported"])])
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--source", help="this one alone")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--bare", action="store_true", help="the rows as they are, nothing added")
    told = parser.parse_args()
    rows = [row for row in read_rows(told.rows) if told.source in (None, row.get("source"))]
    scores = score(rows, is_bare=told.bare)
    print(table(scores))
    if told.json:
        told.json.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
