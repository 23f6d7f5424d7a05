"""The options of `stepscope tune`, and what they say."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from stepscope.cli import options as declare
from stepscope.cli.options import count, int_in_range, seconds

CACHE_VARIABLE = "STEPSCOPE_TUNING_CACHE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What to search."""

    knobs: list[str] = declare.option(
        "--knob NAME=VALUES",
        "a..b, a..b:log, a..b:step=k, or a list x,y,z; may be given several times",
        default=[],
    )
    ways: list[str] = declare.option(
        '--as NAME="--option={}"',
        "how the script gets a knob that stepscope cannot set: an argument, or env:VARIABLE",
        default=[],
    )
    free: list[str] = declare.option(
        "--free WHAT",
        "what need not stay equal: batch (samples a step), numerics (what is computed)",
        default=[],
        choices=("batch", "numerics"),
    )
    effective_batch: int | None = declare.option(
        "--effective-batch N", "samples a step on all ranks, where no DataLoader tells it", count
    )
    started_by: Path | None = declare.option(
        "--from PATH", "a run or a diagnosis in JSON: its fixes are tried first", declare.run_path
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How long is measured."""

    num_trials: int = declare.option(
        "--trials N", "trials in all, on all machines (default: 20)", count, 20
    )
    budget_s: float | None = declare.budget()
    steps: int = declare.option("--steps N", "timed steps of each trial (default: 30)", count, 30)
    warm_up_steps: int | None = declare.warm_up()
    timeout_s: float = declare.option(
        "--timeout SECONDS", "for each trial (default: 600)", seconds, 600.0
    )
    seed: int = declare.option(
        "--seed N",
        "of what the sampler draws (default: 0)",
        int_in_range("a seed; give a whole number from 0 on", 0, 2**31 - 1),
        0,
    )
    is_pruned: bool = declare.option(
        "--no-prune", "let slow trials run to their end", action="store_false"
    )
    is_proven: bool = declare.option(
        "--no-verify",
        "end with the best trial, checked and proven by nothing",
        action="store_false",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept."""

    storage: str | None = declare.option(
        "--storage WHERE",
        "Optuna's storage (sqlite:///FILE, postgresql://..., or a journal file): machines "
        "that give the same share trials",
    )
    cache: str | None = declare.option(
        "--cache PATH",
        f"tuning cache: a file, or a URL (default: ${CACHE_VARIABLE}, or none)",
    )
    out: Path | None = declare.out_folder("the trials are")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says of a search."""

    searched: Searched = declare.group(Searched, "what to search")
    measuring: Measuring = declare.group(Measuring, "how long")
    kept: Kept = declare.group(Kept, "what is kept")
    style: str = declare.style()
    words: tuple[str, ...] = declare.command(keeps_dashes=True)

    @property
    def command(self) -> tuple[str, ...]:
        return declare.after_dashes(self.words)


def cache_path(given: str | None) -> str | None:
    """The tuning cache that is named, here or in the environment."""
    return given or os.environ.get(CACHE_VARIABLE)
