"""Counts what a report says that its own numbers, or another part of it, deny.

    python -m benchmarks.agree FOLDER... [--with-step-ms] [--json FILE] [--only TEXT]

Every trace, set of ranks and recorded run below the folders is diagnosed and shown as text, JSON
and HTML, and what they say is compared:

- *largest*: the bound is that of the largest part of the step, or the headline names that part.
- *first*: the first finding is of the bound, or the headline names the finding.
- *whole*: no part is larger than its whole, and shares sum to no more than one.
- *host*: where nothing ran on a device, nothing is said of kernels or of a busy device.
- *ranks*: no section denies a finding about a rank.
- *judged*: nothing is found that is said not to be judged.
- *told*: the text, the JSON and the page have one headline.
- *evidence*: no line of a finding's evidence has a gain under its promise without saying `less`.
- *has*: nothing is advised that the job has: attention's fused operator, workers of a loader.
- *bounds*: no step and no gain is below nothing or outside of its range, and what changes the
  training stands after what does not.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.recordings import demand, recorded
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import RankFacts
from stepscope.errors import StepscopeError
from stepscope.pipeline.options import Options
from stepscope.pipeline.page import page_of_recording
from stepscope.pipeline.recording import Recording
from stepscope.report.diagnosis.json import to_json
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.terminal import to_text
from stepscope.report.html import render_page
from stepscope.report.html.model import page_of
from stepscope.rules.headline import by_bound, part_words_of

ROUNDING = 0.006
"""Of a whole: shares are printed to a hundredth."""
WORTH = 1.02
GAIN = re.compile(r": (\d+(?:\.\d+)?)x\b")
GAIN_ROUNDING = 0.06
"""Of a gain in two digits."""
MATH_ATTENTION = {
    "aten::_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math",
}
ABSURD = 2.5
"""Times the median step, from which a mean alone is no step of the job's."""
ON_DEVICE = re.compile(
    r"\bkernels?\b|\bGPUs?\b|\bdevice busy\b|\bbusy\b[^.\n]{0,20}\b0 ?%", re.IGNORECASE
)
ALLOWED = re.compile(r"nvidia-smi|no device|CUDA_VISIBLE", re.IGNORECASE)
NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
TIME_UNIT = r"[ \u00a0](ms|s|us)"
PART_OF = re.compile(rf"(?<![\d.]){NUMBER}(?:{TIME_UNIT})? of (?:the )?{NUMBER}{TIME_UNIT}\b")
SHARE = re.compile(rf"(?<![\d.]){NUMBER} ?%")
MAY_EXCEED = re.compile(
    r"slower|longer|faster|more than|above|step by|of a core|cores", re.IGNORECASE
)
"""Said of a ratio, not of a part of something."""
SHARE_OF_PLACE = re.compile(rf"^{NUMBER}% of it at ")
UNIT = {"us": 1e-3, "ms": 1.0, "s": 1e3}
NO_LATE_RANK = ("No rank is the last again and again", "No rank stands out")
RANK_OF = re.compile(r"^(?P<case>.+?)(?:[.-]|_|\.sampled_)rank-?\d+\b.*\.json(\.gz)?$")
DOUBTED = "By the recorded steps: "
"""The headline is of the steps timed with no profiler, and says that the recorded ones differ."""
TRACES = ("*.json", "*.json.gz", "*.sqlite", "*.sqlite.gz", "*.nsys-rep")
NO_TRACES = ("truth.json", "board.json", "reference.json", "peaks.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What is said of one recording."""

    diagnosis: Diagnosis
    text: str
    json: str
    page: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    case: str
    kind: str
    words: str


def shown_of(recording: Recording) -> Shown:
    """The recording's diagnosis in all its renderings."""
    diagnosis = recording.diagnosis
    return Shown(
        diagnosis=diagnosis,
        text=to_text(diagnosis_document(diagnosis), width=400),
        json=to_json(diagnosis),
        page=_plain(render_page(page_of(page_of_recording(recording)))),
    )


def violations(shown: Shown) -> Iterator[tuple[str, str]]:
    """What does not agree, as its kind and words."""
    yield from ((("largest"), words) for words in _largest(shown.diagnosis))
    yield from (("first", words) for words in _first(shown.diagnosis))
    yield from (("whole", words) for words in _whole(shown))
    yield from (("host", words) for words in _host(shown))
    yield from (("ranks", words) for words in _ranks(shown))
    yield from (("judged", words) for words in _judged(shown.diagnosis))
    yield from (("told", words) for words in _told(shown))
    yield from (("evidence", words) for words in _evidence(shown.diagnosis))
    yield from (("has", words) for words in _has(shown.diagnosis))
    yield from (("bounds", words) for words in _bounds(shown))


def _evidence(diagnosis: Diagnosis) -> Iterator[str]:
    """Other ways to fix it, against the way that is advised."""
    for finding in diagnosis.findings:
        for line in finding.evidence:
            gain = GAIN.search(line)
            if gain is None or "less" in line:
                continue
            if float(gain[1]) < finding.predicted_speedup * (1 - GAIN_ROUNDING):
                yield f"{finding.code} {finding.predicted_speedup:.2f}, and: {line}"


def _has(diagnosis: Diagnosis) -> Iterator[str]:
    """Advice against what was recorded of the job."""
    operators = {row.name for rank in diagnosis.facts.ranks for row in rank.ops}
    run = diagnosis.facts.run
    loaders = [rank.loader for rank in (() if run is None else run.ranks) if rank.loader]
    for finding in diagnosis.findings:
        if "attn_implementation" in finding.action and MATH_ATTENTION & operators:
            yield f"{finding.code}: {finding.action}"
        if finding.code == "serial-loader" and any(loader.num_workers for loader in loaders):
            yield f"{finding.code}: the loader has workers"


def _bounds(shown: Shown) -> Iterator[str]:
    """Step times and gains that cannot be, and findings out of their order."""
    diagnosis = shown.diagnosis
    run = diagnosis.facts.run
    for rank in () if run is None else run.ranks:
        steps = rank.steps
        if steps is not None and not 0 < steps.low_ns <= steps.step_ns <= steps.high_ns:
            yield f"rank {rank.rank}: a step of {steps.low_ns} to {steps.high_ns} ns"
        is_uneven = steps is not None and steps.step_ns > ABSURD * (steps.median_ns or math.inf)
        if steps is not None and is_uneven and "half of them take" not in shown.text:
            yield f"rank {rank.rank}: a mean of {steps.step_ns} ns, a median of {steps.median_ns}"
    for finding in diagnosis.findings:
        gains = (finding.predicted_low, finding.predicted_speedup, finding.predicted_high)
        if not 0 < gains[0] <= gains[1] <= gains[2]:
            yield f"{finding.code}: {gains}"
    worth = [each for each in diagnosis.findings if each.predicted_speedup >= WORTH]
    order = [finding.changes_training for finding in worth]
    if order != sorted(order):
        yield f"{', '.join(finding.code for finding in worth)}: another training is not last"


def _largest(diagnosis: Diagnosis) -> Iterator[str]:
    """The verdict against the parts of the step that it is printed above."""
    verdict = diagnosis.verdict
    if verdict.bound == "unknown" or not diagnosis.facts.ranks:
        return
    if verdict.shares and verdict.shares[verdict.bound] < max(verdict.shares.values()) - ROUNDING:
        yield f"bound {verdict.bound}, shares {_shares(verdict.shares)}"
    parts = _by_bound(diagnosis.facts.median_rank)
    if not parts:
        return
    largest = max(parts, key=lambda bound: parts[bound])
    named = {verdict.bound, verdict.second}
    is_kernels = largest == "compute" and "memory" in named
    words = part_words_of(diagnosis.facts.median_rank)[largest]
    told = f"recorded step is {words}" in verdict.summary or DOUBTED in verdict.summary
    if largest in named or is_kernels or told:
        return
    yield f"{verdict.summary!r} over {_shares(parts)}"


def _first(diagnosis: Diagnosis) -> Iterator[str]:
    verdict = diagnosis.verdict
    if not diagnosis.findings or verdict.bound == "unknown":
        return
    first = diagnosis.findings[0]
    if first.bound in (verdict.bound, verdict.second) or first.code in verdict.summary:
        return
    yield f"{verdict.summary!r}, first {first.code} ({first.bound}) {first.predicted_speedup:.2f}"


def _whole(shown: Shown) -> Iterator[str]:
    shares = shown.diagnosis.verdict.shares
    if sum(shares.values()) > 1 + ROUNDING:
        yield f"the verdict's shares sum to {sum(shares.values()):.0%}: {_shares(shares)}"
    for finding in shown.diagnosis.findings:
        if sum(place.share for place in finding.source_locations) > 1 + ROUNDING:
            yield f"{finding.code}: places sum to over 100 %"
        evidence = [SHARE_OF_PLACE.match(line) for line in finding.evidence]
        if sum(float(found[1]) for found in evidence if found) > 101:
            yield f"{finding.code}: evidence sums to over 100 %"
    for line in shown.text.splitlines():
        yield from _lines(line)
    for line in shown.page.splitlines():
        yield from (f"page: {words}" for words in _lines(line))


def _lines(line: str) -> Iterator[str]:
    for part, unit, whole, of in PART_OF.findall(line):
        if _ms(part, unit or of) > _ms(whole, of) * (1 + ROUNDING):
            yield f"{part} of {whole} {of}: {line.strip()[:160]}"
    words = line.strip()
    for share in SHARE.findall(words):
        if float(share.replace(",", "")) > 100 and not MAY_EXCEED.search(words):
            yield f"over 100 %: {words[:160]}"
    if words.startswith("host ") and "in the loader" in words:
        total = sum(float(share) for share in SHARE.findall(words))
        if total > 101:
            yield f"shares sum to {total:.0f} %: {words}"


def _host(shown: Shown) -> Iterator[str]:
    """What is said of a device where none worked."""
    ranks = shown.diagnosis.facts.ranks
    run = shown.diagnosis.facts.run
    if any(rank.steps.where == "device" or rank.device_name for rank in ranks):
        return
    if run is not None and any(rank.has_device for rank in run.ranks):
        return
    if not ranks and run is None:
        return
    for name, text in (("text", shown.text), ("page", shown.page)):
        for line in text.splitlines():
            if ON_DEVICE.search(line) and not ALLOWED.search(line):
                yield f"{name}: {line.strip()[:160]}"


def _ranks(shown: Shown) -> Iterator[str]:
    diagnosis = shown.diagnosis
    comms = diagnosis.facts.comms
    stragglers = [] if comms is None else [row.rank for row in comms.ranks if row.is_straggler]
    for rank, code in diagnosis.holding_up:
        for words in NO_LATE_RANK:
            for name, text in (("text", shown.text), ("page", shown.page)):
                if words in text:
                    yield f"{name}: {words!r} under {code} of rank {rank}"
    if len({rank for rank, _ in diagnosis.holding_up}) > 1:
        yield f"several ranks hold the others up: {diagnosis.holding_up}"
    said = {rank for rank, _ in diagnosis.holding_up}
    if said and stragglers and not said & set(stragglers):
        yield f"ranks {stragglers} called late, rank {sorted(said)} holds the others up"


def _judged(diagnosis: Diagnosis) -> Iterator[str]:
    found = {finding.code for finding in diagnosis.findings}
    for abstention in diagnosis.abstentions:
        if abstention.code in found:
            yield f"{abstention.code} is found, and not judged: {abstention.reason}"
    nothing = "nothing found worth" in diagnosis.verdict.summary
    if nothing and any(finding.predicted_speedup >= WORTH for finding in diagnosis.findings):
        yield f"{diagnosis.verdict.summary!r} over {len(found)} findings"


def _told(shown: Shown) -> Iterator[str]:
    headline = " ".join(shown.diagnosis.verdict.summary.split())
    if json.loads(shown.json)["verdict"]["summary"] != shown.diagnosis.verdict.summary:
        yield "the JSON has another headline"
    for name, text in (("text", shown.text), ("page", shown.page)):
        if headline not in " ".join(text.split()):
            yield f"the {name} has another headline"


def _by_bound(rank: RankFacts) -> dict[str, float]:
    parts = rank.typical_parts_ns
    if parts is None or not sum(parts.values()):
        return {}
    total = sum(parts.values())
    return by_bound({part: value / total for part, value in parts.items()})


def _shares(shares: dict[str, float] | object) -> str:
    assert isinstance(shares, dict)
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in ordered if share >= 0.005)


