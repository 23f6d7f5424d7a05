"""Scores diagnoses against runs whose answer is known.

    python -m benchmarks.truth FOLDER [--without-step-ms] [--multi] [--held-out | --seen]
        [--degrade NAME|all] [--hardware FILE]

FOLDER has a truth.json as the lab writes it and the traces beside it (in single/, traces/ or
itself; NAME.slow and NAME.fixed); those of `lab` lie where benchmarks/recordings.py says. A case is
*named* when the verdict's bound is one of its bounds, *found* when one of its causes is among the
first three findings, *first* when it is the first, *predicted* when that finding's gain is within
15 % of the real one. A finding that promises over 1.10 for the fixed cause in a fixed trace, or for
a suspect known to be innocent (`no_gain_from`), is *false blame*.

With --degrade the same traces are judged with something taken from them (benchmarks/degrade.py),
with and without the step time. A *wrong claim* is a bound that is neither one of the case's nor
unknown, false blame, or a promise over 1.10 that is no cause and that the whole trace's diagnosis
does not make.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from benchmarks.degrade import DEGRADATIONS, TraceJson
from benchmarks.recordings import demand, recorded
from stepscope.analyses.rank_context import build_context, device_of
from stepscope.core.calibrated import Calibrated
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import Facts
from stepscope.errors import StepscopeError
from stepscope.hardware.lookup import find_spec
from stepscope.pipeline.contexts import RankContexts
from stepscope.pipeline.measure import measure_job
from stepscope.readers.cache import read_trace
from stepscope.readers.format import Source
from stepscope.readers.hardware_file import read_hardware
from stepscope.readers.inputs import find_sources
from stepscope.rules.case import Case, case_of
from stepscope.rules.job_case import Job
from stepscope.rules.verdict import diagnose_job

CLOSE = 0.15
BLAME = 1.10
FIRST = 3
TIE = 0.1
"""Two bounds whose shares of the step differ by less are not distinguished."""
MIN_GAIN = 1.02
"""A fix that gave less has no gain to predict."""


@dataclass(kw_only=True)
class Score:
    """One case."""

    name: str
    bound: str
    named: bool
    found: int | None
    """The place of the first true cause among the findings, from 1; None: not there or no cause to
    find."""
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
        found = sorted(place.glob(f"{case}.{variant}.pt.trace.json*")) or sorted(
            place.glob(f"{case}.{variant}.rank*.json*")
        )
        found = [path for path in found if not path.name.endswith(".stepscope-cache")]
        if found:
            return [str(path) for path in found]
    return []


def diagnosed(
    paths: list[str], step_ms: float | None, hardware: Calibrated | None = None
) -> Diagnosis:
    with find_sources(paths) as found:
        step_ns = None if step_ms is None else round(step_ms * 1e6)
        contexts = RankContexts(use_cache=False, hardware=hardware)
        return diagnose_job(measure_job(found.sources, step_ns=step_ns, contexts=contexts))


def repaired(truth: dict[str, Any]) -> list[str]:
    """The causes that a fixed run is without. Where the fix is of the innocent suspect, the true
    cause is still there; and where another fix of the cause gave more (TF32 for fp32, and then
    bf16), so is a part of it."""
    best = max((way["speedup"] for way in truth.get("also", {}).values()), default=0.0)
    if "cause_speedup" in truth or best > BLAME * truth.get("speedup", best):
        return []
    causes: list[str] = truth.get("causes", [])
    return causes


def score(
    folder: Path,
    name: str,
    truth: dict[str, Any],
    with_step_ms: bool,
    hardware: Calibrated | None = None,
) -> Score | None:
    """How the slow run was judged, and whether anything innocent was blamed in either."""
    paths = traces(folder, name, "slow")
    if not paths:
        return None
    slow = diagnosed(paths, truth.get("slow_ms") if with_step_ms else None, hardware)
    causes = truth.get("causes", [])
    codes = [finding.code for finding in slow.findings]
    places = [codes.index(code) + 1 for code in causes if code in codes]
    place = min(places) if places else None
    blamed = [
        f"{f.code} {f.predicted_speedup:.2f}"
        for f in slow.findings
        if f.code in truth.get("no_gain_from", []) and f.predicted_speedup > BLAME
    ]
    paths = traces(folder, name, "fixed")
    if paths:
        fixed = diagnosed(paths, truth.get("fixed_ms") if with_step_ms else None, hardware)
        accused = [*repaired(truth), *truth.get("no_gain_from", [])]
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


def read_json(path: str) -> TraceJson:
    content = Path(path).read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    elif content.startswith(zstandard.FRAME_HEADER):
        content = zstandard.ZstdDecompressor().decompress(content)
    decoded: TraceJson = msgspec.json.decode(content)
    return decoded


def _same(case: Case, _index: int, _step_ns: int | None) -> Case:
    return case


def diagnosed_degraded(
    trace: TraceJson, name: str, steps_ms: list[float | None]
) -> list[Diagnosis]:
    """The diagnosis of the trace with something taken from it ("" takes nothing), for each step
    time it is told."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(msgspec.json.encode(DEGRADATIONS[name](trace) if name else trace))
        read = read_trace(Source(path=path, label=path.name), use_cache=False)
    device = device_of(read)
    found = build_context(read, None if device is None else find_spec(device))
    diagnoses = []
    for step_ms in steps_ms:
        step_ns = None if step_ms is None else round(step_ms * 1e6)
        case = case_of(found, 0, step_ns)
        facts = Facts(ranks=(case.facts,), given_step_ns=step_ns)
        diagnoses.append(diagnose_job(Job(facts=facts, case_of=partial(_same, case))))
    return diagnoses


