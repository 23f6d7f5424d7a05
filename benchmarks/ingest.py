"""What it costs to read and diagnose a big trace, beside json.loads and HTA on the same file, in
one run.

    python -m benchmarks.ingest --source TRACE [--hta-python PYTHON] [--repeat 3]
    python -m benchmarks.ingest --trace PATH [--trace PATH ...]

The first makes 56 and 520 MB traces of TRACE's events, the second measures traces of your own.
Run it from the root of the repository, with the python that has stepscope. The table goes to the
screen and to benchmarks/out/ingest.md. Compare CPU seconds and memory; wall time says as much about
what else the machine was doing.

Rows, each a fresh process with the file in the page cache:

- `json.loads`: read the file, json.loads it, nothing more. The floor for any tool that parses with
  the standard library.
- `stepscope, reading alone`: from the file to a Trace, with the compiled scanner where it was
  built, and with the Python one.
- `stepscope diagnose --no-cache`: the whole command, from the file to a diagnosis in JSON.
- `stepscope diagnose, cold cache` and `warm cache`: the command twice on a trace in a folder of its
  own; the first writes the columnar cache, the second reads it.
- `HTA`: TraceAnalysis(trace_dir=...) and one get_temporal_breakdown(visualize=False), with its
  default settings. It does less than a diagnosis: idle, compute and non-compute time of each rank.
  HTA finds ranks by a "rank" line and reads the whole file again to look for one; a trace without
  gets that line in a copy, so that HTA is not charged for it. On some traces its breakdown fails an
  assertion of its own, and the row says so: take a source on which it does not.

HTA needs an environment of its own, for its many dependencies (it does not need torch):

    python -m venv /tmp/hta-venv
    /tmp/hta-venv/bin/pip install traceinsight==0.6.1
    python -m benchmarks.ingest --hta-python /tmp/hta-venv/bin/python ...

Take a source with many events in a step. HTA looks every event up in a list of all ProfilerStep
marks, so its load grows with events x steps: of two traces of 214 MB, the one with 48 steps cost it
1.7 times the one with 9. Copies add steps, and a trace with a hundred of them flatters us; the
table says how many there are.

With --repeat N the rows take turns N times; the table has the medians.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.make_big_trace import LayoutError, make_big_trace
from benchmarks.measure import Measurement, measure
from stepscope.core.compiled import PURE, in_use

OUT = Path(__file__).parent / "out"
SIZES_MB = (56, 520)
NUM_STARTUPS = 7

JSON_LOADS = """
import gzip, json, sys
path = sys.argv[1]
with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
    trace = json.loads(file.read())
print(len(trace["traceEvents"] if isinstance(trace, dict) else trace))
"""
READ = """
import sys
from pathlib import Path
from stepscope.core.compiled import in_use
from stepscope.readers.kineto.trace import read
from stepscope.readers.source import Source
print(in_use(), len(read(Source(path=Path(sys.argv[1]), label=sys.argv[1]))))
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
print(TraceAnalysis(trace_dir=sys.argv[1]).get_temporal_breakdown(visualize=False).to_string())
"""
RANK_LINE = b'\n    "distributedInfo": {"rank": 0, "world_size": 1},'


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to read a trace: what it is called and how to run it once."""

    name: str
    run: Callable[[], Measurement]
    check: Callable[[Measurement], str | None] = lambda measurement: measurement.failure


def stepscope(*arguments: str) -> list[str]:
    """The command line, in the environment of this python."""
    return [sys.executable, "-m", "stepscope", *arguments]


def diagnosis_failure(measurement: Measurement) -> str | None:
    """Why a run of `stepscope diagnose` does not count; a quick exit without a diagnosis must not
    look fast."""
    if measurement.failure:
        return measurement.failure
    try:
        diagnosis = json.loads(measurement.stdout)
    except ValueError:
        return "no JSON on stdout"
    return (
        None
        if isinstance(diagnosis, dict) and diagnosis.get("ranks")
        else "the diagnosis has no ranks"
    )


