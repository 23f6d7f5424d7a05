"""One rank of a job: joins the others, times both variants before any profiler starts, then records
them."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lab.measure import BIG, DEV, Run, clear, record, settle, spread, step_times_ms
from lab.ranks.case import RankCase
from lab.ranks.cases import CASES

log = logging.getLogger("lab.ranks")
NOTE = (
    "slow_ms and fixed_ms are step times with no profiler attached; all ranks share one GPU in "
    "time slices and NCCL talks over "
    "sockets; rank_ms are the medians of each rank"
)
ROUNDS, WARM, STEPS = 2, 3, 12
LONG_MS = 150.0
"""Jobs with longer steps are timed over half as many."""


def join() -> None:
    """Makes NCCL take each rank for another host: two ranks of one host may not share a GPU."""
    os.environ["NCCL_HOSTID"] = f"host{os.environ['RANK']}"
    os.environ["LOCAL_RANK"] = "0"  # device meshes choose the device by it
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_IB_DISABLE", "1")
    if BIG:
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")


def meet() -> None:
    settle()
    dist.barrier()
    settle()


def num_steps(runs: dict[str, Run]) -> int:
    """How many steps to time, the same on every rank; warms all runs up."""
    worst = 0.0
    for run in runs.values():
        step_times_ms(run, WARM, 1)
        meet()
        worst = max(worst, statistics.fmean(step_times_ms(run, 0, 2)))
        meet()
    agreed = torch.tensor(worst, device=DEV)
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    return STEPS if agreed.item() < LONG_MS else STEPS // 2


def timed(runs: dict[str, Run]) -> dict[str, list[float]]:
    """Step times of each variant, measured in alternating rounds."""
    steps = num_steps(runs)
    times: dict[str, list[float]] = {tag: [] for tag in runs}
    for _ in range(ROUNDS):
        for tag, run in runs.items():
            times[tag] += step_times_ms(run, WARM, steps)
            meet()
    return times


def entry(case: RankCase, times: dict[str, list[float]]) -> dict[str, Any]:
    """The case's part of the truth file. Collective: every rank must call it."""
    stat = "mean" if case.mean else "median"
    everyone: list[dict[str, float]] = [{}] * dist.get_world_size()
    dist.all_gather_object(
        everyone, {tag: round(statistics.median(values), 2) for tag, values in times.items()}
    )
    spreads = {tag: spread(values) for tag, values in times.items()}
    steps_ms = {tag: spreads[tag][stat] for tag in times}
    speedup = steps_ms["slow"] / steps_ms["fixed"] if "fixed" in steps_ms else None
    row = case.labels(speedup) | {f"{tag}_ms": round(ms, 2) for tag, ms in steps_ms.items()}
    if speedup is not None:
        row["speedup"] = round(speedup, 3)
    row["stat"] = stat
    row |= {f"{tag}_spread_ms": values for tag, values in spreads.items()}
    row["rank_ms"] = {tag: [ms[tag] for ms in everyone] for tag in times}
    return row


def keep(out: Path, name: str, row: dict[str, Any]) -> None:
    """Adds the case to OUT/ranks_truth.json, beside those of earlier runs."""
    path = out / "ranks_truth.json"
    truth: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if BIG else "cpu",
        "torch": torch.__version__,
        "note": NOTE,
    }
    truth["cases"] = json.loads(path.read_text())["cases"] if path.exists() else {}
    truth["cases"][f"ranks/{name}"] = row
    path.write_text(json.dumps(truth, indent=1) + "\n")


def run_case(name: str, out: Path) -> None:
    case, rank, begun = CASES[name], dist.get_rank(), time.monotonic()
    assert dist.get_world_size() == case.world, f"{name} wants --nproc_per_node={case.world}"
    runs: dict[str, Run] = {}
    for tag, make in (("slow", case.slow), ("fixed", case.fixed)):
        if make is not None:
            torch.manual_seed(0)
            runs[tag] = make()
    row = entry(case, timed(runs))
    if rank == 0:
        keep(out, name, row)
        log.info("%s %s -> %s = %s", name, row["slow_ms"], row.get("fixed_ms"), row.get("speedup"))
    for tag, run in runs.items():
        num_bytes = record(run, out / "ranks" / f"{name}.{tag}.rank{rank}.pt.trace.json.gz", WARM)
        log.info(
            "%s.%s rank %d: %d kB, %.1f s",
            name,
            tag,
            rank,
            num_bytes // 1000,
            time.monotonic() - begun,
        )
        meet()


def work(names: list[str], out: Path, limit_s: float) -> None:
    """Runs the cases in this rank. A rank that hangs in one says where and dies after `limit_s`,
    whatever its parent does."""
    (out / "ranks").mkdir(parents=True, exist_ok=True)
    faulthandler.dump_traceback_later(limit_s, exit=True)
    join()
    for name in names:
        faulthandler.dump_traceback_later(limit_s, exit=True)
        run_case(name, out)
        clear()
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
