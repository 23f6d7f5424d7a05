"""Does `tune` find with a fifth of the trials what an exhaustive search finds?

    python benchmarks/tuned.py
        measures every cell of a grid on this machine, then tunes on the same
    python benchmarks/tuned.py --grid grid.json
        plays 20 seeds of the search on a grid that was measured before

The job is benchmarks/tuned_job.py: loader workers, threads, prefetching and the fused optimizer,
all of them real.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from stepscope.core.experiments.trials import Change, Trial, Value
from stepscope.experiments.bootstrap import trimmed_mean
from stepscope.experiments.trials.trial import run_trial
from stepscope.tune.knob_space import Space, parse_knobs
from stepscope.tune.policy import OnSteps, TunePolicy
from stepscope.tune.tuner import Search
from stepscope.tune.words import settings_words

KNOBS = ("num_workers=0..3", "num_threads=1..3", "prefetch_factor=1,4", "fused_optimizer=off,on")
JOB = Path(__file__).with_name("tuned_job.py")
SHARE = 0.2
WITHIN = 0.05
NUM_SEEDS = 20
STEPS = 25
REAL_STEPS = 150
"""Of a trial in the search for real: a second of steps is not enough to tell settings apart where
other work runs."""
NOISE = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", type=Path, help="a grid that was measured before")
    parser.add_argument("--keep", type=Path, help="where to keep the grid that is measured")
    parser.add_argument("--rounds", type=int, default=1, help="times that every cell is measured")
    arguments = parser.parse_args()
    space = Space(knobs=parse_knobs(KNOBS, {}))
    grid = (
        json.loads(arguments.grid.read_text())
        if arguments.grid
        else measured(space, arguments.rounds)
    )
    if arguments.keep:
        arguments.keep.write_text(json.dumps(grid, indent=0))
    played(space, grid)
    if not arguments.grid:
        for_real(space, grid)


def name(settings: dict[str, Value]) -> str:
    """Settings that are the same have one name: without workers nothing is prefetched."""
    kept = (
        {k: v for k, v in settings.items() if k != "prefetch_factor"}
        if settings["num_workers"] == 0
        else settings
    )
    return settings_words(kept)


def measured(space: Space, rounds: int) -> dict[str, float]:
    """Every cell's pace in milliseconds: the smallest of the rounds, as what else runs here only
    adds."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            cells = list({name(cell): cell for cell in space.cells()}.values())
            random.Random(number).shuffle(cells)
            for i, cell in enumerate(cells):
                trial = real(Path(folder) / f"{number}-{i}", space.change(cell), None)
                assert trial.step_ns, trial.tail
                ms = trimmed_mean(trial.step_ns) / 1e6
                found[name(cell)] = min(ms, found.get(name(cell), ms))
                print(
                    f"{i + 1}/{len(cells)} {name(cell)}: {ms:.2f} ms", file=sys.stderr, flush=True
                )
    return found


def real(folder: Path, change: Change, on_steps: OnSteps | None, steps: int = STEPS) -> Trial:
    return run_trial(
        [sys.executable, str(JOB)],
        folder,
        change,
        max_steps=steps,
        warm_up_steps=10,
        on_steps=on_steps,
    )


def played(space: Space, grid: dict[str, float]) -> None:
    """The search over the grid, with noise of 2 % on every trial."""
    best, regrets = min(grid.values()), []
    num_trials = max(1, int(SHARE * len(grid)))
    for seed in range(NUM_SEEDS):
        draw = random.Random(seed)

        def measure(change: Change, on_steps: OnSteps | None, draw: random.Random = draw) -> Trial:
            ms = grid[name({**as_given(space), **change.knobs})] * draw.gauss(1, NOISE)
            steps = tuple(int(ms * 1e6 * draw.gauss(1, NOISE)) for _ in range(STEPS))
            ended = on_steps is not None and not on_steps(steps[:10])
            return Trial(
                folder="",
                change=change,
                exit_code=0,
                step_ns=steps[:10] if ended else steps,
                wall_s=0.0,
                is_cut=True,
            )

        search = Search(space, measure, TunePolicy(num_trials=num_trials, seed=seed))
        search.run()
        regrets.append(grid[name(search.ranked()[0][0])] / best - 1)
    within = sum(regret <= WITHIN for regret in regrets) / len(regrets)
    print(
        f"{num_trials} trials of {len(grid)} cells, {NUM_SEEDS} seeds: {within:.0%} within "
        f"{WITHIN:.0%} of exhaustive search"
    )
    print(f"regret: mean {sum(regrets) / len(regrets):.1%}, worst {max(regrets):.1%}")


def as_given(space: Space) -> dict[str, Value]:
    return {knob.name: knob.first() for knob in space.knobs}


def for_real(space: Space, grid: dict[str, float]) -> None:
    """One search with real trials, judged by the grid."""
    with tempfile.TemporaryDirectory() as folder:
        count = iter(range(10_000))
        search = Search(
            space,
            lambda change, on_steps: real(
                Path(folder) / str(next(count)), change, on_steps, REAL_STEPS
            ),
            TunePolicy(num_trials=max(1, int(SHARE * len(grid))), seed=0),
            lambda words: print(words, file=sys.stderr, flush=True),
        )
        search.run()
    found = search.ranked()[0][0]
    regret = grid[name(found)] / min(grid.values()) - 1
    print(
        f"for real: {settings_words(found)}, {regret:.1%} above the best cell, "
        f"{min(grid, key=lambda cell: grid[cell])}"
    )


if __name__ == "__main__":
    main()