def head(trace: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of a plain or gzipped trace."""
    if trace.suffix == ".gz":
        with gzip.open(trace) as file:
            return file.read(size)
    with trace.open("rb") as file:
        return file.read(size)


def count_steps(trace: Path) -> int:
    """How many ProfilerStep marks the trace tells apart. Counted here, so that no row is charged
    for it."""
    marks: set[bytes] = set()
    with gzip.open(trace) if trace.suffix == ".gz" else trace.open("rb") as file:
        for line in file:
            if b'"ProfilerStep#' in line:
                marks.update(re.findall(rb'"ProfilerStep#(\d+)"', line))
    return len(marks)


def lend(trace: Path, folder: Path) -> Path:
    """The trace under `folder`, as a hard link where the file system allows one."""
    path = folder / trace.name
    try:
        os.link(trace, path)
    except OSError:
        shutil.copyfile(trace, path)
    return path


def lend_to_hta(trace: Path, folder: Path) -> None:
    """The trace under `folder`, with a rank in its head. A gzipped one without is left so: HTA then
    takes rank 0."""
    if trace.suffix == ".gz" or b'"rank": ' in head(trace):
        lend(trace, folder)
        return
    with trace.open("rb") as source, (folder / trace.name).open("wb") as out:
        before, brace, after = source.read(1 << 16).partition(b"{")
        out.write(before + brace + RANK_LINE + after)
        shutil.copyfileobj(source, out, 1 << 22)


def trace_rows(trace: Path, scratch: Path, hta_python: Path | None) -> list[Row]:
    """The rows of one trace, in the order they run; `scratch` is an empty folder."""
    cached = scratch / "cached"
    cached.mkdir()
    linked = lend(trace, cached)

    def diagnose(path: Path, *options: str) -> Measurement:
        # The user's cache folder is ours.
        return measure(
            stepscope("diagnose", str(path), "--format", "json", *options),
            env={"XDG_CACHE_HOME": str(cached)},
        )

    def diagnose_cold() -> Measurement:
        for path in cached.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path != linked:
                path.unlink()
        return diagnose(linked)

    read = [sys.executable, "-c", READ, str(trace)]
    rows = [
        Row(name="json.loads", run=lambda: measure([sys.executable, "-c", JSON_LOADS, str(trace)])),
        Row(name=f"stepscope, reading alone ({in_use()})", run=lambda: measure(read)),
        Row(
            name="stepscope, reading alone (Python scanner)",
            run=lambda: measure(read, env={PURE: "1"}),
        ),
        Row(
            name="stepscope diagnose --no-cache",
            run=lambda: diagnose(trace, "--no-cache"),
            check=diagnosis_failure,
        ),
        Row(name="stepscope diagnose, cold cache", run=diagnose_cold, check=diagnosis_failure),
        Row(
            name="stepscope diagnose, warm cache",
            run=lambda: diagnose(linked),
            check=diagnosis_failure,
        ),
    ]
    if hta_python:
        folder = scratch / "hta"
        folder.mkdir()
        lend_to_hta(trace, folder)
        name = f"HTA {hta_version(hta_python)}, load + temporal breakdown"
        rows.append(Row(name=name, run=lambda: measure([str(hta_python), "-c", HTA, str(folder)])))
    return rows


def hta_version(hta_python: Path) -> str:
    """The version of HTA there, or a question mark; the row itself says what is wrong."""
    code = "from importlib.metadata import version; print(version('traceinsight'))"
    done = subprocess.run(
        [str(hta_python), "-c", code], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "?"


def measure_trace(trace: Path, *, hta_python: Path | None, repeat: int) -> list[str]:
    """Measure every row on one trace; return the lines of its table."""
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=OUT, prefix="ingest-") as scratch:
        rows = trace_rows(trace.resolve(), Path(scratch), hta_python)
        runs: dict[str, list[Measurement]] = {row.name: [] for row in rows}
        failures: dict[str, str] = {}
        for _ in range(repeat):
            for row in rows:
                if row.name in failures:
                    continue
                print(f"... {trace.name}: {row.name}", file=sys.stderr, flush=True)
                measurement = row.run()
                runs[row.name].append(measurement)
                if failure := row.check(measurement):
                    failures[row.name] = failure
    return trace_table(trace, runs, failures, hta=hta_python is not None)


def trace_table(
    trace: Path, runs: dict[str, list[Measurement]], failures: dict[str, str], *, hta: bool
) -> list[str]:
    """The markdown of one trace, from the runs of each row; the first row is what the others are
    compared with."""
    floor_name, floor_runs = next(iter(runs.items()))
    num_events = None if floor_name in failures else int(floor_runs[0].stdout)
    floor_cpu_s = None if floor_name in failures else median_cpu_s(floor_runs)
    lines = [
        (
            f"## {trace.name}: {trace.stat().st_size / 1e6:.1f} MB, {num_events or '?'} events, "
            f"{count_steps(trace)} steps"
        ),
        "",
        f"| | CPU s | wall s | peak MB | events per CPU s | CPU / {floor_name} |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, measurements in runs.items():
        if name in failures:
            lines.append(f"| {name} | failed: {cell(failures[name])} | | | | |")
            continue
        cpu_s = median_cpu_s(measurements)
        wall_s = statistics.median(each.wall_s for each in measurements)
        peak_mb = statistics.median(each.peak_bytes for each in measurements) / 1e6
        rate = f"{num_events / cpu_s:,.0f}" if num_events else ""
        ratio = f"{cpu_s / floor_cpu_s:.2f}" if floor_cpu_s else ""
        lines.append(f"| {name} | {cpu_s:.2f} | {wall_s:.2f} | {peak_mb:,.0f} | {rate} | {ratio} |")
    if not hta:
        lines.append("| HTA | skipped: no --hta-python | | | | |")
    return [*lines, ""]


def median_cpu_s(measurements: list[Measurement]) -> float:
    return statistics.median(each.cpu_s for each in measurements)


def cell(text: str) -> str:
    """Text that fits a cell of a markdown table."""
    return text.replace("|", "/")[:160]


def startup_table() -> list[str]:
    """How long `stepscope --help` takes, beside a python that does nothing."""
    lines = [
        f"## Startup, median of {NUM_STARTUPS}",
        "",
        "| | CPU ms | wall ms | peak MB |",
        "|---|---:|---:|---:|",
    ]
    for name, command in (
        ("python -c pass", [sys.executable, "-c", "pass"]),
        ("stepscope --help", stepscope("--help")),
    ):
        print(f"... {name}", file=sys.stderr, flush=True)
        measurements = [measure(command) for _ in range(NUM_STARTUPS)]
        if failure := next(filter(None, (each.failure for each in measurements)), None):
            lines.append(f"| {name} | failed: {cell(failure)} | | |")
            continue
        cpu_ms = median_cpu_s(measurements) * 1e3
        wall_ms = statistics.median(each.wall_s for each in measurements) * 1e3
        peak_mb = statistics.median(each.peak_bytes for each in measurements) / 1e6
        lines.append(f"| {name} | {cpu_ms:.0f} | {wall_ms:.0f} | {peak_mb:.0f} |")
    return [*lines, ""]


def machine_line() -> str:
    """Which machine, and how busy it was when the run began."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return (
        f"{os.cpu_count()} x {model}, Python {platform.python_version()}, load "
        f"{os.getloadavg()[0]:.1f} at the start."
    )


