"""What matching the ranks' collectives costs as a job with many groups grows.

    python -m benchmarks.matching [--ranks 64 128 256 512]

Run it from the root of the repository, with the python that has stepscope. Each size is measured in
a process of its own: the ledgers are made up (tensor-parallel groups of 8, data-parallel groups of
up to 64, sends and receives between the rest, some 200 collectives a rank, clocks up to 20 ms
apart, no sequence numbers), then matched and asked who came late. Time is that of matching and
lateness; memory is the process's high-water mark less what it was once the ledgers stood.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np

from stepscope.analyses.collectives.lateness import lateness
from stepscope.analyses.collectives.matching import match
from stepscope.core.comms import Collective, CollectiveRecords
from stepscope.core.trace import NONE

TENSOR, DATA = 8, 64
STEPS, LAYERS, BUCKETS, MICROBATCHES = 4, 38, 6, 6
EPOCH_NS, US = 1_760_000_000_000_000_000, 1_000
Rows = dict[int, list[tuple[Collective, int, int, int]]]


def made_up(num: int) -> list[CollectiveRecords]:
    """The ledgers of a job of `num` ranks."""
    draw = np.random.default_rng(num)
    tensor = [tuple(range(at, at + TENSOR)) for at in range(0, num, TENSOR)]
    wide = min(DATA, num // TENSOR)
    per_stage = wide * TENSOR
    data = [
        tuple(range(at + k, at + per_stage, TENSOR))
        for at in range(0, num, per_stage)
        for k in range(TENSOR)
    ]
    pipes = [(at, at + num // 2) for at in range(num // 2)]
    now = np.full(num, EPOCH_NS, np.int64)
    rows: Rows = defaultdict(list)
    for step in range(STEPS):
        for _ in range(LAYERS):
            for ranks in tensor:
                _meet(now, rows, _kind("all_reduce", "tp", ranks, 1 << 22), ranks, step, draw)
        for micro in range(MICROBATCHES):
            for ranks in pipes:
                pairs = list(pairwise(ranks))
                for a, b in pairs if micro % 2 == 0 else [(b, a) for a, b in pairs]:
                    _pass(now, rows, ranks, (a, b), step, draw)
        for bucket in range(BUCKETS):
            for ranks in data:
                _meet(
                    now,
                    rows,
                    _kind("all_reduce", "dp", ranks, 1 << (20 + bucket)),
                    ranks,
                    step,
                    draw,
                )
    return [
        _ledger(rank, rows[rank], int(draw.integers(-20_000 * US, 20_000 * US)))
        for rank in range(num)
    ]


def _kind(
    op: str, group: str, ranks: tuple[int, ...], size: int, peer: int | None = None
) -> Collective:
    return Collective(
        op=op, group=group, group_ranks=ranks, dtype="bf16", bytes=size, on_device=True, peer=peer
    )


def _meet(
    now: Any,
    rows: Rows,
    kind: Collective,
    ranks: tuple[int, ...],
    step: int,
    draw: np.random.Generator,
) -> None:
    at = np.array(ranks)
    now[at] += draw.integers(300 * US, 1500 * US, len(at))
    end = int(now[at].max()) + 200 * US
    for rank in ranks:
        rows[rank].append((kind, int(now[rank]), end + int(draw.integers(0, 20 * US)), step))
    now[at] = end + 20 * US


def _pass(
    now: Any,
    rows: Rows,
    ranks: tuple[int, ...],
    way: tuple[int, int],
    step: int,
    draw: np.random.Generator,
) -> None:
    _meet(now, rows, _kind("send", "pp", ranks, 1 << 20, way[1]), way[:1], step, draw)
    sent = rows[way[0]][-1]
    begin = int(now[way[1]]) + int(draw.integers(300 * US))
    end = max(begin + 100 * US, sent[2])
    rows[way[1]].append((_kind("recv", "pp", ranks, 1 << 20, way[0]), begin, end, step))
    now[way[1]] = end


def _ledger(
    rank: int, rows: list[tuple[Collective, int, int, int]], shift: int
) -> CollectiveRecords:
    rows.sort(key=lambda row: row[1])
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(row[0] for row in rows))}
    start, end, step = (np.array([row[i] for row in rows], np.int64) for i in (1, 2, 3))
    none, empty = np.full(len(rows), NONE, np.int64), np.empty(0, np.int64)
    return CollectiveRecords(
        rank=rank,
        kinds=tuple(kinds),
        kind=np.array([kinds[row[0]] for row in rows], np.int64),
        event=np.arange(len(rows)),
        start_ns=start + shift,
        end_ns=end + shift,
        launch_ns=none,
        stream=none,
        sequence=none,
        step=step,
        exposed_start_ns=empty,
        exposed_end_ns=empty,
        exposed_of=empty,
        windows=((int(start[0]) + shift, int(end[-1]) + shift + 1),),
        step_number=step,
    )


def measured(num: int) -> dict[str, float]:
    rank_records = made_up(num)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    matched = match(rank_records)
    between = time.process_time()
    lateness(rank_records, matched)
    ended = time.process_time()
    return {
        "entries": sum(map(len, rank_records)),
        "collectives": matched.num,
        "complete": float(matched.complete.mean()),
        "match_s": between - began,
        "late_s": ended - between,
        "more_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "unaligned": len(matched.unaligned),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(measured(arguments.one)))
        return 0
    print(
        "| ranks | entries | collectives | complete | matching s | lateness s | more memory MB | "
        "ranks unaligned |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for num in arguments.ranks:
        command = [sys.executable, "-m", "benchmarks.matching", "--one", str(num)]
        said = json.loads(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout
        )
        figures = (
            f"{said['complete']:.1%} | {said['match_s']:.2f} | {said['late_s']:.2f} | "
            f"{said['more_mb']:.0f}"
        )
        print(
            f"| {num} | {said['entries']} | {said['collectives']} | {figures} | "
            f"{said['unaligned']} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
