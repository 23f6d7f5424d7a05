"""Search a job's knobs with short real trials; the winner is checked and proven before it is named.

  stepscope tune --knob num_workers=0..8 --knob compile_mode=off,default -- python train.py
  stepscope tune --knob chunk=1..16 --as chunk="--loss-chunks={}" -- python train.py
  stepscope tune kernel MODULE:FUNCTION ...      configurations of one kernel; see stepscope tune kernel --help
  stepscope tune cache list|export|import|forget     what was found before; see stepscope tune cache --help
The command as it was given is trial 0. Optuna chooses the others (pip install 'stepscope[tune]').
Exit code 0 when a faster setting is proven, 1 when none is, 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.printing import print_document, put, say
from stepscope.cli.run import RUNS, new_folder
from stepscope.errors import UsageError
from stepscope.process.signals import ended_as_by_hand
from stepscope.protocol.json_text import json_text

if TYPE_CHECKING:
    from stepscope.core.experiments.trials import Change, Setup, Trial
    from stepscope.core.experiments.tuning import Tuning
    from stepscope.experiments.tune.cache import CacheKey, TuningCache
    from stepscope.experiments.tune.knob_space import Space
    from stepscope.experiments.tune.tuner import OnSteps, Search, Start, TunePolicy

RESULT_FILE = "tuning.json"
CACHE_VARIABLE = "STEPSCOPE_TUNING_CACHE"
PROVEN_CODE, UNPROVEN_CODE, INTERRUPTED_CODE = 0, 1, 130


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
        help="how the script is told a knob that stepscope cannot "
        "set: an argument, or env:VARIABLE",
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
        type=_count,
        metavar="N",
        help="samples a step on all ranks, where no DataLoader tells it",
    )
    knobs.add_argument(
        "--from",
        dest="started_by",
        type=Path,
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
    parser.add_argument(
        "--format",
        choices=("text", "json", "markdown"),
        default="text",
        help="how to print it (default: text)",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="what starts the job"
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how long")
    group.add_argument(
        "--trials",
        type=_count,
        default=20,
        metavar="N",
        help="trials in all, on all machines (default: 20)",
    )
    group.add_argument(
        "--budget",
        type=_seconds,
        metavar="SECONDS",
        help="for the whole command: what runs then is ended (default: none)",
    )
    group.add_argument(
        "--steps",
        type=_count,
        default=30,
        metavar="N",
        help="timed steps of each trial (default: 30)",
    )
    group.add_argument(
        "--warm-up",
        type=_count,
        default=10,
        metavar="N",
        help="steps before them that do not count, 5 at least (default: 10)",
    )
    group.add_argument(
        "--timeout",
        type=_seconds,
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


def run(arguments: argparse.Namespace) -> int:
    words = list(arguments.command)
    if words[:1] == ["kernel"]:
        return _run_kernel(words[1:])
    if words[:1] == ["cache"]:
        return _run_cache(words[1:])
    return _run_search(options_of(arguments))


def _run_kernel(words: Sequence[str]) -> int:
    from stepscope.cli.tune.kernel import add_kernel_arguments, run_kernel

    parser = argparse.ArgumentParser(
        prog="stepscope tune kernel",
        description="Sweep the configurations of one kernel, each checked against a reference.",
    )
    add_kernel_arguments(parser)
    return run_kernel(parser.parse_args(words))


def _run_search(options: Options) -> int:
    from stepscope.experiments.tune.batch import check_batch
    from stepscope.experiments.tune.knob_space import Space, parse_knobs, parse_ways
    from stepscope.experiments.tune.study import import_optuna
    from stepscope.experiments.tune.tuner import Search

    began = time.monotonic()
    space = Space(knobs=parse_knobs(options.knobs, parse_ways(options.ways)))
    if not space.knobs:
        raise UsageError(
            "nothing to search: give at least one knob, such as --knob num_workers=0..8"
        )
    check_batch(space.knobs, options.free)
    _check_command(options.command)
    space, left_out = _able(space, options.command)
    folder = new_folder(options.out)
    import_optuna()
    codes = _codes(options.started_by)
    policy = _policy(options, space)
    runner = Runner(options, folder)
    with ended_as_by_hand():
        search = Search(space, runner.measure, policy, say, notes=left_out, began=began)
        runner.left_s = search.left_s
        return _search(options, search, runner, codes)


def _able(space: Space, command: Sequence[str]) -> tuple[Space, list[str]]:
    """The space without the knobs that cannot take effect on this machine, and a note for each."""
    from stepscope.experiments.preflight import unable, unable_words
    from stepscope.experiments.tune.knob_space import HOOK, Space

    found = unable([knob.name for knob in space.knobs if knob.way.kind == HOOK], command, {})
    kept = tuple(knob for knob in space.knobs if knob.name not in found)
    if not kept:
        raise UsageError("nothing to search: " + "; ".join(unable_words(found)))
    notes = [
        f"{name} was left out of the search, for it cannot take effect: {why}"
        for name, why in found.items()
    ]
    for note in notes:
        say(note)
    return Space(knobs=kept), notes


def _search(options: Options, search: Search, runner: Runner, codes: Sequence[str]) -> int:
    from stepscope.experiments.tune.proof import ProofPolicy, concluded
    from stepscope.protocol.secrets import masked_words

    memory = _Memory(options.cache, options.command, search.space)
    search.run(lambda given: [*memory.starts(given, search), *_from_codes(codes, given)])
    if search.baseline is None:
        raise KeyboardInterrupt
    proof = ProofPolicy(budget_s=search.left_s(), skip=not options.is_proven)
    numerics = runner.numerics if options.is_proven else None
    # What is written down has no secrets in it.
    tuning = concluded(search, tuple(masked_words(options.command)), numerics, proof)
    memory.keep(tuning)
    _keep(tuning, runner.folder)
    _print(tuning, options.style)
    if search.is_interrupted:
        return INTERRUPTED_CODE
    return PROVEN_CODE if tuning.is_proven else UNPROVEN_CODE


def _check_command(command: Sequence[str]) -> None:
    if not command:
        raise UsageError(
            "no command was given. Write it after two dashes: stepscope tune --knob "
            "num_workers=0..8 -- python train.py"
        )
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]} is not a command that can be run here. Is it spelled right, and on PATH?"
        )


def _policy(options: Options, space: Space) -> TunePolicy:
    import hashlib

    from stepscope.experiments.tune.tuner import TunePolicy

    knobs = [[knob.name, knob.words, knob.way.template] for knob in space.knobs]
    told = [list(options.command), knobs, sorted(options.free), options.effective_batch]
    digest = hashlib.sha256(json_text(told).encode("utf-8", "replace")).hexdigest()[:16]
    seed = options.seed
    if options.storage is not None:
        # Machines that share a storage must not draw the same settings in the same order.
        seed += int.from_bytes(os.urandom(3), "big")
    return TunePolicy(
        num_trials=options.num_trials,
        budget_s=options.budget_s,
        is_proven=options.is_proven,
        seed=seed,
        storage=options.storage,
        name=f"stepscope-{digest}",
        free=frozenset(options.free),
        effective_batch=options.effective_batch,
        prune=options.is_pruned,
    )


class Runner:
    """Runs the command in a numbered folder of its own."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options, self.folder = options, folder
        self.left_s: Callable[[], float | None] = lambda: None
        """What is left of the budget for a run."""
        self._count = 0

    def measure(
        self, change: Change, on_steps: OnSteps | None = None, *, with_numerics: bool = False
    ) -> Trial:
        from stepscope.experiments.trials.trial import run_trial

        number, self._count = self._count, self._count + 1
        left, limit = self.left_s(), self._options.timeout_s
        return run_trial(
            self._options.command,
            self.folder / f"trial-{number:03d}",
            change,
            max_steps=self._options.steps,
            warm_up_steps=self._options.warm_up_steps,
            timeout_s=limit if left is None else min(limit, left),
            with_numerics=with_numerics,
            on_steps=on_steps,
        )

    def numerics(self, change: Change) -> Trial:
        return self.measure(change, with_numerics=True)


