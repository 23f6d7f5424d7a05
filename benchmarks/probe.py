"""Cases that findings would have timed on a device, and timing all of them there at once.

    python -m benchmarks.probe cases FILE... -o benchmarks/probe_cases.json.gz [--share 0.0015]
    python -m benchmarks.probe time benchmarks/probe_cases.json.gz OUT.jsonl --budget 230
    python -m benchmarks.probe host OUT.jsonl
    python -m benchmarks.probe_chains benchmarks/probe_cases.json.gz CHAINS.jsonl
    python -m benchmarks.probe store benchmarks/probe_cases.json.gz FOLDER --times OUT.jsonl \
        --chains CHAINS.jsonl --host HOST.jsonl
    STEPSCOPE_CACHE_DIR=FOLDER python -m benchmarks.board lab/held

`cases` judges recordings and keeps every operator that a rule asked for and that is at least such
a share of a recording's device time, the largest first. `time` and `host` need torch alone, and run
on the device; what fails says so in its line. `store` keeps what they wrote as `stepscope probe`
would have, for a scoring of the board by it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCHMARK = "benchmark"
FIELDS = ("op", "dims", "types", "strides", "concrete")
HOST = (
    "eager-layer",
    "graph-launch",
    "graph-kernel",
    "compiled-entry",
    "compiled-launches",
    "compiled-parameter",
    "captured-entry",
    "captured-saved",
    "captured-parameter",
)
BACKENDS = ("flash", "efficient", "cudnn", "math")
COPIED_BYTES = (1 << 20, 1 << 24, 1 << 27)


def shares_of(path: str) -> dict[str, float]:
    """The cases that a recording's rules asked for, as JSON, each with its share of the recorded
    device time of a step."""
    import msgspec

    from stepscope.core.hardware import ProbedTimes
    from stepscope.pipeline.contexts import RankContexts
    from stepscope.pipeline.measure import measure_job
    from stepscope.readers.inputs import find_sources
    from stepscope.rules.verdict import diagnose_job

    probed = ProbedTimes()
    with find_sources([path]) as found:
        contexts = RankContexts(use_cache=False, probed=lambda _: probed)
        diagnose_job(measure_job(found.sources, contexts=contexts), every=True)
        context = contexts.of(found.sources[0])
    trace, steps = context.trace, max(len(context.cut.steps.windows), 1)
    busy_ns = float(trace.dur_ns[trace.device_work].sum()) / steps
    return {
        msgspec.json.encode(case).decode(): weight / max(busy_ns, 1.0)
        for case, weight in probed.asked.items()
    }


def collect(paths: Iterable[str], least_share: float) -> list[dict[str, Any]]:
    """The cases of all recordings, each once."""
    shares: dict[str, float] = {}
    for path in paths:
        for case, share in shares_of(path).items():
            shares[case] = max(shares.get(case, 0.0), share)
        print(Path(path).name, len(shares), flush=True)
    ordered = sorted(shares, key=lambda case: -shares[case])
    return [json.loads(case) for case in ordered if shares[case] >= least_share]


def packed(call: dict[str, Any]) -> list[Any]:
    """A call's fields in their order, then the parts of a chain."""
    return [*(call[name] for name in FIELDS), *map(packed, call.get("parts", ()))]


def unpacked(row: list[Any]) -> dict[str, Any]:
    """The call of such a row."""
    fields, parts = row[: len(FIELDS)], row[len(FIELDS) :]
    call = dict(zip(FIELDS, fields, strict=True))
    return {**call, "parts": [unpacked(part) for part in parts]} if parts else call


def keep(cases: Iterable[dict[str, Any]], out: Path) -> None:
    """Write them: a row per operator, with its places in the order among its ways."""
    rows: dict[str, list[Any]] = {}
    for place, case in enumerate(cases):
        call = json.dumps(packed(case["call"]), separators=(",", ":"))
        rows.setdefault(call, [json.loads(call), []])[1].append([place, case["way"]])
    text = json.dumps(list(rows.values()), separators=(",", ":"))
    out.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def kept(path: Path) -> list[dict[str, Any]]:
    """The cases of such a file, in their order."""
    placed = [
        (place, {"call": unpacked(call), "way": way})
        for call, ways in json.loads(gzip.decompress(path.read_bytes()))
        for place, way in ways
    ]
    return [case for _, case in sorted(placed, key=lambda pair: pair[0])]


