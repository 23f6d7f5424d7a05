"""What the replay predicts against what verify measures: `stepscope fix --verify` over jobs with a
fault each, and `stepscope verify` where the fix is another command.

    python -m benchmarks.fixed OUT [--jobs workers,...] [--command CMD] [--steps N] [--rounds N]
        [--seconds N] [--check]

The jobs are those of benchmarks.slow_jobs and need a GPU; --command gives one of your own. Each is
recorded once (a run folder in OUT), then fixed; OUT/NAME.json keeps the whole result. A table at
the end, and a line for each job as it ends.
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

from stepscope.experiments.trials.trial import run_trial

JOBS = ("workers", "optimizer", "pointwise", "launches", "micro", "pictures", "buckets")
OTHERS = {"micro": ("small-batch", ["--batch", "4", "--accum", "16"], ["--batch", "64"])}
"""The finding, and what is given to the command before and after, where no setting from outside
fixes it."""
ALLOWED = ("batch-size", "batches", "data", "numerics")
RANKS = {"buckets": 2}


def command_of(job: str) -> list[str]:
    start = [sys.executable]
    if job in RANKS:
        start += [
            "-m",
            "torch.distributed.run",
            f"--nproc_per_node={RANKS[job]}",
            "--master_port=29577",
        ]
    return [*start, "-m", "benchmarks.slow_jobs", job, *(OTHERS[job][1] if job in OTHERS else [])]


def fix(name: str, command: list[str], out: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The contract of `stepscope fix`, or why there is none."""
    run = out / f"{name}.run"
    trial = run_trial(command, run, max_steps=arguments.steps, timeout_s=120, profile=True)
    if not trial.is_good:
        return {"problem": f"recorded nothing: exit code {trial.exit_code}: {trial.tail[-800:]}"}
    how = [
        "--steps",
        str(arguments.steps),
        "--max-rounds",
        str(arguments.rounds),
        "--timeout",
        "120",
        "--format",
        "json",
    ]
    if name not in OTHERS:
        words = [
            "fix",
            str(run),
            "--verify",
            "--command",
            shlex.join(command),
            *how,
            "--out",
            str(out / f"{name}.fix"),
        ]
        return told_by(
            [*words, "--most", str(arguments.most), *([] if arguments.check else ["--no-check"])],
            name,
            out,
            arguments.seconds,
        )
    code, before, after = OTHERS[name]
    diagnosis = told_by(
        ["diagnose", str(run), "--format", "json"], f"{name}.diagnosis", out, arguments.seconds
    )
    seen = next((one for one in diagnosis.get("findings", ()) if one["code"] == code), None)
    if seen is None:
        return {
            "problem": (
                f"{code} was not found: "
                f"{diagnosis.get('problem') or [one['code'] for one in diagnosis['findings']]}"
            )
        }
    words = [
        "verify",
        "--baseline",
        shlex.join(command),
        "--candidate",
        shlex.join([*command[: -len(before)], *after]),
        *how,
    ]
    words += [
        *(word for what in ALLOWED for word in ("--allow", what)),
        "--out",
        str(out / f"{name}.runs"),
    ]
    words += ["--from", str(out / f"{name}.diagnosis.json"), "--fixes", code]
    proof = told_by(words, name, out, arguments.seconds)
    predicted = {
        "value": seen["predicted_speedup"],
        "low": seen["predicted_low"],
        "high": seen["predicted_high"],
    }
    row = {
        "code": code,
        "knobs": {},
        "why": " ".join(after),
        "predicted": predicted,
        "verification": proof,
    }
    return proof if "problem" in proof else {"findings": [row | {"outcome": proof["verdict"]}]}


def told_by(words: list[str], name: str, out: Path, seconds: float) -> dict[str, Any]:
    """The JSON that this command of ours prints, or its problem."""
    log = out / f"{name}.log"
    with log.open("w", encoding="utf-8") as stderr:
        started = [sys.executable, "-m", "stepscope", *words]
        done = subprocess.run(
            started, check=False, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=seconds
        )
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
        gave = (
            "-"
            if not speedup
            else f"{speedup['value']:.2f} ({speedup['low'] or 0:.2f}-{speedup['high'] or 0:.2f})"
        )
        predicted = (
            f"{one['predicted']['value']:.2f} "
            f"({one['predicted']['low']:.2f}-{one['predicted']['high']:.2f})"
        )
        knobs = ", ".join(f"{knob}={value}" for knob, value in one["knobs"].items())
        rows.append(
            f"| {name} | {one['code']} | {knobs or one['why'][:60]} | {predicted} | {gave} | "
            f"{one['outcome']} |"
        )
    return rows or [f"| {name} | nothing found | | | | |"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fixed", description=__doc__)
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
    jobs = (
        {"own": shlex.split(arguments.command)}
        if arguments.command
        else {j: command_of(j) for j in arguments.jobs.split(",")}
    )
    for name, command in jobs.items():
        begun = time.monotonic()
        if until - begun < 60:
            table.append(f"| {name} | no time left | | | | |")
            continue
        arguments.seconds = until - begun
        try:
            told = fix(name, command, arguments.out, arguments)
        except subprocess.TimeoutExpired:
            told = {"problem": "ran past the end of the time given"}
        table += rows_of(name, told)
        print(
            f"{name}: {time.monotonic() - begun:.0f} s", *rows_of(name, told), sep="\n", flush=True
        )
    print("\n| job | finding | set | predicted | gave | |\n|---|---|---|---|---|---|")
    print("\n".join(table), flush=True)


if __name__ == "__main__":
    main()