def default_traces(source: Path | None) -> list[Path]:
    """The 56 and 520 MB traces in benchmarks/out, made from `source`, or those made before when
    there is none."""
    OUT.mkdir(exist_ok=True)
    traces = []
    for megabytes in SIZES_MB:
        path = OUT / f"big_{megabytes}.json"
        if source:
            print(f"... making {path}", file=sys.stderr, flush=True)
            make_big_trace(source, path, megabytes=megabytes)
        elif not path.exists():
            raise FileNotFoundError(
                f"{path} is not there; give --source TRACE to make it, or --trace PATH to measure "
                "another"
            )
        traces.append(path)
    return traces


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trace", type=Path, action="append", help="a trace to measure; may be given again"
    )
    parser.add_argument(
        "--source", type=Path, help="the trace whose events fill the 56 and 520 MB ones"
    )
    parser.add_argument(
        "--hta-python", type=Path, help="the python of an environment with traceinsight"
    )
    parser.add_argument("--repeat", type=int, default=1, help="runs of each row (1)")
    args = parser.parse_args()
    if args.repeat < 1:
        parser.error("--repeat: at least 1")
    if args.hta_python and not args.hta_python.exists():
        parser.error(f"--hta-python: {args.hta_python} is not there; see --help for how to make it")
    try:
        traces = args.trace or default_traces(args.source)
        lines = [
            "# Reading a big trace",
            "",
            machine_line(),
            f"Medians of {args.repeat}; a MB is 10^6 bytes.",
            "",
        ]
        for trace in traces:
            lines += measure_trace(trace, hta_python=args.hta_python, repeat=args.repeat)
    except (LayoutError, OSError) as error:
        parser.exit(2, f"ingest: {error}\n")
    lines += startup_table()
    text = "\n".join(lines)
    (OUT / "ingest.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