def wrong_claims(
    degraded: Diagnosis, whole: Diagnosis, truth: dict[str, Any], *, fixed: bool
) -> list[str]:
    """What the degraded trace's diagnosis says that is not so, as far as is known. A fixed run's
    bound is not known: it may be what the whole trace says, a near tie of it, or any of the slow
    one's."""
    bounds = {*truth["bounds"], "unknown"}
    if fixed:
        most = max(whole.verdict.shares.values(), default=0.0)
        bounds |= {
            whole.verdict.bound,
            *(b for b, share in whole.verdict.shares.items() if share >= most - TIE),
        }
    wrong = [] if degraded.verdict.bound in bounds else [f"bound {degraded.verdict.bound}"]
    innocent = {*truth.get("no_gain_from", [])} | ({*repaired(truth)} if fixed else set())
    expected = {finding.code for finding in whole.findings} | (
        {*truth.get("causes", [])} - innocent
    )
    return wrong + [
        f"{finding.code} {finding.predicted_speedup:.2f}"
        for finding in degraded.findings
        if finding.predicted_speedup > BLAME
        and (finding.code in innocent or finding.code not in expected)
    ]


@dataclass(kw_only=True)
class Degraded:
    """One case under one degradation."""

    name: str
    degradation: str
    given: bool
    """The step time was."""
    bounds: list[str]
    wrong: list[str]


def score_degraded(
    folder: Path, name: str, truth: dict[str, Any], names: list[str], given: list[bool]
) -> list[Degraded]:
    """The slow and the fixed run of a case under each degradation."""
    scores = {
        (d, g): Degraded(name=name, degradation=d, given=g, bounds=[], wrong=[])
        for d in names
        for g in given
    }
    for variant in ("slow", "fixed"):
        for path in traces(folder, name, variant)[:1]:
            trace = read_json(path)
            steps_ms = [
                truth.get(f"{variant}_ms") if with_step_ms else None for with_step_ms in given
            ]
            whole = diagnosed_degraded(trace, "", steps_ms)
            for degradation in names:
                try:
                    found = diagnosed_degraded(trace, degradation, steps_ms)
                except StepscopeError as problem:
                    sys.stderr.write(f"{name} {degradation}: {problem}\n")
                    continue
                for place, with_step_ms in enumerate(given):
                    result = scores[degradation, with_step_ms]
                    result.bounds.append(found[place].verdict.bound)
                    claims = wrong_claims(
                        found[place], whole[place], truth, fixed=variant == "fixed"
                    )
                    result.wrong += [f"{variant}: {claim}" for claim in claims]
    return list(scores.values())


