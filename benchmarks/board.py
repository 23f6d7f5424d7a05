"""Scores promised gains against what each single change really gave.

    python -m benchmarks.board FOLDER... [--without-step-ms] [--json FILE]
    python -m benchmarks.board FOLDER --save    # FOLDER/scored.json, with the step time and without

`benchmarks/accuracy.py` makes docs/accuracy.md of what was saved.

FOLDER has a board.json (jobs, their step time without a profiler, and the step time after each of
several single changes) and a trace NAME.pt.trace.json.gz (or .zst) per job; those of the lab lie
where benchmarks/recordings.py says. For every finding whose change was measured: *error* is
|promised / got - 1|, *covered* says whether what was got lies in the printed range. A promise over
1.10 where under 1.03 was got is *false blame*; a change that gave over 1.10 and has no finding is
*missed*; *regret* is the share of the best single change's speed that following the first finding
with a measured change leaves out.
A change named CODE#VARIANT is another way to fix CODE: the plain one is what the finding advises.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import stepscope
from benchmarks.recordings import demand, recorded
from stepscope.core.diagnosis import Diagnosis

BLAME, INNOCENT, WORTH = 1.10, 1.03, 1.10
CLOSE = (0.10, 0.15)


class Change(msgspec.Struct):
    """One measured change; without a speedup it failed."""

    speedup: float | None = None


class BoardJob(msgspec.Struct):
    changes: dict[str, Change]
    step_ms: float | None = None


class Board(msgspec.Struct):
    jobs: dict[str, BoardJob]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A finding and what its change gave."""

    job: str
    code: str
    promised: float
    low: float
    high: float
    got: float

    @property
    def error(self) -> float:
        return abs(self.promised / self.got - 1)

    @property
    def is_covered(self) -> bool:
        return self.low <= self.got <= self.high

    @property
    def is_blame(self) -> bool:
        return self.promised > BLAME and self.got < INNOCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One job: its pairs, the gains that no finding names, and what the first advice leaves."""

    pairs: tuple[Pair, ...]
    missed: tuple[tuple[str, str, float], ...]
    regret: float | None


def trace_of(folder: Path, name: str) -> Path:
    """Return the job's trace, as it was written or packed anew."""
    packed = folder / f"{name}.pt.trace.json.zst"
    return packed if packed.exists() else packed.with_suffix(".gz")


def score(name: str, job: BoardJob, diagnosis: Diagnosis) -> Outcome:
    got = {code: change.speedup for code, change in job.changes.items() if change.speedup}
    plain = {code: speedup for code, speedup in got.items() if "#" not in code}
    pairs = tuple(
        Pair(
            job=name,
            code=finding.code,
            promised=finding.predicted_speedup,
            low=finding.predicted_low,
            high=finding.predicted_high,
            got=plain[finding.code],
        )
        for finding in diagnosis.findings
        if finding.code in plain
    )
    named = {finding.code for finding in diagnosis.findings}
    missed = tuple(
        (name, code, speedup)
        for code, speedup in plain.items()
        if speedup > WORTH and code not in named
    )
    regret = None
    if pairs and got:
        best = max(1.0, *got.values())
        regret = max(0.0, 1 - pairs[0].got / best)
    return Outcome(pairs=pairs, missed=missed, regret=regret)


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """The figures over all jobs."""
    pairs = [pair for outcome in outcomes for pair in outcome.pairs]
    errors = sorted(pair.error for pair in pairs)
    regrets = [outcome.regret for outcome in outcomes if outcome.regret is not None]
    return {
        "pairs": len(pairs),
        "median_error": statistics.median(errors) if errors else None,
        "p90_error": errors[min(len(errors) - 1, int(0.9 * len(errors)))] if errors else None,
        "within_10": sum(error <= CLOSE[0] for error in errors),
        "within_15": sum(error <= CLOSE[1] for error in errors),
        "covered": sum(pair.is_covered for pair in pairs),
        "false_blame": sum(pair.is_blame for pair in pairs),
        "missed": sum(len(outcome.missed) for outcome in outcomes),
        "regret": statistics.mean(regrets) if regrets else None,
    }


