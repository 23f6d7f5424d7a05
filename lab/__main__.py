"""Times and records the lab: `python -m lab time --out DIR`, then `python -m lab record --out DIR`.

`time` writes DIR/truth.json from runs no profiler ever touched; `record` writes DIR/traces.
`--cases a,b` takes some, `--set second` one set; `record --stacks` records the slow runs alone,
with Python's calls, two steps of each.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import torch

from lab.case import Case
from lab.cases import CASES, SETS
from lab.measure import BIG, clear, record, settle, spread, time_in_turns

log = logging.getLogger("lab")
NOTE = (
    "slow_ms and fixed_ms are step times with no profiler attached; traces carry the profiler's "
    "own cost"
)


def labels(case: Case) -> dict[str, Any]:
    """What truth.json says of a case that no clock tells."""
    row: dict[str, Any] = {
        "bounds": list(case.bounds),
        "causes": list(case.causes),
        "fix": case.fix,
    }
    if case.no_gain_from:
        row["no_gain_from"] = list(case.no_gain_from)
    if case.held_out:
        row["held_out"] = True
    if case.same_as:
        row["fixed_trace"] = f"{case.same_as}.pt.trace.json.gz"
    return row | {"model": case.model}


def measured(case: Case) -> dict[str, Any]:
    """One entry of truth.json: labels, step times and the speedup the mend really gave."""
    torch.manual_seed(0)
    runs = {"slow": case.slow(), "fixed": case.fixed()} | {
        name: make() for name, make in case.also.items()
    }
    times = time_in_turns(runs, case.plan)
    spreads = {tag: spread(values) for tag, values in times.items()}
    stat = "mean" if case.plan.mean else "median"
    slow_ms, fixed_ms = spreads["slow"][stat], spreads["fixed"][stat]
    row = labels(case)
    row |= {
        "slow_ms": round(slow_ms, 2),
        "fixed_ms": round(fixed_ms, 2),
        "speedup": round(slow_ms / fixed_ms, 3),
    }
    row |= {"stat": stat, "slow_spread_ms": spreads["slow"], "fixed_spread_ms": spreads["fixed"]}
    for name in case.also:
        gain = round(slow_ms / spreads[name][stat], 3)
        row.setdefault("also", {})[name] = {
            "ms": round(spreads[name][stat], 2),
            "speedup": gain,
            "spread_ms": spreads[name],
        }
        if name == case.cause:
            row["cause_speedup"] = gain
    return row


def time_cases(names: list[str], out: Path, until: float) -> None:
    path = out / "truth.json"
    truth: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if BIG else "cpu",
        "torch": torch.__version__,
        "note": NOTE,
    }
    truth["cases"] = json.loads(path.read_text())["cases"] if path.exists() else {}
    for name in names:
        if time.monotonic() > until:
            log.warning("no time left for %s", name)
            continue
        begun = time.monotonic()
        try:
            row = measured(CASES[name])
        except Exception:
            # One broken case must not cost the machine's remaining time.
            log.exception("%s failed", name)
            continue
        finally:
            clear()
        truth["cases"][name] = row
        path.write_text(json.dumps(truth, indent=1) + "\n")
        took = time.monotonic() - begun
        low_high = [
            (row[f"{t}_spread_ms"]["min"], row[f"{t}_spread_ms"]["max"]) for t in ("slow", "fixed")
        ]
        also = {k: v["speedup"] for k, v in row.get("also", {}).items()}
        ratio = f"{row['slow_ms']} -> {row['fixed_ms']} = {row['speedup']}"
        log.info("%s %s %s %s took %.1f s", name, ratio, low_high, also, took)


def record_cases(names: list[str], out: Path, until: float, *, stacks: bool = False) -> None:
    traces = out / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    for name in names:
        case = CASES[name]
        for tag, make in (("slow", case.slow), ("fixed", case.fixed)):
            if tag == "fixed" and (stacks or case.same_as or not case.record_fixed):
                continue
            if time.monotonic() > until:
                log.warning("no time left for %s.%s", name, tag)
                continue
            begun = time.monotonic()
            try:
                torch.manual_seed(0)
                path = traces / f"{name}.{tag}{'.stacks' if stacks else ''}.pt.trace.json.gz"
                # Python's calls make a step several times longer to write down.
                num_bytes = record(
                    make(),
                    path,
                    min(16, case.plan.warm + 3),
                    active=2 if stacks else 3,
                    stacks=stacks,
                )
                settle()
                log.info(
                    "%s.%s %d kB took %.1f s",
                    name,
                    tag,
                    num_bytes // 1000,
                    time.monotonic() - begun,
                )
            except Exception:
                # As above.
                log.exception("%s.%s failed", name, tag)
            finally:
                clear()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    parser.add_argument("action", choices=("list", "time", "record"))
    parser.add_argument("--out", type=Path, default=Path("lab"))
    parser.add_argument("--cases", default="", help="names, separated by commas; all without it")
    parser.add_argument("--set", choices=tuple(SETS), help="the cases of this set alone")
    parser.add_argument(
        "--stacks", action="store_true", help="record with Python's calls, the slow runs alone"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after this")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    names = [name for name in args.cases.split(",") if name] or list(SETS.get(args.set, CASES))
    until = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    if args.action == "list":
        for name in names:
            log.info("%-28s %-20s %s", name, "/".join(CASES[name].bounds), CASES[name].fix)
    elif args.action == "time":
        time_cases(names, args.out, until)
    else:
        record_cases(names, args.out, until, stacks=args.stacks)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