class _Memory:
    """The tuning cache, where there is one."""

    def __init__(self, path: str | None, command: Sequence[str], space: Space) -> None:
        from stepscope.experiments.tune.cache import TuningCache

        self._cache = TuningCache(path) if path else None
        if self._cache is not None:
            self._cache.refuse_strange()
        self._command, self._space = command, space

    def starts(self, given: Trial, search: Search) -> list[Start]:
        from stepscope.experiments.tune.start import from_cache

        if self._cache is None:
            return []
        known = from_cache(self._cache, self._key(given.setup))
        for note in known.notes:
            say(note)
            search.notes.append(note)
        return list(known.starts)

    def keep(self, tuning: Tuning) -> None:
        """What was measured is printed even when it cannot be kept."""
        from stepscope.errors import StepscopeError
        from stepscope.experiments.tune.start import keep

        if self._cache is None:
            return
        try:
            if keep(self._cache, self._key(tuning.setup), tuning):
                say(f"the winner is kept in {self._cache}")
        except StepscopeError as problem:
            say(str(problem))

    def _key(self, setup: Setup) -> CacheKey:
        import shlex

        from stepscope.experiments.tune.start import key_of
        from stepscope.protocol.secrets import masked_words

        return key_of(shlex.join(masked_words(self._command)), self._space.knobs, setup)


