"""What the search of `stepscope plan` costs over the whole space of GPT-3 175B on 1,024 A100s.

    python -m benchmarks.plan_search [--batch 1536] [--workers 2] [--space open|usual]

Run it from the root of the repository. The table goes to the screen and to
benchmarks/out/plan_search.md.

The open space holds nothing back: tensor, context, pipeline and data ranks of every width that
divides what it cuts, over nodes too and with devices left idle; every micro-batch; every number of
pieces to a stage; five schedules; ZeRO with every shard; sequence parallelism, recomputation,
offload, attention with and without a kernel of its own. Calculon counts 11.7 million layouts for
this job and tries 95 to 664 of them in a CPU second (shared/planner/README.md). Each of ours gets
its memory, and each that fits its time.

CPU is user and system time of this process and its workers. Memory is the high-water mark of each,
added up: what they share is counted more than once.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.job import TrainingJob
from stepscope.plan.search import SearchResult, search
from stepscope.plan.space import Space, open_space

OUT = Path(__file__).parent / "out"
GIB = 2**30
CALCULON_LAYOUTS = 11.7e6
CALCULON_PER_CPU_S = 664
MODEL, CLUSTER, SEQ_LEN = "gpt3-175b", "128x8xA100", 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one search."""

    num_workers: int
    wall_s: float
    cpu_s: float
    memory_bytes: float


def measured(job: TrainingJob, space: Space, num_workers: int) -> tuple[SearchResult, Cost]:
    """A search and what it cost."""
    cpu, wall = _cpu_s(), time.monotonic()
    found = search(job, space, num_workers=num_workers)
    workers = num_workers * _peak(resource.RUSAGE_CHILDREN) if num_workers > 1 else 0
    return found, Cost(
        num_workers=num_workers,
        wall_s=time.monotonic() - wall,
        cpu_s=_cpu_s() - cpu,
        memory_bytes=1024.0 * (_peak(resource.RUSAGE_SELF) + workers),
    )


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _peak(who: int) -> int:
    return resource.getrusage(who).ru_maxrss


def table(found: SearchResult, cost: Cost, batch: int) -> str:
    rate = found.num_layouts / cost.cpu_s
    lines = [
        f"GPT-3 175B on 1,024 A100s, batch {batch}, sequence {SEQ_LEN}",
        "",
        "| | |",
        "|---|---|",
        f"| layouts | {found.num_layouts:,} |",
        (
            f"| of Calculon's {CALCULON_LAYOUTS / 1e6:.1f} million | "
            f"{found.num_layouts / CALCULON_LAYOUTS:.2f} x |"
        ),
        *(f"| too large: {reason} | {num:,} |" for reason, num in found.too_large.items()),
        f"| fit | {found.num_fit:,} |",
        f"| processes | {cost.num_workers} |",
        f"| wall | {cost.wall_s:.1f} s |",
        f"| CPU | {cost.cpu_s:.1f} s |",
        (
            f"| layouts a CPU second | {rate:,.0f} ({rate / CALCULON_PER_CPU_S:,.0f} x Calculon's "
            "best) |"
        ),
        f"| memory | {cost.memory_bytes / GIB:.2f} GiB |",
        "",
        "| layout | step | memory | MFU | against the best |",
        "|---|---|---|---|---|",
    ]
    lines += [
        (
            f"| {each.layout} | {each.step_s:.2f} s | {each.memory_bytes / GIB:.1f} GiB | "
            f"{each.mfu:.1%} | {each.why} |"
        )
        for each in found.best[:10]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=1536)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--space", choices=("open", "usual"), default="open")
    arguments = parser.parse_args()
    job = TrainingJob(
        model=find_model(MODEL),
        cluster=parse_cluster(CLUSTER),
        seq_len=SEQ_LEN,
        global_batch=arguments.batch,
    )
    space = replace(open_space(job), leaves_idle=True) if arguments.space == "open" else Space()
    found, cost = measured(job, space, arguments.workers)
    text = table(found, cost, arguments.batch)
    print(text)
    OUT.mkdir(exist_ok=True)
    (OUT / "plan_search.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
