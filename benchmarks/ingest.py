"""What it costs to read and diagnose a big trace, beside json.loads, faster JSON packages, HTA and
TraceLens on the same file, in one run.

    python -m benchmarks.ingest --source TRACE [--stacks-source TRACE] [--peers-python PYTHON]
        [--tracelens CHECKOUT] [--megabytes 520] [--repeat 3]
    python -m benchmarks.ingest --trace PATH [--trace PATH ...]

The first makes a trace of many short steps and one of few long steps of TRACE's events, and the
same of the second source, with and without its Python stacks (`make_big_trace`). The second form
measures traces of your own. Run it from the root of the repository, with the python that has
stepscope. The table goes to the screen and to benchmarks/out/ingest.md. Compare CPU seconds and
memory; wall time says as much about what else the machine was doing.

Rows, each a fresh process with the file in the page cache:

- `json.loads`: read the file, json.loads it, nothing more. The floor for any tool that parses with
  the standard library.
- `orjson`, `msgspec`, `simdjson`: the same with `orjson.loads`, `msgspec.json.decode`,
  `simdjson.loads`: every value becomes a Python object, nothing more is done.
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
- `TraceLens`: its perf report (`TraceLens.Reporting.generate_perf_report_pytorch`) as CSV files,
  with its default settings: GPU timeline, operators and kernels with FLOPs and bytes, no verdict.

The others need an environment of their own, for their many dependencies (not torch); those that it
lacks are named and left out. TraceLens is on no package index (the `tracelens` of PyPI is something
else) and is run from a checkout of AMD-AGI/TraceLens; what it needs beside for PyTorch's traces is
in the second line, xprof and the rest of its list are for JAX and for storage elsewhere.

    python -m venv /tmp/peers
    /tmp/peers/bin/pip install traceinsight==0.6.1 orjson msgspec pysimdjson
    /tmp/peers/bin/pip install pandas tqdm openpyxl tabulate orjson PyYAML matplotlib protobuf
    python -m benchmarks.ingest --peers-python /tmp/peers/bin/python --tracelens TraceLens/ ...

HTA looks every event up in a list of all ProfilerStep marks, so its load grows with events x steps:
of two traces of 214 MB, the one with 48 steps cost it 1.7 times the one with 9. The table says how
many there are.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.make_big_trace import LayoutError, make_big_trace
from benchmarks.measure import Measurement, measure
from stepscope.core.compiled import PURE, in_use

OUT = Path(__file__).parent / "out"
MEGABYTES = 520.0
FEW_STEPS = 6
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
from stepscope.readers.format import Source
print(in_use(), len(read(Source(path=Path(sys.argv[1]), label=sys.argv[1]))))
"""
LOADS = """
import sys
from {module} import {function} as loads
with open(sys.argv[1], "rb") as file:
    trace = loads(file.read())
print(len(trace["traceEvents"] if isinstance(trace, dict) else trace))
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
print(TraceAnalysis(trace_dir=sys.argv[1]).get_temporal_breakdown(visualize=False).to_string())
"""
TRACELENS = "TraceLens, perf report"
TRACELENS_MODULE = "TraceLens.Reporting.generate_perf_report_pytorch"
PEERS = {
    "orjson": ("orjson", LOADS.format(module="orjson", function="loads")),
    "msgspec": ("msgspec", LOADS.format(module="msgspec.json", function="decode")),
    "simdjson": ("pysimdjson", LOADS.format(module="simdjson", function="loads")),
    "HTA, load + temporal breakdown": ("traceinsight", HTA),
}
"""What a row is called, the distribution it needs, and what it runs."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The other tools: where they are, which there are, and which are not."""

    python: Path | None
    versions: dict[str, str]
    missing: tuple[str, ...]
    tracelens: Path | None = None
    """A checkout of it."""


def find_peers(python: Path | None, tracelens: Path | None = None) -> Peers:
    versions: dict[str, str] = {}
    for name, (distribution, _) in PEERS.items():
        if python is not None and (version := version_of(python, distribution)):
            versions[name] = version
    if python is None:
        tracelens = None
    absent = [name for name in PEERS if name not in versions]
    absent += [TRACELENS] if tracelens is None else []
    missing = tuple(name.partition(",")[0] for name in absent)
    return Peers(python=python, versions=versions, missing=missing, tracelens=tracelens)


