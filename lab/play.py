"""Plays one variant of a case, as a training script would: `python -m lab.play CASE slow|fixed
[--seconds N]`.

No profiler, no clock: for tools that record a run from outside.
"""

from __future__ import annotations

import argparse
import time

import torch

from lab.cases import CASES
from lab.measure import settle

LEAST_STEPS = 40


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.play", description=__doc__)
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("variant", choices=("slow", "fixed"))
    parser.add_argument("--seconds", type=float, default=6.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    run = getattr(CASES[arguments.case], arguments.variant)()
    run.enter()
    until, num = time.monotonic() + arguments.seconds, 0
    while num < LEAST_STEPS or time.monotonic() < until:
        run.step()
        num += 1
    settle()


if __name__ == "__main__":
    main()
