"""Timing very many chains at once: compiled on all cores, then timed one after the other.

    python -m benchmarks.probe_chains CASES.json.gz OUT.jsonl --processes 14 --budget 130

CASES is what `benchmarks.probe cases` wrote. Each process compiles its share for as long as half of
the budget, and keeps what it has; then all take turns on the device. Needs torch alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing as processes
import os
import sys
import time
from pathlib import Path
from typing import IO, Any

from benchmarks.probe import kept

MAX_RESERVED = 4 << 30
"""Bytes of the device's memory that a process keeps while it compiles."""
CHAIN, EAGER, COMPILED = "chain", "asis", "asis+compiled"


def chains_in(path: Path) -> list[dict[str, Any]]:
    """Each chain once, in the order of the file."""
    calls: dict[str, dict[str, Any]] = {}
    for case in kept(path):
        if case["call"]["op"] == CHAIN:
            calls.setdefault(json.dumps(case["call"]), case["call"])
    return list(calls.values())


def work(
    number: int, calls: list[dict[str, Any]], out: str, ends: tuple[float, float], turn: Any
) -> None:
    """One process: compiles until the first end, times until the second."""
    started = time.time()
    import torch

    from stepscope.probe.job.worker import Worker

    ready: dict[str, Any] = {}

    class Kept(Worker):
        def compiled(self, call: dict[str, Any]) -> Any:
            found = ready[json.dumps(call)]
            if isinstance(found, Exception):
                raise found
            return found

    with open(out, "a", encoding="utf-8") as file:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        asked: dict[str, Any] = {"device": device, "cases": []}
        worker, compiler = Kept(asked, file, ends[1]), Worker(asked, file, ends[1])
        begun = time.time()
        for call in calls:
            if time.time() >= ends[0]:
                break
            try:
                with torch.no_grad():
                    ready[json.dumps(call)] = compiler.compiled(call)
            except Exception as problem:  # noqa: BLE001 - what fails is what is said of it
                ready[json.dumps(call)] = problem
            if device == "cuda" and torch.cuda.memory_reserved() > MAX_RESERVED:
                torch.cuda.empty_cache()
        with contextlib.suppress(RuntimeError, AttributeError):
            torch.cuda.empty_cache()
        spent = f"{begun - started:.0f} s to start, {time.time() - begun:.0f} s to compile"
        print(f"{number}: {len(ready)} of {len(calls)} compiled, {spent}", flush=True)
        time.sleep(max(ends[0] - time.time(), 0.0))
        for text in ready:
            with turn:
                if time.time() >= ends[1]:
                    break
                time_both(worker, json.loads(text), file)


def time_both(worker: Any, call: dict[str, Any], file: IO[str]) -> None:
    """Write the chain's lines: one operator after the other, and compiled."""
    for way in (EAGER, COMPILED):
        row: dict[str, Any] = {"call": call, "way": way}
        try:
            row["time"] = worker.time({"call": call, "way": way})
        except Exception as wrong:  # noqa: BLE001 - the same
            row["problem"] = (str(wrong).strip().splitlines() or [type(wrong).__name__])[0][:300]
        file.write(json.dumps(row) + "\n")
    file.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--compile", type=float, default=75.0, metavar="SECONDS")
    parser.add_argument("--time", type=float, default=50.0, metavar="SECONDS")
    arguments = parser.parse_args()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    calls, begun = chains_in(arguments.cases), time.time()
    ends = (begun + arguments.compile, begun + arguments.compile + arguments.time)
    context = processes.get_context("spawn")
    turn, num = context.Lock(), arguments.processes
    started = [
        context.Process(
            target=work, args=(i, calls[i::num], f"{arguments.out}.{i}", ends, turn), daemon=True
        )
        for i in range(num)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(max(ends[1] + 15 - time.time(), 0.1))
        process.kill()
    with arguments.out.open("a", encoding="utf-8") as whole:
        for i in range(num):
            part = Path(f"{arguments.out}.{i}")
            if part.exists():
                whole.write(part.read_text(encoding="utf-8"))
                part.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