def _ms(value: str, unit: str) -> float:
    return float(value.replace(",", "")) * UNIT[unit]


def _plain(page: str) -> str:
    """What a reader of the page sees."""
    body = re.sub(r"(?s)<(script|style|template)\b.*?</\1>", "", page)
    body = re.sub(r"(?s)<details>\s*<summary>What this means.*?</details>", "", body)
    body = re.sub(r"</(p|tr|li|h\d|dd|div|summary)>", "\n", body)
    return html.unescape(re.sub(r"<[^>]+>", " ", body))


def cases_below(folder: Path) -> dict[str, list[Path]]:
    """Recorded runs, and traces with the ranks of one job together."""
    place = recorded(folder)
    if place.is_file():
        return {place.name: [place]}
    runs = sorted(path.parent for path in place.rglob("run.json"))
    found = {str(folder.name / run.relative_to(place)): [run] for run in runs}
    for path in sorted(path for kind in TRACES for path in place.rglob(kind)):
        if path.name in NO_TRACES or any(run in path.parents for run in runs):
            continue
        name = str(folder.name / path.relative_to(place))
        several = RANK_OF.match(name)
        found.setdefault(several["case"] if several else name, []).append(path)
    return found


class _Truths(msgspec.Struct):
    """Step times by case, as a truth.json or a board.json has them."""

    cases: dict[str, dict[str, Any]] = {}
    jobs: dict[str, dict[str, Any]] = {}


