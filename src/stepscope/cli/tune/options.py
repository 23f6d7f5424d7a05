"""The options of `stepscope tune`, and what they say."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from stepscope.cli.option_types import count, seconds
from stepscope.cli.options import add_format, run_path
from stepscope.protocol.run_folder import RUNS

CACHE_VARIABLE = "STEPSCOPE_TUNING_CACHE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    knobs = parser.add_argument_group("what to search")
    knobs.add_argument(
        "--knob",
        metavar="NAME=VALUES",
        action="append",
        default=[],
        help="a..b, a..b:log, a..b:step=k, or a list x,y,z; may be given several times",
    )
    knobs.add_argument(
        "--as",
        dest="ways",
        metavar='NAME="--option={}"',
        action="append",
        default=[],
        help="how the script gets a knob that stepscope cannot set: an argument, or env:VARIABLE",
    )
    knobs.add_argument(
        "--free",
        metavar="WHAT",
        action="append",
        default=[],
        choices=("batch", "numerics"),
        help="what need not stay equal: batch (samples a step), numerics (what is computed)",
    )
    knobs.add_argument(
        "--effective-batch",
        type=count,
        metavar="N",
        help="samples a step on all ranks, where no DataLoader tells it",
    )
    knobs.add_argument(
        "--from",
        dest="started_by",
        type=run_path,
        metavar="PATH",
        help="a run or a diagnosis in JSON: its fixes are tried first",
    )
    _add_measuring(parser)
    kept = parser.add_argument_group("what is kept")
    kept.add_argument(
        "--storage",
        metavar="WHERE",
        help="Optuna's storage (sqlite:///FILE, postgresql://..., or a journal file): machines "
        "that give the same share trials",
    )
    kept.add_argument(
        "--cache",
        metavar="PATH",
        help=f"tuning cache: a file, or a URL (default: ${CACHE_VARIABLE}, or none)",
    )
    kept.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where the trials are kept (default: a dated folder in {RUNS}/)",
    )
    add_format(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="what starts the job"
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how long")
    group.add_argument(
        "--trials",
        type=count,
        default=20,
        metavar="N",
        help="trials in all, on all machines (default: 20)",
    )
    group.add_argument(
        "--budget",
        type=seconds,
        metavar="SECONDS",
        help="for the whole command: what runs then is ended (default: none)",
    )
    group.add_argument(
        "--steps",
        type=count,
        default=30,
        metavar="N",
        help="timed steps of each trial (default: 30)",
    )
    group.add_argument(
        "--warm-up",
        type=count,
        default=10,
        metavar="N",
        help="steps before them that do not count, 5 at least (default: 10)",
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="for each trial (default: 600)",
    )
    group.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="of what the sampler draws (default: 0)"
    )
    group.add_argument("--no-prune", action="store_true", help="let slow trials run to their end")
    group.add_argument(
        "--no-verify",
        action="store_true",
        help="end with the best trial, checked and proven by nothing",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says of a search."""

    command: tuple[str, ...]
    knobs: tuple[str, ...]
    ways: tuple[str, ...]
    free: tuple[str, ...]
    effective_batch: int | None
    started_by: Path | None
    num_trials: int
    budget_s: float | None
    steps: int
    warm_up_steps: int
    timeout_s: float
    seed: int
    is_pruned: bool
    is_proven: bool
    storage: str | None
    cache: str | None
    out: Path | None
    style: str


def options_of(arguments: argparse.Namespace) -> Options:
    words = arguments.command
    return Options(
        command=tuple(words[1:] if words[:1] == ["--"] else words),
        knobs=tuple(arguments.knob),
        ways=tuple(arguments.ways),
        free=tuple(arguments.free),
        effective_batch=arguments.effective_batch,
        started_by=arguments.started_by,
        num_trials=arguments.trials,
        budget_s=arguments.budget,
        steps=arguments.steps,
        warm_up_steps=arguments.warm_up,
        timeout_s=arguments.timeout,
        seed=arguments.seed,
        is_pruned=not arguments.no_prune,
        is_proven=not arguments.no_verify,
        storage=arguments.storage,
        cache=arguments.cache or os.environ.get(CACHE_VARIABLE),
        out=arguments.out,
        style=arguments.format,
    )


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed; give a whole number from 0 on")
    return int(text)
