"""Throughputs of one job at several widths, where there are no traces: as they are given (`8=600`),
or as a job's own output states them (`throughput 601.2 samples/s`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median

from stepscope.core.scaling import RunStep, WidthRun
from stepscope.errors import UsageError
from stepscope.protocol.untrusted import finite_text
from stepscope.readers.stream import Stream
from stepscope.readers.text_lines import NUMBER, may_be_output, text_lines
from stepscope.scaling.scale import MIN_WIDTHS, fit_times, karp_flatt
from stepscope.scaling.shapes import Gain, Scaling

GIVEN = re.compile(r"(\d{1,7})=(.{1,4000})")
BARE = re.compile(rf"({NUMBER})\s?(.{{0,40}})")
UNIT = r"(samples?|images?|imgs?|tokens?|tok|sequences?|seqs?|examples?|sentences?|iterations?|it)"
PER_S = r"(?:\s?/\s?s(?:ec(?:ond)?)?\b|[ _]per[ _]s(?:ec(?:ond)?)?\b)"
EACH = r"(\s?/\s?(?:gpu|device|rank)\b|[ _]per[ _](?:gpu|device|rank)\b)?"
AMOUNT = rf"\d{{1,3}}(?:,\d{{3}}){{1,5}}(?:\.\d{{1,9}})?|{NUMBER}"
BEFORE = re.compile(rf"({AMOUNT})\s?{UNIT}{PER_S}{EACH}", re.IGNORECASE)
"""601.2 samples/s"""
AFTER = re.compile(rf"\b{UNIT}{PER_S}{EACH}['\"]?\s?[:=]?\s?['\"]?({AMOUNT})", re.IGNORECASE)
"""samples_per_second: 601.2"""
WORLD = re.compile(r"world[_ ]?size['\"]?\s?[:=]?\s?(\d{1,7})\b", re.IGNORECASE)
ANY_UNIT = "rate"
"""Unit of a number that was given without one."""
HEAD_BYTES = 1 << 20
MAX_RATES = 1_000_000
NEXT = (
    "rates do not say where the rest goes: traces of two widths do (stepscope run, then stepscope "
    "diagnose --scaling RUN RUN)"
)
HINT = "give each as WIDTH=RATE (8=600), or logs that state samples/s, as WIDTH=LOG where no width"


def are_rates(paths: Sequence[str]) -> bool:
    """Whether they are throughputs, not recordings; a mixture is refused."""
    rates = [path for path in paths if GIVEN.fullmatch(path) or _states_rate(path)]
    if rates and len(rates) != len(paths):
        other = next(path for path in paths if path not in rates)
        raise UsageError(
            f"{rates[0]} is a throughput and {other} is none: --scaling compares rates with rates, "
            "or recordings with recordings"
        )
    return bool(rates)


def _states_rate(path: str) -> bool:
    file = Path(path)
    if not file.is_file():
        return False
    try:
        with file.open("rb") as opened:
            head = opened.read(HEAD_BYTES)
    except OSError:
        return False
    text = head.decode("utf-8", "replace") if may_be_output(head, file.name) else ""
    return bool(BEFORE.search(text) or AFTER.search(text))


def rate_run(path: str) -> WidthRun:
    """One width, by what is given or what the log states."""
    given = GIVEN.fullmatch(path)
    width = None if given is None else int(given[1])
    rest = path if given is None else given[2]
    bare = BARE.fullmatch(rest) if given is not None else None
    value = None if bare is None or Path(rest).exists() else finite_text(bare[1], 0)
    if bare is not None and value:
        assert width is not None
        return _run(path, width, "given", value, bare[2].strip() or ANY_UNIT, 1)
    return _log_run(rest, width)


def _log_run(path: str, width: int | None) -> WidthRun:
    rates: dict[tuple[str, bool], list[float]] = {}
    world = None
    if not Path(path).is_file():
        raise UsageError(f"{path} is no number and no log: {HINT} is in the log or its name")
    stream = Stream(Path(path))
    with closing(stream.blocks()) as blocks:
        for line, _ in text_lines(blocks):
            if world is None and (match := WORLD.search(line)):
                world = int(match[1])
            found = _rate_in(line)
            if found is not None and sum(map(len, rates.values())) < MAX_RATES:
                unit, is_each, value = found
                rates.setdefault((unit, is_each), []).append(value)
    if not rates:
        raise UsageError(f"{path} states no rate: {HINT} is in the log or its name")
    (unit, is_each), values = max(rates.items(), key=lambda item: len(item[1]))
    source = "given"
    if width is None:
        width, source = world, "world_size in the log"
    if width is None:
        numbers = re.findall(r"\d{1,7}", Path(path).stem)
        width = int(numbers[0]) if len(numbers) == 1 else None
        source = "the file's name"
    if not width:
        raise UsageError(f"how many ranks {path} is of is not known: give it as 8={path}")
    # The first half has what is slow once: imports, caches, compilation.
    steady = values[len(values) // 2 :]
    rate = median(steady) * (width if is_each else 1)
    return _run(path, width, source, rate, f"{unit}/s", len(steady))


def _rate_in(line: str) -> tuple[str, bool, float] | None:
    """The unit, whether it is of one device, and the value."""
    if match := BEFORE.search(line):
        value, unit, each = match[1], match[2], match[3]
    elif match := AFTER.search(line):
        value, unit, each = match[3], match[1], match[2]
    else:
        return None
    number = finite_text(value.replace(",", ""), 0)
    return (unit.lower(), each is not None, number) if number else None


def _run(path: str, width: int, source: str, rate: float, unit: str, num: int) -> WidthRun:
    if width < 1:
        raise UsageError(f"{path}: a run is of one rank at least")
    return WidthRun(
        path=path,
        width=width,
        width_source=source,
        num_ranks=width,
        step=RunStep(count=num, ns=None, profiled_ns=None, source="rate"),
        parts_ns=None,
        flops=None,
        gradient_bytes=None,
        device_name=None,
        op_shares={},
        rate_per_s=rate,
        rate_unit=unit,
    )


def scale_rates(runs: Sequence[WidthRun]) -> Scaling:
    """Each run against the narrowest, by the work done in a second."""
    ordered = tuple(sorted(runs, key=lambda run: run.width))
    units = {run.rate_unit for run in ordered if run.rate_unit != ANY_UNIT}
    if len(units) > 1:
        stated = " and ".join(sorted(units))
        raise UsageError(f"the rates are in {stated}: --scaling needs one unit")
    gains = tuple(None if run is ordered[0] else _gain(ordered[0], run) for run in ordered)
    # Of work that all widths do: seconds for a thousand millions of it.
    times = [(run.width, 1e9 / (run.rate_per_s or 1.0)) for run in ordered]
    return Scaling(
        kind=None,
        kind_source="rates",
        because="rates are of the work done in a second, whatever a step is",
        runs=ordered,
        gains=gains,
        amdahl=fit_times(times),
        notes=(*_trend(gains), NEXT),
    )


def _gain(base: WidthRun, run: WidthRun) -> Gain:
    grown = run.width / base.width
    speedup = (run.rate_per_s or 0.0) / (base.rate_per_s or 1.0)
    return Gain(
        ideal_speedup=grown,
        speedup=speedup,
        efficiency=speedup / grown,
        efficiency_low=None,
        efficiency_high=None,
        karp_flatt=karp_flatt(speedup, grown),
        loss=None,
    )


def _trend(gains: Sequence[Gain | None]) -> list[str]:
    """What the course of the serial share says: work that no rank shares keeps it level."""
    shares = [gain.karp_flatt for gain in gains if gain is not None and gain.karp_flatt is not None]
    if len(shares) < MIN_WIDTHS - 1:
        return []
    if all(before < after for before, after in pairwise(shares)):
        return ["the serial share grows with the width: what is lost is between the ranks"]
    if all(before >= after for before, after in pairwise(shares)):
        words = (
            "the serial share does not grow with the width: what the first widening costs is paid "
            "once (work that no rank shares, the first exchange), and wider adds little to it"
        )
        return [words]
    return []