def report_degraded(scores: list[Degraded]) -> str:
    """Each wrong claim, then how many there are under each degradation."""
    lines = [
        "| degradation | case | step time | bounds (slow, fixed) | wrong claims |",
        "|---|---|---|---|---|",
    ]
    lines += [
        (
            f"| {s.degradation} | {s.name} | {'given' if s.given else '-'} | "
            f"{', '.join(s.bounds)} | "
            f"{'; '.join(s.wrong)} |"
        )
        for s in sorted(scores, key=lambda s: s.degradation)
        if s.wrong
    ]
    lines += [
        "",
        "| degradation | cases | no bound | wrong, step time given | wrong, without |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(s.degradation for s in scores):
        mine = [s for s in scores if s.degradation == name]
        wrong = [sum(len(s.wrong) for s in mine if s.given == given) for given in (True, False)]
        silent = sum(s.bounds[:1] == ["unknown"] for s in mine)
        lines.append(
            f"| {name} | {len({s.name for s in mine})} | {silent} of {len(mine)} | {wrong[0]} | "
            f"{wrong[1]} |"
        )
    return "\n".join([*lines, "", f"wrong claims {sum(len(s.wrong) for s in scores)}"])


def report(scores: list[Score]) -> str:
    """A table, a row per case, and the totals."""
    lines = [
        "| case | bound | named | cause at | predicted | true | replay | false blame |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in scores:
        gain = "-" if s.predicted is None else f"{s.predicted:.2f}"
        true = "-" if s.true is None else f"{s.true:.2f}"
        error = "-" if s.replay_error is None else f"{s.replay_error:+.1%}"
        named, place, blamed = "yes" if s.named else "NO", s.found or "-", "; ".join(s.blamed)
        lines.append(
            f"| {s.name} | {s.bound} | {named} | {place} | {gain} | {true} | {error} | {blamed} |"
        )
    caused = [s for s in scores if s.has_cause]
    gainful = [s for s in caused if s.true is not None and s.true >= MIN_GAIN]
    near = [
        s
        for s in gainful
        if s.predicted is not None and s.true is not None and abs(s.predicted / s.true - 1) <= CLOSE
    ]
    found = sum(1 for s in caused if s.found is not None and s.found <= FIRST)
    first = sum(1 for s in caused if s.found == 1)
    num_blamed = sum(len(s.blamed) for s in scores)
    total = (
        f"named {sum(s.named for s in scores)}/{len(scores)}, found {found}/{len(caused)}, first "
        f"{first}/{len(caused)}"
    )
    lines += ["", f"{total}, predicted {len(near)}/{len(gainful)}, false blame {num_blamed}"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--without-step-ms", action="store_true", help="do not tell it the unprofiled step time"
    )
    parser.add_argument("--multi", action="store_true", help="also cases of several ranks")
    parser.add_argument(
        "--degrade",
        choices=[*DEGRADATIONS, "all"],
        help="judge the traces with this taken from them",
    )
    parser.add_argument(
        "--hardware",
        type=Path,
        help="judge by what `stepscope calibrate` wrote there; not with --degrade",
    )
    parser.add_argument("--only", help="only cases with this in their name")
    parser.add_argument("--jobs", type=int, default=1, help="processes for --degrade")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--held-out", action="store_true", help="only the cases marked held_out")
    which.add_argument("--seen", action="store_true", help="only the others")
    arguments = parser.parse_args()
    demand([arguments.folder])
    folder = recorded(arguments.folder)
    cases = json.loads((arguments.folder / "truth.json").read_text())["cases"]
    chosen = {
        name: truth
        for name, truth in cases.items()
        if ("/" not in name or arguments.multi)
        and (not arguments.held_out or truth.get("held_out"))
        and (not arguments.seen or not truth.get("held_out"))
        and (arguments.only or "") in name
    }
    if arguments.degrade:
        names = list(DEGRADATIONS) if arguments.degrade == "all" else [arguments.degrade]
        given = [False] if arguments.without_step_ms else [True, False]
        with ProcessPoolExecutor(arguments.jobs) as pool:
            n = len(chosen)
            found = pool.map(
                score_degraded,
                [folder] * n,
                chosen,
                chosen.values(),
                [names] * n,
                [given] * n,
            )
            sys.stdout.write(
                report_degraded([score for several in found for score in several]) + "\n"
            )
        return 0
    hardware = None if arguments.hardware is None else read_hardware(arguments.hardware)
    scores = []
    for name, truth in chosen.items():
        try:
            scored = score(folder, name, truth, not arguments.without_step_ms, hardware)
        except StepscopeError as problem:
            sys.stderr.write(f"{name}: {problem}\n")
            continue
        if scored is not None:
            scores.append(scored)
    sys.stdout.write(report(scores) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
