"""How soon and how surely `stepscope run` names a fault in a real job, and how often it says so of
an even one.

    python -m benchmarks.live [--rounds N] [--even SECONDS] [--jobs N] [--out DIR] [--json FILE]
    python -m benchmarks.live --replay JOB...     the same of jobs that an earlier call left in
                                                  --out, by their files alone

Run it from the root of the repository. Jobs are benchmarks.live_job under `stepscope run`, over
gloo: each has a few faults one after the other with even running between them, since a fault that
does not end hides the next. A fault counts as named where an alert of the right kind has exactly
its ranks; the time is from the fault's first moment, which the job itself writes down, to the
alert's line. An alert that belongs to no fault is false; those that say that other processes have
the cores are counted beside, for on a shared machine they may be true.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.live_job import FAULTS

FIRST_S, ON_S, BETWEEN_S = 25.0, 25.0, 25.0
WITHIN_S = 15.0
RIGHT = {
    "late-sleep": {"late-rank"},
    "late-cpu": {"late-rank", "busy-machine"},
    "group-slow": {"slow-group"},
    "all-slow": {"step-time"},
    "loader-rank": {"loader"},
    "loader-all": {"loader"},
    "bandwidth": {"bandwidth"},
    "leak": {"host-memory"},
    "device-leak": {"device-memory"},
    "loss-spike": {"loss-spike"},
    "loss-nan": {"loss-nan"},
}
"""The kinds of alert that name each fault. A rank that burns a core on a machine without a free one
is held up by others as much as by itself."""
PLANS: tuple[tuple[str, ...], ...] = (
    ("late-sleep", "all-slow", "loss-spike", "loader-rank"),
    ("late-cpu", "bandwidth", "group-slow", "leak"),
    ("loader-all", "late-sleep", "bandwidth", "loss-nan"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One fault of one job."""

    fault: str
    plan: int
    seconds: float | None
    """Until an alert named it; None where none did."""
    kind: str | None
    words: str
    is_recovery_told: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One job."""

    faults: tuple[Named, ...]
    even_s: float
    """Of its steps, without a fault and half a minute after one."""
    false_alerts: tuple[str, ...]
    busy_alerts: tuple[str, ...]


def command(folder: Path, faults: str, seconds: float, ranks: int, device: str) -> list[str]:
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    job += ["--nproc_per_node", str(ranks), "-m", "benchmarks.live_job", "--faults", faults]
    job += ["--seconds", str(seconds), "--truth", str(folder / "truth"), "--device", device]
    words = ["run", "--no-diagnose", "--out", str(folder / "run"), "--"]
    return [sys.executable, "-m", "stepscope", *words, *job]


def play(
    plan: int, names: Sequence[str], out: Path, ranks: int, device: str, even_s: float = 0.0
) -> Played:
    folder = Path(tempfile.mkdtemp(prefix=f"live-{plan}-", dir=out))
    (folder / "truth").mkdir()
    spans, at_s = [], FIRST_S
    for name in names:
        spans.append(f"{name}@{at_s:g}:{at_s + ON_S:g}")
        at_s += ON_S + BETWEEN_S
    seconds = max(at_s - BETWEEN_S + 2.0 if names else 0.0, even_s)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "output.txt").open("w") as output:
        code = subprocess.run(
            command(folder, ",".join(spans), seconds, ranks, device),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=seconds + 240,
            check=False,
        ).returncode
    if code:
        raise SystemExit(f"the job of {folder} ended with {code}: see output.txt there")
    return judge(plan, folder, list(lines(folder / "run" / "alerts.jsonl")))


def judge(plan: int, folder: Path, alerts: Sequence[dict[str, Any]]) -> Played:
    """What the alerts were worth."""
    truth = list(truths(folder / "truth"))
    ranks = len(list((folder / "truth").iterdir()))
    raised = [alert for alert in alerts if alert.get("state") == "raised"]
    over = {alert["number"] for alert in alerts if alert.get("state") == "over"}
    named, mine = [], set()
    for fault, begun, ended in truth:
        wanted = tuple(range(ranks)) if FAULTS[fault] is None else FAULTS[fault]
        # A fault is also the answer to an alert that comes while its end is being noticed.
        own = [
            alert for alert in raised if begun <= alert["at_wall_ns"] / 1e9 < ended + BETWEEN_S / 2
        ]
        mine |= {alert["number"] for alert in own}
        right = [
            alert
            for alert in own
            if alert["kind"] in RIGHT[fault]
            and tuple(alert["ranks"]) == wanted
            and alert["at_wall_ns"] / 1e9 < ended
        ]
        first, is_last = right[0] if right else None, ended >= truth[-1][2]
        named.append(
            Named(
                fault=fault,
                plan=plan,
                seconds=None if first is None else first["at_wall_ns"] / 1e9 - begun,
                kind=first["kind"] if first else None,
                words=first["words"] if first else "; ".join(map(said, own)),
                # The last fault of a job lasts to its end.
                is_recovery_told=None if first is None or is_last else first["number"] in over,
            )
        )
    stray = [alert for alert in raised if alert["number"] not in mine]
    return Played(
        faults=tuple(named),
        even_s=even_seconds(folder, truth),
        false_alerts=tuple(said(alert) for alert in stray if alert["kind"] != "busy-machine"),
        busy_alerts=tuple(said(alert) for alert in stray if alert["kind"] == "busy-machine"),
    )


def said(alert: dict[str, Any]) -> str:
    return f"{alert['kind']}: {alert['words']}"


def truths(folder: Path) -> Iterator[tuple[str, float, float]]:
    """Each fault, from when the first rank had it until the last was without."""
    begun: dict[str, list[float]] = {}
    spans: dict[tuple[str, int], tuple[float, float]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for path in sorted(folder.glob("rank-*.jsonl")):
        for line in lines(path):
            name, at_s = line["fault"], line["wall_ns"] / 1e9
            if line["on"]:
                begun.setdefault(f"{path.name}{name}", []).append(at_s)
                key = name, counts[path.name, name]
                spans[key] = min(spans.get(key, (at_s, 0.0))[0], at_s), spans.get(key, (0, 0.0))[1]
            else:
                key = name, counts[path.name, name]
                counts[path.name, name] += 1
                spans[key] = spans[key][0], max(spans[key][1], at_s)
    last_s = max((end for _, end in spans.values()), default=0.0)
    for (name, _), (begin, end) in sorted(spans.items(), key=lambda item: item[1][0]):
        yield name, begin, end or last_s + 60.0


def even_seconds(folder: Path, truth: Sequence[tuple[str, float, float]]) -> float:
    rank = folder / "run" / "rank-0"
    note = json.loads((rank / "rank.json").read_text())
    rows = [line for line in lines(rank / "steps.jsonl") if isinstance(line, list)]
    ends = [(row[1] - note["perf_ns"] + note["wall_ns"]) / 1e9 for row in rows]
    faulty: list[tuple[float, float]] = [(begin, end + BETWEEN_S / 2) for _, begin, end in truth]
    even = [
        after - before
        for before, after in itertools.pairwise(ends)
        if not any(begin <= after <= end for begin, end in faulty)
    ]
    return float(sum(even))


def lines(path: Path) -> Iterator[Any]:
    if path.is_file():
        yield from (json.loads(line) for line in path.read_text().splitlines())


def replayed(folder: Path) -> Played:
    """A job's alarms by this version, second by second, from its files alone."""
    from benchmarks.live_replay import looks
    from stepscope.live.alarms.alarms import JobAlarms
    from stepscope.live.report.watch.alert_json import alert_json

    alarms = JobAlarms()
    alerts = [alert_json(alert) for tail in looks(folder / "run") for alert in alarms.look(tail)]
    return judge(0, folder, alerts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1, help="of all plans")
    parser.add_argument("--plan", type=int, action="append", help="this one alone")
    parser.add_argument("--even", type=float, default=0.0, help="seconds of even jobs, in sum")
    parser.add_argument("--even-job", type=float, default=600.0, help="seconds of one even job")
    parser.add_argument("--jobs", type=int, default=1, help="at once")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--replay", type=Path, nargs="+", metavar="JOB")
    options = parser.parse_args()
    if options.replay:
        report([replayed(folder) for folder in options.replay])
        return
    options.out.mkdir(parents=True, exist_ok=True)
    plans = [
        (number, PLANS[number])
        for _ in range(options.rounds)
        for number in options.plan or range(len(PLANS))
    ]
    num_even = round(options.even / options.even_job)
    with ThreadPoolExecutor(options.jobs) as pool:
        tasks = [
            pool.submit(play, number, names, options.out, options.ranks, options.device)
            for number, names in plans
        ]
        tasks += [
            pool.submit(play, -1, (), options.out, options.ranks, options.device, options.even_job)
            for _ in range(num_even)
        ]
        results = [task.result() for task in tasks]
    report(results)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


