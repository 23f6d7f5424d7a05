"""What the replay predicts against what verify measures: `stepscope fix --verify` over jobs with a fault each.

    python -m benchmarks.mended OUT [--jobs workers,...] [--command CMD] [--steps N] [--rounds N] [--seconds N] [--check]

The jobs are those of benchmarks.slow_jobs and need a GPU; --command gives one of your own. Each is recorded once (a run folder in
OUT), then mended; OUT/NAME.json keeps the whole result. A table at the end, and a line for each job as it ends.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from stepscope.experiments.trial import run_trial

JOBS = ("workers", "optimizer", "pointwise", "launches", "pictures", "buckets")
RANKS = {"buckets": 2}


def command_of(job: str) -> list[str]:
    start = [sys.executable]
    if job in RANKS:
        start += ["-m", "torch.distributed.run", f"--nproc_per_node={RANKS[job]}", "--master_port=29577"]
    return [*start, "-m", "benchmarks.slow_jobs", job]


def mend(name: str, command: list[str], out: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The contract of `stepscope fix`, or why there is none."""
    run = out / f"{name}.run"
    trial = run_trial(command, run, max_steps=arguments.steps, timeout_s=120, profile=True)
    if not trial.is_good:
        return {"problem": f"recorded nothing: exit code {trial.exit_code}: {trial.tail[-800:]}"}
    words = [sys.executable, "-m", "stepscope", "fix", str(run), "--verify", "--command", shlex.join(command), "--format", "json"]
    words += ["--steps", str(arguments.steps), "--max-rounds", str(arguments.rounds), "--timeout", "120"]
    words += ["--out", str(out / f"{name}.fix"), "--most", str(arguments.most), *([] if arguments.check else ["--no-check"])]
    log = out / f"{name}.log"
    with log.open("w", encoding="utf-8") as stderr:
        done = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=arguments.seconds)
    if not done.stdout.strip():
        return {"problem": log.read_text(encoding="utf-8")[-800:]}
    (out / f"{name}.json").write_text(done.stdout, encoding="utf-8")
    return dict(json.loads(done.stdout))


def rows_of(name: str, told: dict[str, Any]) -> list[str]:
    if "problem" in told:
        return [f"| {name} | {told['problem'][-200:]!r} | | | | |"]
    rows = []
    for one in told["findings"]:
        proof = one["verification"] or {}
        speedup = proof.get("speedup")
        gave = "-" if not speedup else f"{speedup['value']:.2f} ({speedup['low'] or 0:.2f}-{speedup['high'] or 0:.2f})"
        predicted = f"{one['predicted']['value']:.2f} ({one['predicted']['low']:.2f}-{one['predicted']['high']:.2f})"
        knobs = ", ".join(f"{knob}={value}" for knob, value in one["knobs"].items())
        rows.append(f"| {name} | {one['code']} | {knobs or one['why'][:60]} | {predicted} | {gave} | {one['outcome']} |")
    return rows or [f"| {name} | nothing found | | | | |"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mended", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--command")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=500.0, help="for everything")
    parser.add_argument("--most", type=int, default=3, help="findings tried of each job")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + arguments.seconds
    table: list[str] = []
    jobs = {"own": shlex.split(arguments.command)} if arguments.command else {j: command_of(j) for j in arguments.jobs.split(",")}
    for name, command in jobs.items():
        begun = time.monotonic()
        if until - begun < 60:
            table.append(f"| {name} | no time left | | | | |")
            continue
        arguments.seconds = until - begun
        try:
            told = mend(name, command, arguments.out, arguments)
        except subprocess.TimeoutExpired:
            told = {"problem": "ran past the end of the time given"}
        table += rows_of(name, told)
        print(f"{name}: {time.monotonic() - begun:.0f} s", *rows_of(name, told), sep="\n", flush=True)
    print("\n| job | finding | set | predicted | gave | |\n|---|---|---|---|---|---|")
    print("\n".join(table), flush=True)


if __name__ == "__main__":
    main()