def version_of(python: Path, distribution: str) -> str:
    """The version that is installed there, under just that name; nothing where it is not."""
    code = (
        "import sys; from importlib.metadata import distribution as d; "
        "m = d(sys.argv[1]); print(m.version if m.metadata['Name'] == sys.argv[1] else '')"
    )
    done = subprocess.run(
        [str(python), "-c", code, distribution], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def trace_rows(trace: Path, scratch: Path, peers: Peers) -> list[Row]:
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
    for name, version in peers.versions.items():
        code, target = PEERS[name][1], trace
        if code is HTA:
            target = scratch / "hta"
            target.mkdir()
            lend_to_hta(trace, target)
        command = [str(peers.python), "-c", code, str(target)]
        tool, comma, rest = name.partition(",")
        rows.append(Row(name=f"{tool} {version}{comma}{rest}", run=partial(measure, command)))
    if peers.tracelens is not None:
        report = scratch / "tracelens"
        command = [str(peers.python), "-m", TRACELENS_MODULE, "--profile_json_path", str(trace)]
        command += ["--output_csvs_dir", str(report)]
        env = {"PYTHONPATH": str(peers.tracelens.resolve())}
        rows.append(
            Row(
                name=TRACELENS,
                run=partial(measure, command, env=env),
                check=lambda done: done.failure or _no_report(report),
            )
        )
    return rows


def _no_report(folder: Path) -> str | None:
    """Why TraceLens' run does not count: a quick exit without tables must not look fast."""
    return None if any(folder.glob("*.csv")) else "no tables were written"


def measure_trace(trace: Path, *, peers: Peers, repeat: int) -> list[str]:
    """Measure every row on one trace; return the lines of its table."""
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=OUT, prefix="ingest-") as scratch:
        rows = trace_rows(trace.resolve(), Path(scratch), peers)
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
    return trace_table(trace, runs, failures, peers.missing)


def trace_table(
    trace: Path,
    runs: dict[str, list[Measurement]],
    failures: dict[str, str],
    missing: Sequence[str],
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
    if missing:
        lines += ["", f"Not installed, not measured: {', '.join(missing)}."]
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


def made_traces(source: Path, stacks_source: Path | None, megabytes: float) -> list[Path]:
    """Traces of many short steps and of few long ones in benchmarks/out, of one source as it is,
    and of the other with its stacks and without."""
    OUT.mkdir(exist_ok=True)
    traces = []
    kinds = [(source, "", True)]
    if stacks_source is not None:
        kinds += [(stacks_source, "_stacks", True), (stacks_source, "_without_stacks", False)]
    for origin, what, has_stacks in kinds:
        for how, steps in (("many", None), ("few", FEW_STEPS)):
            path = OUT / f"{how}_steps{what}.json"
            print(f"... making {path}", file=sys.stderr, flush=True)
            make_big_trace(origin, path, megabytes=megabytes, steps=steps, has_stacks=has_stacks)
            traces.append(path)
    return traces


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trace", type=Path, action="append", help="a trace to measure; may be given again"
    )
    parser.add_argument("--source", type=Path, help="the trace whose events fill the big ones")
    parser.add_argument(
        "--stacks-source", type=Path, help="another, recorded with Python stacks (with_stack=True)"
    )
    parser.add_argument(
        "--megabytes", type=float, default=MEGABYTES, help=f"size of each ({MEGABYTES:.0f})"
    )
    parser.add_argument(
        "--peers-python", type=Path, help="the python of an environment with the other tools"
    )
    parser.add_argument(
        "--tracelens", type=Path, help="a checkout of TraceLens, run with --peers-python"
    )
    parser.add_argument("--repeat", type=int, default=1, help="runs of each row (1)")
    args = parser.parse_args()
    if args.repeat < 1:
        parser.error("--repeat: at least 1")
    if not args.trace and not args.source:
        parser.error("give --source TRACE to make big ones of, or --trace PATH")
    if args.peers_python and not args.peers_python.exists():
        parser.error(
            f"--peers-python: {args.peers_python} is not there; see --help for how to make it"
        )
    if args.tracelens and not (args.peers_python and (args.tracelens / "TraceLens").is_dir()):
        parser.error(
            "--tracelens: a checkout with a folder TraceLens in it, and --peers-python to run it"
        )
    peers = find_peers(args.peers_python, args.tracelens)
    try:
        traces = args.trace or made_traces(args.source, args.stacks_source, args.megabytes)
        lines = [
            "# Reading a big trace",
            "",
            machine_line(),
            f"Medians of {args.repeat}; a MB is 10^6 bytes.",
            "",
        ]
        print("\n".join(lines), flush=True)
        for trace in traces:
            table = measure_trace(trace, peers=peers, repeat=args.repeat)
            print("\n".join(table), flush=True)
            lines += table
    except (LayoutError, OSError) as error:
        parser.exit(2, f"ingest: {error}\n")
    table = startup_table()
    print("\n".join(table))
    (OUT / "ingest.md").write_text("\n".join([*lines, *table]))


if __name__ == "__main__":
    main()