def report(results: Sequence[Played]) -> None:
    faults = [fault for result in results for fault in result.faults]
    print(
        f"{'fault':<12} {'named':>7} {'in 15 s':>8} {'median s':>9} {'longest':>8} {'recovery':>9}"
    )
    for name in dict.fromkeys(fault.fault for fault in faults):
        mine = [fault for fault in faults if fault.fault == name]
        times = [fault.seconds for fault in mine if fault.seconds is not None]
        soon = sum(1 for seconds in times if seconds <= WITHIN_S)
        told = [fault.is_recovery_told for fault in mine if fault.is_recovery_told is not None]
        middle = f"{statistics.median(times):.1f}" if times else "-"
        longest = f"{max(times):.1f}" if times else "-"
        row = f"{name:<12} {len(times):>3}/{len(mine):<3} {soon:>4}/{len(mine):<3} {middle:>9}"
        print(f"{row} {longest:>8} {sum(told):>5}/{len(told):<3}")
    num, soon = len(faults), sum(1 for fault in faults if (fault.seconds or 99) <= WITHIN_S)
    if num:
        print(f"{soon} of {num} named within {WITHIN_S:.0f} s")
    for fault in faults:
        if fault.seconds is None:
            print(f"  not named: {fault.fault}: {fault.words or 'nothing was said'}")
    hours = sum(result.even_s for result in results) / 3600
    false = [alert for result in results for alert in result.false_alerts]
    busy = [alert for result in results for alert in result.busy_alerts]
    print(
        f"even running: {hours:.2f} hours; {len(false)} false alerts, {len(busy)} of a busy machine"
    )
    for alert in (*false, *busy):
        print(f"  {alert}")


if __name__ == "__main__":
    begun = time.monotonic()
    main()
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