def beside(cases: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Attention by each back end, and copies from either memory: what no rule asks for by
    itself."""
    scores = {json.dumps(c["call"]): c["call"] for c in cases if "attention" in c["call"]["op"]}
    found = [
        {"call": call, "way": f"bf16+{name}"}
        for call in list(scores.values())[:most]
        for name in BACKENDS
    ]
    for size in COPIED_BYTES:
        call = {"op": "copy_to_device", "dims": [[size]], "types": ["uint8"], "strides": []}
        found += [{"call": {**call, "concrete": [""]}, "way": w} for w in ("pageable", "pinned")]
    return found


def run_worker(cases: list[dict[str, Any]], out: Path, budget_s: float) -> int:
    """The worker over these cases; lines that OUT has already stay. cuDNN's choice by trial is kept
    for a process, so that it has one of its own, with what is left of the time."""
    deadline = time.monotonic() + budget_s
    indexed = [{"index": index, **case} for index, case in enumerate(cases)]
    plain = [case for case in indexed if BENCHMARK not in case["way"]]
    tried = [case for case in indexed if BENCHMARK in case["way"]]
    share = len(plain) / max(len(cases), 1)
    code = _run_worker(plain, out, share * budget_s)
    return (_run_worker(tried, out, deadline - time.monotonic()) if tried else 0) or code


def _run_worker(cases: list[dict[str, Any]], out: Path, budget_s: float) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"budget_s": budget_s, "device": None, "cases": cases}, file)
        file.flush()
        command = [sys.executable, "-m", "stepscope.probe.job.worker", file.name, str(out)]
        return subprocess.run(command, cwd=ROOT / "src", check=False).returncode


def asked_times(cases: Path, attention: int) -> list[dict[str, Any]]:
    """What `time` times, in its order. Chains are timed by benchmarks.probe_chains, which compiles
    them on all cores."""
    plain = [case for case in kept(cases) if case["call"]["op"] != "chain"]
    return [*beside(plain, attention), *plain]


def asked_host() -> list[dict[str, Any]]:
    """What `host` times, in its order."""
    nothing: dict[str, Any] = {"dims": [], "types": [], "strides": [], "concrete": []}
    return [{"call": {"op": f"host:{name}", **nothing}, "way": "asis"} for name in HOST]


def lines_of(path: Path) -> list[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def store(arguments: argparse.Namespace) -> int:
    """Keep the lines of the worker's files where stepscope finds them."""
    import os

    import msgspec

    from stepscope.core.hardware import ProbeRow
    from stepscope.probe.process import Probed
    from stepscope.probe.store import keep as keep_times
    from stepscope.readers.cache import FOLDER_VARIABLE

    rows: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    asked = (
        (arguments.times, asked_times(arguments.cases, arguments.attention)),
        (arguments.host, asked_host()),
    )
    for path, cases in asked:
        for line in lines_of(path) if path else ():
            about = line.get("about", about)
            if "index" in line:
                rows.append({**cases[line["index"]], **line})
    for path in arguments.chains:
        rows += lines_of(path)
    os.environ[FOLDER_VARIABLE] = str(arguments.folder)
    keep_times(
        Probed(
            torch=about["torch"],
            device=about["device"],
            driver=about.get("runtime", ""),
            rows=tuple(msgspec.convert(rows, list[ProbeRow])),
            left=0,
            wall_s=0.0,
        )
    )
    print(f"{len(rows)} rows of {about['device']}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    collecting = actions.add_parser("cases")
    collecting.add_argument("paths", nargs="+")
    collecting.add_argument("-o", "--out", type=Path, required=True)
    collecting.add_argument("--share", type=float, default=0.0015)
    timing = actions.add_parser("time")
    timing.add_argument("cases", type=Path)
    timing.add_argument("out", type=Path)
    timing.add_argument("--budget", type=float, default=230.0, metavar="SECONDS")
    timing.add_argument("--attention", type=int, default=8, metavar="N")
    host = actions.add_parser("host")
    host.add_argument("out", type=Path)
    host.add_argument("--budget", type=float, default=60.0, metavar="SECONDS")
    storing = actions.add_parser("store")
    storing.add_argument("cases", type=Path)
    storing.add_argument("folder", type=Path)
    storing.add_argument("--times", type=Path)
    storing.add_argument("--host", type=Path)
    storing.add_argument("--chains", type=Path, action="append", default=[])
    storing.add_argument("--attention", type=int, default=8, metavar="N")
    arguments = parser.parse_args()
    if arguments.action == "cases":
        keep(collect(arguments.paths, arguments.share), arguments.out)
        return 0
    if arguments.action == "store":
        return store(arguments)
    out = arguments.out.resolve()
    if arguments.action == "time":
        cases = asked_times(arguments.cases, arguments.attention)
        return run_worker(cases, out, arguments.budget)
    return run_worker(asked_host(), out, arguments.budget)


if __name__ == "__main__":
    sys.exit(main())