def _step_ms(folder: Path, case: str) -> float | None:
    """As the folder's truth or board has it."""
    stem = re.sub(r"\.pt\.trace\.json(\.gz)?$", "", case.split("/", 1)[-1])
    short, _, variant = stem.rpartition(".")
    for name in ("truth.json", "board.json"):
        path = folder / name
        if not path.is_file():
            continue
        truths = msgspec.json.decode(path.read_bytes(), type=_Truths)
        of_case = truths.cases.get(short.removeprefix("single/").removeprefix("traces/"), {})
        step_ms = of_case.get(f"{variant}_ms", truths.jobs.get(stem, {}).get("step_ms"))
        if isinstance(step_ms, int | float):
            return step_ms
    return None


def checked(name: str, paths: Sequence[Path], step_ms: float | None) -> list[Violation]:
    options = Options(step_ms=step_ms, use_cache=False, jobs=1)
    with Recording(paths, options) as recording:
        return [
            Violation(case=name, kind=kind, words=words)
            for kind, words in dict.fromkeys(violations(shown_of(recording)))
        ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--with-step-ms", action="store_true", help="tell it the step times too")
    parser.add_argument("--only", default="", help="only recordings with this in their name")
    parser.add_argument("--json", type=Path, help="where the violations go")
    arguments = parser.parse_args()
    demand(arguments.folders)
    found: list[Violation] = []
    num = 0
    for folder in arguments.folders:
        for name, paths in cases_below(folder).items():
            if arguments.only not in name:
                continue
            step_ms = _step_ms(folder, name) if arguments.with_step_ms else None
            try:
                mine = checked(name, paths, step_ms)
            except StepscopeError as problem:
                sys.stderr.write(f"{name}: {problem}\n")
                continue
            except Exception:  # noqa: BLE001 - the count goes on
                sys.stderr.write(f"{name}: {traceback.format_exc()}\n")
                continue
            num += 1
            found += mine
            for violation in mine:
                sys.stdout.write(f"{violation.case}: {violation.kind}: {violation.words}\n")
            sys.stdout.flush()
    kinds = Counter(violation.kind for violation in found)
    cases = len({violation.case for violation in found})
    totals = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    sys.stdout.write(f"\n{len(found)} violations in {cases} of {num} recordings: {totals}\n")
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.encode([asdict(violation) for violation in found]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
