"""Fuzzes every format and every other file that is read: `python -m benchmarks.fuzz --inputs 10000
--seed 1`.

Prints for each format how many damaged inputs were diagnosed, refused, and read with notes, the
slowest inputs, and every failure with the seed that repeats it: `--kind nsys-sqlite --seed 4711
--inputs 1 --keep DIR` leaves that input in DIR. `--kind splice` is another fuzzer, which knows
nothing of formats: pieces of files of different kinds, changed lengths and offsets, other encodings
and packings.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import warnings
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzzing import REFUSED, SPLICE, Outcome, kinds, run_round, run_splice

NUM_SLOWEST = 10
BATCH = 25


def main() -> int:
    arguments = _arguments()
    wanted = arguments.kind or list(kinds())
    rounds = [
        (wanted[at % len(wanted)], arguments.seed + at // len(wanted))
        for at in range(arguments.inputs)
    ]
    if arguments.keep is not None:
        outcomes = [_round(kind, seed, arguments.keep) for kind, seed in rounds]
    else:
        batches = [rounds[at : at + BATCH] for at in range(0, len(rounds), BATCH)]
        with ProcessPoolExecutor(arguments.jobs) as pool:
            outcomes = [outcome for batch in pool.map(_batch, batches) for outcome in batch]
    return _tell(outcomes)


def _batch(rounds: list[tuple[str, int]]) -> list[Outcome]:
    warnings.simplefilter("error")
    with TemporaryDirectory() as folder:
        return [_round(kind, seed, Path(folder) / "input") for kind, seed in rounds]


def _round(kind: str, seed: int, folder: Path) -> Outcome:
    return run_splice(seed, folder) if kind == SPLICE else run_round(kind, seed, folder)


def _tell(outcomes: list[Outcome]) -> int:
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome)
    print(
        f"{'format':18} {'inputs':>7} {'diagnosed':>9} {'refused':>7} {'notes':>6} {'failed':>6} "
        f"{'mean ms':>8}"
    )
    for kind, mine in by_kind.items():
        answers = Counter(outcome.answer for outcome in mine)
        num_failed = sum(outcome.problem is not None for outcome in mine)
        num_noted = sum(outcome.num_notes > 0 for outcome in mine)
        mean_ms = 1e3 * sum(outcome.seconds for outcome in mine) / len(mine)
        num_read = len(mine) - answers[REFUSED]
        print(
            f"{kind:18} {len(mine):7} {num_read:9} {answers[REFUSED]:7} {num_noted:6} "
            f"{num_failed:6} {mean_ms:8.0f}"
        )
    print("\nslowest")
    for outcome in heapq.nlargest(NUM_SLOWEST, outcomes, key=lambda outcome: outcome.seconds):
        print(f"  {outcome.seconds:7.2f} s  --kind '{outcome.kind}' --seed {outcome.seed}")
    failed = [outcome for outcome in outcomes if outcome.problem is not None]
    print(f"\n{len(outcomes)} inputs, {len(failed)} failed")
    for problem, num in Counter(outcome.problem for outcome in failed).most_common():
        first = next(outcome for outcome in failed if outcome.problem == problem)
        print(f"  {num:5}  --kind '{first.kind}' --seed {first.seed}  {problem}")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1000, help="damaged inputs in all")
    parser.add_argument("--seed", type=int, default=1, help="of the first round of each format")
    parser.add_argument(
        "--kind", action="append", help=f"one of the formats alone, or {SPLICE}; may be given again"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--keep", type=Path, help="a folder for the last input; it is emptied before"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
