"""How far `stepscope verify` can be trusted: real CPU trainings, started again and again.

    python benchmarks/verified.py
        the faults: a fix for each that must be proven, and a trap
    python benchmarks/verified.py --pairs 100 --jobs 8
        two sides that are the same: how often a difference is claimed

Prints a table, and a line of JSON at the end. With --jobs, each job has a core of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

from stepscope.core.experiments.experiment import (
    CANDIDATE,
    NO_GAIN,
    PROVEN,
    UNSETTLED,
    WORSE,
    Side,
    Verified,
)
from stepscope.core.experiments.trials import Change, Trial, Value
from stepscope.experiments.trials.trial import run_trial
from stepscope.experiments.verify.experiment import verify
from stepscope.experiments.verify.schedule import VerifyPolicy

HEAD = """
import os
core = os.environ.get("BENCH_CORE")
if core:
    os.sched_setaffinity(0, {int(core)})
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
"""
TINY = """
torch.set_num_threads(1)
data = [torch.randn(64, 128) for _ in range(8)]
model = nn.Sequential(
    nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(100_000):
    loss = model(data[step % 8]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STARVED = """
torch.set_num_threads(1)
class Slow(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.full((128,), float(i % 7))
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for batch in DataLoader(Slow(), batch_size=16):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CROWDED = """
# As a job says that takes the host's cores for its container's.
torch.set_num_threads(int(os.environ["THREADS"]))
data = torch.randn(128, 512)
model = nn.Sequential(
    *[layer for _ in range(12) for layer in (nn.LayerNorm(512), nn.GELU(), nn.Tanh())])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(100_000):
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOOPED = """
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(150)])
data = torch.randn(8, 16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
for step in range(100_000):
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A slow training, what is applied on top of it, and what verify must say."""

    name: str
    script: str
    expected: tuple[str, ...]
    knobs: Mapping[str, Value] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of both sides."""
    candidate_environment: Mapping[str, str] = field(default_factory=dict)


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
CROWD = str(16 * CORES)
FEW = max(1, CORES // 2)
"""One thread for each of the cores that are real."""
FAULTS = (
    Fault(
        name="starved loader: num_workers 0 to 2",
        script=STARVED,
        knobs={"num_workers": 2},
        expected=(PROVEN,),
    ),
    Fault(
        name=f"{CROWD} threads on {CORES} cores: num_threads {FEW}",
        script=CROWDED,
        knobs={"num_threads": FEW},
        environment={"THREADS": CROWD, "OMP_NUM_THREADS": CROWD},
        expected=(PROVEN,),
    ),
    Fault(
        name="slow optimizer: fused",
        script=LOOPED,
        knobs={"fused_optimizer": True},
        expected=(PROVEN,),
    ),
    Fault(
        name="trap: a variable that nothing reads",
        script=TINY,
        candidate_environment={"TURBO": "1"},
        expected=(NO_GAIN, UNSETTLED),
    ),
)


def measured(
    fault: Fault, folder: Path, policy: VerifyPolicy, *, steps: int, core: int | None = None
) -> Verified:
    """One experiment, in a folder of its own."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(HEAD + fault.script)
    pinned = {} if core is None else {"BENCH_CORE": str(core)}
    runs = iter(range(10_000))

    def measure(side: Side) -> Trial:
        is_candidate = side == CANDIDATE
        change = Change(
            environment={
                **fault.environment,
                **pinned,
                **(fault.candidate_environment if is_candidate else {}),
            },
            knobs=fault.knobs if is_candidate else {},
        )
        return run_trial(
            [sys.executable, str(script)],
            folder / f"{next(runs):02d}-{side}",
            change,
            max_steps=steps,
            timeout_s=300,
        )

    return verify(measure, policy)


def run_faults(
    folder: Path, policy: VerifyPolicy, steps: int, only: str
) -> list[dict[str, object]]:
    rows = []
    for number, fault in enumerate(FAULTS):
        if only not in fault.name:
            continue
        verified = measured(fault, folder / f"fault-{number}", policy, steps=steps)
        speedup = verified.speedup
        shown = (
            "-"
            if speedup is None
            else f"{speedup.value:.3f} ({speedup.low:.3f}-{speedup.high:.3f})"
        )
        is_right = verified.verdict in fault.expected
        runs = sum(run.round is not None for run in verified.runs)
        spent = f"{runs:3d} runs {verified.wall_s:5.0f} s"
        print(
            f"{fault.name:46s} {verified.verdict:12s} {shown:24s} {spent}  "
            f"{'ok' if is_right else 'WRONG'}",
            flush=True,
        )
        if verified.refusals:
            print(f"    {verified.because}\n{verified.tail}")
        rows.append(
            {"fault": fault.name, "verdict": verified.verdict, "ok": is_right} | _numbers(verified)
        )
    return rows


def run_same(
    folder: Path, policy: VerifyPolicy, steps: int, num: int, jobs: int
) -> dict[str, object]:
    """The trap, many times over. A core is borrowed for each experiment, so that no two share
    one."""
    trap = FAULTS[-1]
    cores: Queue[int | None] = Queue()
    own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") and jobs > 1 else []
    for place in range(jobs):
        cores.put(own[place % len(own)] if own else None)

    def one(number: int) -> Verified:
        core = cores.get()
        try:
            verified = measured(trap, folder / f"same-{number:03d}", policy, steps=steps, core=core)
        finally:
            cores.put(core)
        speedup = verified.speedup
        print(
            f"pair {number:3d}: {verified.verdict:12s} "
            f"{'-' if speedup is None else f'{speedup.value:.3f}'}",
            flush=True,
        )
        return verified

    with ThreadPoolExecutor(jobs) as pool:
        told = list(pool.map(one, range(num)))
    verdicts = Counter(one.verdict for one in told)
    spreads = sorted(one.baseline.run_spread for one in told if one.baseline.run_spread is not None)
    halves = sorted(
        (one.speedup.highest / one.speedup.lowest) ** 0.5 - 1
        for one in told
        if one.speedup is not None
    )
    return {
        "pairs": num,
        "verdicts": dict(verdicts),
        "false_gains": verdicts[PROVEN] / num,
        "false_differences": (verdicts[PROVEN] + verdicts[WORSE]) / num,
        "median_run_spread": spreads[len(spreads) // 2] if spreads else None,
        "median_half_width": halves[len(halves) // 2] if halves else None,
        "each": [{"verdict": one.verdict} | _numbers(one) for one in told],
    }


def _numbers(verified: Verified) -> dict[str, object]:
    speedup = verified.speedup
    return {
        "speedup": None if speedup is None else [speedup.value, speedup.low, speedup.high],
        "rounds": verified.num_rounds,
        "run_spread": verified.baseline.run_spread,
        "wall_s": round(verified.wall_s, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=0,
        help="experiments with two sides that are the same; 0: the faults instead",
    )
    parser.add_argument("--only", default="", metavar="WORD", help="faults with this in their name")
    parser.add_argument("--jobs", type=int, default=1, help="of those experiments at once")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--max-rounds", type=int, help="default: 8 for faults, 4 for pairs")
    parser.add_argument("--out", type=Path, help="keep the runs here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write the JSON here too")
    arguments = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        policy = VerifyPolicy(max_rounds=arguments.max_rounds or (4 if arguments.pairs else 8))
        if arguments.pairs:
            told: dict[str, object] = run_same(
                folder, policy, arguments.steps, arguments.pairs, arguments.jobs
            )
            is_right = float(str(told["false_differences"])) <= 0.05
            print({key: value for key, value in told.items() if key != "each"})
        else:
            rows = run_faults(folder, policy, arguments.steps, arguments.only)
            told, is_right = {"faults": rows}, all(row["ok"] for row in rows)
    text = json.dumps(told | {"cores": CORES, "seconds": round(time.monotonic() - begun, 1)})
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
