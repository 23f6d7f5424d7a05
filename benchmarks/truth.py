"""Scores diagnoses against runs whose answer is known.

    python -m benchmarks.truth FOLDER [--without-step-ms] [--multi] [--held-out | --seen]

FOLDER has a truth.json as the lab writes it and the traces beside it (in single/, traces/ or itself; NAME.slow and NAME.fixed).
A case is *named* when the verdict's bound is one of its bounds, *found* when one of its causes is among the first three findings,
*first* when it is the first, *predicted* when that finding's gain is within 15 % of the real one. A finding that promises over
1.10 for the mended cause in a fixed trace, or for a suspect known to be innocent (`no_gain_from`), is *false blame*.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.core.diagnosis import Diagnosis
from stepscope.errors import StepscopeError
from stepscope.readers.inputs import find_sources
from stepscope.rules.job import measure_job
from stepscope.rules.verdict import diagnose

CLOSE = 0.15
BLAME = 1.10
FIRST = 3
MIN_GAIN = 1.02
"""A mend that gave less has no gain to predict."""


@dataclass(kw_only=True)
class Score:
    """One case."""

    name: str
    bound: str
    named: bool
    found: int | None
    """The place of the first true cause among the findings, from 1; None: not there or no cause to find."""
    predicted: float | None
    true: float | None
    blamed: list[str] = field(default_factory=list)
    replay_error: float | None
    has_cause: bool


def traces(folder: Path, name: str, variant: str) -> list[str]:
    """The trace files of a case's variant: one, or one per rank."""
    group, _, case = name.rpartition("/")
    places = [folder / group] if group else [folder / "single", folder / "traces", folder]
    for place in places:
        found = sorted(place.glob(f"{case}.{variant}.pt.trace.json*")) or sorted(place.glob(f"{case}.{variant}.rank*.json*"))
        found = [path for path in found if not path.name.endswith(".stepscope-cache")]
        if found:
            return [str(path) for path in found]
    return []


def diagnosed(paths: list[str], step_ms: float | None) -> Diagnosis:
    with find_sources(paths) as found:
        step_ns = None if step_ms is None else round(step_ms * 1e6)
        return diagnose(measure_job(found.sources, step_ns=step_ns, use_cache=False))


def score(folder: Path, name: str, truth: dict[str, Any], with_step_ms: bool) -> Score | None:
    """How the slow run was judged, and whether anything innocent was blamed in either."""
    paths = traces(folder, name, "slow")
    if not paths:
        return None
    slow = diagnosed(paths, truth.get("slow_ms") if with_step_ms else None)
    causes = truth.get("causes", [])
    codes = [finding.code for finding in slow.findings]
    places = [codes.index(code) + 1 for code in causes if code in codes]
    place = min(places) if places else None
    blamed = [
        f"{f.code} {f.predicted_speedup:.2f}"
        for f in slow.findings
        if f.code in truth.get("no_gain_from", []) and f.predicted_speedup > BLAME
    ]
    mended = traces(folder, name, "fixed")
    if mended:
        fixed = diagnosed(mended, truth.get("fixed_ms") if with_step_ms else None)
        accused = [*causes, *truth.get("no_gain_from", [])]
        blamed += [
            f"fixed: {f.code} {f.predicted_speedup:.2f}"
            for f in fixed.findings
            if f.code in accused and f.predicted_speedup > BLAME
        ]
    return Score(
        name=name,
        bound=slow.verdict.bound,
        named=slow.verdict.bound in truth["bounds"],
        found=place,
        predicted=slow.findings[place - 1].predicted_speedup if place else None,
        true=truth.get("cause_speedup", truth.get("speedup")),
        blamed=blamed,
        replay_error=None if slow.replay is None else slow.replay.error,
        has_cause=bool(causes),
    )


def report(scores: list[Score]) -> str:
    """A table, a row per case, and the totals."""
    lines = ["| case | bound | named | cause at | predicted | true | replay | false blame |", "|---|---|---|---|---|---|---|---|"]
    for s in scores:
        gain = "-" if s.predicted is None else f"{s.predicted:.2f}"
        true = "-" if s.true is None else f"{s.true:.2f}"
        error = "-" if s.replay_error is None else f"{s.replay_error:+.1%}"
        named, place, blamed = "yes" if s.named else "NO", s.found or "-", "; ".join(s.blamed)
        lines.append(f"| {s.name} | {s.bound} | {named} | {place} | {gain} | {true} | {error} | {blamed} |")
    caused = [s for s in scores if s.has_cause]
    gainful = [s for s in caused if s.true is not None and s.true >= MIN_GAIN]
    near = [s for s in gainful if s.predicted is not None and s.true is not None and abs(s.predicted / s.true - 1) <= CLOSE]
    found = sum(1 for s in caused if s.found is not None and s.found <= FIRST)
    first = sum(1 for s in caused if s.found == 1)
    num_blamed = sum(len(s.blamed) for s in scores)
    total = f"named {sum(s.named for s in scores)}/{len(scores)}, found {found}/{len(caused)}, first {first}/{len(caused)}"
    lines += ["", f"{total}, predicted {len(near)}/{len(gainful)}, false blame {num_blamed}"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without-step-ms", action="store_true", help="do not tell it the unprofiled step time")
    parser.add_argument("--multi", action="store_true", help="also cases of several ranks")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--held-out", action="store_true", help="only the cases marked held_out")
    which.add_argument("--seen", action="store_true", help="only the others")
    arguments = parser.parse_args()
    cases = json.loads((arguments.folder / "truth.json").read_text())["cases"]
    scores = []
    for name, truth in cases.items():
        if (
            ("/" in name and not arguments.multi)
            or (arguments.held_out and not truth.get("held_out"))
            or (arguments.seen and truth.get("held_out"))
        ):
            continue
        try:
            scored = score(arguments.folder, name, truth, not arguments.without_step_ms)
        except StepscopeError as problem:
            sys.stderr.write(f"{name}: {problem}\n")
            continue
        if scored is not None:
            scores.append(scored)
    sys.stdout.write(report(scores) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