def _codes(path: Path | None) -> tuple[str, ...]:
    """The findings to begin with: of a diagnosis in JSON, of a run that keeps one, or of a run that
    is diagnosed now."""
    from stepscope.experiments.tune.start import codes_of
    from stepscope.protocol.run_folder import DIAGNOSIS_FILE

    if path is None:
        return ()
    kept = path / DIAGNOSIS_FILE if path.is_dir() else path
    if path.is_dir() and not kept.exists():
        from stepscope.pipeline.options import Options
        from stepscope.pipeline.recording import diagnose

        findings = diagnose([path], Options(use_cache=False)).findings
        return tuple(finding.code for finding in findings)
    return codes_of(kept)


def _from_codes(codes: Sequence[str], given: Trial) -> list[Start]:
    from stepscope.experiments.tune.start import from_findings

    return from_findings(codes, given.setup.world_size or 1)


def _keep(tuning: Tuning, folder: Path) -> None:
    from stepscope.report.tune.json import tuning_json

    try:
        (folder / RESULT_FILE).write_text(tuning_json(tuning) + "\n", encoding="utf-8")
    except OSError as problem:
        say(f"{folder / RESULT_FILE} could not be written: {problem.strerror}")


def _print(tuning: Tuning, style: str) -> None:
    if style == "json":
        from stepscope.report.tune.json import tuning_json

        put(tuning_json(tuning) + "\n")
    else:
        from stepscope.report.tune.view import tuning_document

        print_document(tuning_document(tuning), style)


def cache_parser() -> argparse.ArgumentParser:
    """The options of `stepscope tune cache`."""
    parser = argparse.ArgumentParser(
        prog="stepscope tune cache", description="What tuning found before, and for what."
    )
    parser.add_argument(
        "--cache", metavar="PATH", help=f"the cache: a file, or a URL (default: ${CACHE_VARIABLE})"
    )
    words = parser.add_subparsers(dest="word", required=True, metavar="WORD")
    shown = words.add_parser("list", help="what is in it")
    shown.add_argument(
        "--format", choices=("text", "json"), default="text", help="how to print it (default: text)"
    )
    there = words.add_parser(
        "export", help="write it to one file, or to a URL; a cache that is there is added to"
    )
    there.add_argument("path", metavar="PATH")
    here = words.add_parser(
        "import",
        help="take another cache in: of two records the checked one is believed, then the newer",
    )
    here.add_argument("path", metavar="PATH")
    gone = words.add_parser("forget", help="take records away")
    gone.add_argument(
        "text",
        metavar="TEXT",
        nargs="?",
        help="those in whose `what`, shapes, device or versions this stands",
    )
    gone.add_argument("--all", action="store_true", help="all of them")
    return parser


def _run_cache(words: Sequence[str]) -> int:
    from stepscope.experiments.tune.cache import TuningCache

    arguments = cache_parser().parse_args(words)
    path = arguments.cache or os.environ.get(CACHE_VARIABLE)
    if not path:
        raise UsageError(
            f"which cache? Give it: stepscope tune cache --cache tuned.jsonl {arguments.word}; or "
            f"set {CACHE_VARIABLE}"
        )
    cache = TuningCache(path)
    if arguments.word == "list":
        _list(cache, arguments.format)
    elif arguments.word == "export":
        there = cache.export_to(arguments.path)
        put(
            f"{arguments.path}: {there.added} settings added, {there.replaced} replaced,"
            f" {there.kept} as they were there already\n"
        )
    elif arguments.word == "import":
        cache.refuse_strange()
        found = cache.import_from(arguments.path)
        put(
            f"{found.added} settings added, {found.replaced} replaced, {found.kept} kept as they "
            "were,"
            f" {found.refused} lines left\n"
        )
    else:
        _forget(cache, arguments.text, is_all=arguments.all)
    return 0


def _list(cache: TuningCache, style: str) -> None:
    from stepscope.report.tune.cache import Row, cache_document, cache_json

    rows = [
        Row(
            what=entry.key.what,
            shapes=entry.key.shapes,
            dtype=entry.key.dtype,
            device=entry.key.device,
            versions=entry.key.versions,
            settings=entry.settings,
            ns=entry.ns,
            baseline_ns=entry.baseline_ns,
            at=entry.at,
            checked=entry.checked,
        )
        for entry in cache.entries()
    ]
    unread = cache.num_unread()
    if style == "json":
        put(cache_json(rows, unread) + "\n")
    else:
        print_document(cache_document(rows, unread))


def _forget(cache: TuningCache, text: str | None, *, is_all: bool) -> None:
    if bool(text) == is_all:
        raise UsageError("say what to forget: a text that stands in it, or --all")
    entries = cache.entries()
    chosen = [
        entry.key
        for entry in entries
        if text is None
        or text
        in " ".join([*entry.key.place, *(f"{n} {v}" for n, v in entry.key.versions.items())])
    ]
    put(f"{cache.forget(chosen)} of {len(entries)} settings forgotten\n")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of them; give 1 or more")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed; give a whole number from 0 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e7:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds; give a number above 0, such as 600"
        )
    return value