def by_rule(pairs: list[Pair]) -> dict[str, list[Pair]]:
    rules: dict[str, list[Pair]] = {}
    for pair in pairs:
        rules.setdefault(pair.code, []).append(pair)
    return dict(sorted(rules.items()))


def board_of(folder: Path, *, with_step_ms: bool) -> list[Outcome]:
    board = msgspec.json.decode((folder / "board.json").read_bytes(), type=Board)
    outcomes = []
    for name, job in board.jobs.items():
        trace = trace_of(recorded(folder), name)
        if not trace.exists():
            print(f"{name}: no trace", file=sys.stderr)
            continue
        step_ms = job.step_ms if with_step_ms else None
        diagnosis = stepscope.diagnose(trace, step_ms=step_ms, cache=False, all_findings=True)
        outcomes.append(score(name, job, diagnosis))
        _print_job(name, diagnosis, outcomes[-1])
    return outcomes


def _print_job(name: str, diagnosis: Diagnosis, outcome: Outcome) -> None:
    print(f"{name}: {diagnosis.verdict.bound}, step {diagnosis.step.ms:.1f} ms", flush=True)
    for pair in outcome.pairs:
        marks = ("" if pair.is_covered else " outside") + (" FALSE BLAME" if pair.is_blame else "")
        print(
            f"    {pair.code:24} promised {pair.promised:6.2f} ({pair.low:.2f} to {pair.high:.2f})"
            f"  got {pair.got:6.2f}  error {pair.error:5.0%}{marks}"
        )
    for _, code, speedup in outcome.missed:
        print(f"    {code:24} missed                          got {speedup:6.2f}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def results(outcomes: list[Outcome]) -> dict[str, Any]:
    """The figures, the pairs they are of, by rule, and the gains that no finding named."""
    pairs = [pair for outcome in outcomes for pair in outcome.pairs]
    return {
        **summary(outcomes),
        "jobs": len(outcomes),
        "missed_gains": [list(missed) for outcome in outcomes for missed in outcome.missed],
        "rules": {code: msgspec.to_builtins(of_rule) for code, of_rule in by_rule(pairs).items()},
    }


def save(folder: Path) -> None:
    scored = {
        "step time given": results(board_of(folder, with_step_ms=True)),
        "trace alone": results(board_of(folder, with_step_ms=False)),
    }
    (folder / "scored.json").write_bytes(msgspec.json.format(msgspec.json.encode(scored), indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--without-step-ms", action="store_true", help="judge from the trace alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--save", action="store_true", help="write FOLDER/scored.json")
    arguments = parser.parse_args()
    demand(arguments.folders)
    if arguments.save:
        for folder in arguments.folders:
            save(folder)
        return 0
    outcomes = [
        outcome
        for folder in arguments.folders
        for outcome in board_of(folder, with_step_ms=not arguments.without_step_ms)
    ]
    figures = results(outcomes)
    print(f"\n{'rule':26}{'pairs':>6}{'median':>9}{'within 15 %':>13}{'covered':>9}")
    pairs = [pair for outcome in outcomes for pair in outcome.pairs]
    for code, of_rule in by_rule(pairs).items():
        close = sum(pair.error <= CLOSE[1] for pair in of_rule)
        covered = sum(pair.is_covered for pair in of_rule)
        middle = statistics.median(pair.error for pair in of_rule)
        print(f"{code:26}{len(of_rule):6}{middle:9.1%}{close:13}{covered:9}")
    print(
        f"\n{figures['pairs']} gains: median error {_percent(figures['median_error'])}, "
        f"p90 {_percent(figures['p90_error'])}, within 10 % {figures['within_10']}, "
        f"within 15 % {figures['within_15']}, in their range {figures['covered']}, "
        f"false blame {figures['false_blame']}, missed {figures['missed']}, "
        f"regret {_percent(figures['regret'])}"
    )
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
