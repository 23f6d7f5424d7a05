"""Clocks that jump, run back or drift, and holes, planted into recordings: how often a wrong step
time or bound is told without a word.

    python -m benchmarks.clocks [--num 200] [--seed 1] [PATHS]

Each recording is diagnosed as it is and with one fault planted at a random place: forward (all
clocks go on later by that much), back, hole (all events that begin in a stretch are gone), device
(the device's clock alone), drift (the device's clock is faster). Wrong is a step time that differs
by more than 15 %, another bound, or a best gain of more than twice the true one; silent, where no
warning stands before the verdict and the bound is not "unknown".
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.truth import read_json
from stepscope.cli.main import main as stepscope
from stepscope.report.diagnosis.view import damage_warnings

SHARED = Path(__file__).resolve().parents[2] / "shared"
KINDS = ("forward", "back", "hole", "device", "drift")
SIZES_MS = (1, 3, 10, 30, 100, 1_000, 10_000)
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")
STEP_ERROR = 0.15
GAIN_ERROR = 2.0
MAX_BYTES = 3 << 20


def recordings(paths: list[str]) -> list[Path]:
    """Files of one rank with a device, the small ones."""
    roots = [Path(path) for path in paths] or [SHARED / "lab" / "single", SHARED / "recordings"]
    files = [
        file
        for root in roots
        for file in ([root] if root.is_file() else root.rglob("*"))
        if file.suffix in (".gz", ".zst")
    ]
    alone = [file for file in files if "rank" not in file.name and file.stat().st_size < MAX_BYTES]
    return sorted(alone)


def planted(events: list[dict[str, Any]], kind: str, size_us: float, draw: random.Random) -> None:
    """One fault, in the events' own microseconds."""
    timed = [event for event in events if event.get("ph") == "X" and "ts" in event]
    begin = min(float(event["ts"]) for event in timed)
    end = max(float(event["ts"]) for event in timed)
    place = begin + (end - begin) * draw.uniform(0.1, 0.9)
    keeps_length = draw.random() < 0.5
    if kind == "hole":
        gone = {id(one) for one in timed if place <= float(one["ts"]) < place + size_us}
        events[:] = [event for event in events if id(event) not in gone]
        return
    rate = draw.choice((1e-3, 1e-2, -1e-2))
    by_us = -size_us if kind == "back" else size_us
    for event in timed:
        start = float(event["ts"])
        is_device = event.get("cat") in DEVICE
        if kind == "drift":
            if is_device:
                event["ts"] = start + (start - begin) * rate
            continue
        if kind == "device" and not is_device:
            continue
        if start >= place:
            event["ts"] = start + by_us
        elif not keeps_length and start + float(event.get("dur", 0)) > place:
            event["dur"] = max(float(event["dur"]) + by_us, 0)
    for event in events:
        # Arrows from launches to kernels, counters, allocations.
        if event.get("ph") != "X" and kind in ("forward", "back") and "ts" in event:
            event["ts"] = float(event["ts"]) + by_us * (float(event["ts"]) >= place)


def told(path: Path) -> dict[str, Any] | None:
    """The diagnosis as JSON; None where there is none."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        status = stepscope(["diagnose", str(path), "--no-cache", "--jobs", "1", "--format", "json"])
    return json.loads(out.getvalue()) if status == 0 else None


def is_silent(diagnosis: dict[str, Any]) -> bool:
    return diagnosis["verdict"]["bound"] != "unknown" and not list(
        damage_warnings(diagnosis["notes"])
    )


def best_gain(diagnosis: dict[str, Any]) -> float:
    return max((each["predicted_speedup"] for each in diagnosis["findings"]), default=1.0)


def wrong(truth: dict[str, Any], diagnosis: dict[str, Any]) -> str | None:
    """What is wrong of it."""
    true_ms, ms = truth["step"]["ms"], diagnosis["step"]["ms"]
    if true_ms and ms and abs(ms / true_ms - 1) > STEP_ERROR:
        return f"step {ms:.4g} ms for {true_ms:.4g}"
    if diagnosis["verdict"]["bound"] != truth["verdict"]["bound"]:
        return f"{diagnosis['verdict']['bound']} for {truth['verdict']['bound']}"
    if best_gain(diagnosis) > GAIN_ERROR * best_gain(truth):
        return f"a gain of {best_gain(diagnosis):.3g}x for {best_gain(truth):.3g}x"
    return None


def trials(files: list[Path], num: int, seed: int) -> Iterator[tuple[Path, str, int, int]]:
    """So many faults: each kind and size in turn, in recordings drawn at random."""
    draw = random.Random(seed)
    for number in range(num):
        kind, size = KINDS[number % len(KINDS)], SIZES_MS[number // len(KINDS) % len(SIZES_MS)]
        yield draw.choice(files), kind, size, draw.randrange(1 << 30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    files = recordings(asked.paths)
    if not files:
        sys.exit("no recordings: name files or folders of them")
    truths: dict[Path, dict[str, Any] | None] = {}
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for file, kind, size_ms, seed in trials(files, asked.num, asked.seed):
            if file not in truths:
                truths[file] = told(file)
            truth = truths[file]
            if truth is None or not is_silent(truth):
                continue
            document = read_json(str(file))
            planted(document["traceEvents"], kind, size_ms * 1000.0, random.Random(seed))
            path = Path(folder) / "planted.json"
            path.write_text(json.dumps(document))
            diagnosis = told(path)
            fault = None if diagnosis is None else wrong(truth, diagnosis)
            silent = diagnosis is not None and is_silent(diagnosis)
            state = "wrong" if fault and silent else "right" if silent else "said"
            counts[kind, state] += 1
            if state == "wrong":
                print(f"silent: {kind} {size_ms} ms in {file.name} (seed {seed}): {fault}")
    for kind in KINDS:
        row = [counts[kind, state] for state in ("right", "said", "wrong")]
        print(f"{kind:8} {row[0]:4} as without it, {row[1]:4} said, {row[2]:4} wrong and silent")
    silent_wrong = sum(n for (_, state), n in counts.items() if state == "wrong")
    print(f"{silent_wrong} of {sum(counts.values())} wrong and silent")
    return 0


if __name__ == "__main__":
    sys.exit(main())
