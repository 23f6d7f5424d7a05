"""Search a job's knobs by short real trials; prove the winner.

  stepscope tune --knob num_workers=0..8 --knob compile_mode=off,default -- python train.py
  stepscope tune --knob chunk=1..16 --as chunk="--loss-chunks={}" -- python train.py
  stepscope tune kernel MODULE:FUNCTION ...        configurations of one kernel (see its --help)
  stepscope tune cache list|export|import|forget   what was found before (see its --help)
The command as it was given is trial 0. Optuna chooses the others (pip install 'stepscope[tune]').
Exit code 0 when a faster setting is proven, 1 when none is, 2 when nothing could be measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.printing import print_answer, progress_bar, say
from stepscope.cli.run import command_of, keep_result, new_folder, refuse_unrunnable
from stepscope.errors import StepscopeError, UsageError
from stepscope.process.signals import ended_as_by_hand
from stepscope.protocol.json_text import json_text
from stepscope.tune.cli.options import Options, cache_path

if TYPE_CHECKING:
    from stepscope.core.experiments.trials import Change, Setup, Trial
    from stepscope.tune.cache import CacheKey
    from stepscope.tune.knob_space import Space
    from stepscope.tune.policy import OnSteps, Start, TunePolicy
    from stepscope.tune.shapes.tuning import Tuning
    from stepscope.tune.tuner import Search

__all__ = ["Options", "run"]
RESULT_FILE = "tuning.json"
EXAMPLE = "stepscope tune --knob num_workers=0..8 -- python train.py"
PROVEN_CODE, UNPROVEN_CODE, INTERRUPTED_CODE = 0, 1, 130


def run(options: Options) -> int:
    if options.words[:1] == ("kernel",):
        from stepscope.tune.cli.kernel import run_kernel

        return run_kernel(options.words[1:])
    if options.words[:1] == ("cache",):
        from stepscope.tune.cli.cache import run_cache

        return run_cache(options.words[1:])
    return _run_search(options)


def _run_search(options: Options) -> int:
    from stepscope.tune.batch import check_batch
    from stepscope.tune.knob_space import Space, parse_knobs, parse_ways
    from stepscope.tune.parameters import import_optuna
    from stepscope.tune.tuner import Search

    began = time.monotonic()
    searched = options.searched
    space = Space(knobs=parse_knobs(searched.knobs, parse_ways(searched.ways)))
    if not space.knobs:
        raise UsageError(
            "nothing to search: give at least one knob, such as --knob num_workers=0..8"
        )
    check_batch(space.knobs, searched.free)
    refuse_unrunnable(command_of(options.command, EXAMPLE))
    space, left_out = _able(space, options.command)
    folder = new_folder(options.kept.out)
    import_optuna()
    codes = _codes(searched.started_by)
    policy = _policy(options, space)
    runner = Runner(options, folder)
    with ended_as_by_hand():
        search = Search(space, runner.measure, policy, say, notes=left_out, began=began)
        runner.left_s = search.left_s
        return _search(options, search, runner, codes)


def _able(space: Space, command: Sequence[str]) -> tuple[Space, list[str]]:
    """The space without the knobs that cannot take effect on this machine, and a note for each."""
    from stepscope.experiments.preflight import unable, unable_words
    from stepscope.tune.knob_space import HOOK, Space

    reasons = unable([knob.name for knob in space.knobs if knob.way.kind == HOOK], command, {})
    kept = tuple(knob for knob in space.knobs if knob.name not in reasons)
    if not kept:
        raise UsageError("nothing to search: " + "; ".join(unable_words(reasons)))
    notes = [
        f"{name} was left out of the search, for it cannot take effect: {why}"
        for name, why in reasons.items()
    ]
    for note in notes:
        say(note)
    return Space(knobs=kept), notes


def _search(options: Options, search: Search, runner: Runner, codes: Sequence[str]) -> int:
    from stepscope.core.codec import encode
    from stepscope.protocol.secrets import masked_words
    from stepscope.tune.proof import ProofPolicy, concluded
    from stepscope.tune.report.view import tuning_document

    cached = _SearchCache(cache_path(options.kept.cache), options.command, search.space)
    search.run(lambda given: [*cached.starts(given, search), *_from_codes(codes, given)])
    if search.baseline is None:
        raise KeyboardInterrupt
    proof = ProofPolicy(budget_s=search.left_s(), skip=not options.measuring.is_proven)
    numerics = runner.numerics if options.measuring.is_proven else None
    # What is written down has no secrets in it.
    tuning = concluded(search, tuple(masked_words(options.command)), numerics, proof)
    cached.keep(tuning, search.judge.baseline_setup)
    keep_result(runner.folder / RESULT_FILE, encode(tuning))
    print_answer(tuning, options.style, encode, tuning_document)
    if search.is_interrupted:
        return INTERRUPTED_CODE
    return PROVEN_CODE if tuning.is_proven else UNPROVEN_CODE


def _policy(options: Options, space: Space) -> TunePolicy:
    import hashlib

    from stepscope.tune.policy import TunePolicy

    searched, measuring = options.searched, options.measuring
    knobs = [[knob.name, knob.words, knob.way.template] for knob in space.knobs]
    identity = [list(options.command), knobs, sorted(searched.free), searched.effective_batch]
    digest = hashlib.sha256(json_text(identity).encode("utf-8", "replace")).hexdigest()[:16]
    seed = measuring.seed
    if options.kept.storage is not None:
        # Machines that share a storage must not draw the same settings in the same order.
        seed += int.from_bytes(os.urandom(3), "big")
    return TunePolicy(
        num_trials=measuring.num_trials,
        budget_s=measuring.budget_s,
        is_proven=measuring.is_proven,
        seed=seed,
        storage=options.kept.storage,
        name=f"stepscope-{digest}",
        free=frozenset(searched.free),
        effective_batch=searched.effective_batch,
        prune=measuring.is_pruned,
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
        from stepscope.experiments.verify.schedule import steps_before

        number, self._count = self._count, self._count + 1
        left, limit = self.left_s(), self._options.measuring.timeout_s
        return run_trial(
            self._options.command,
            self.folder / f"trial-{number:03d}",
            change,
            max_steps=self._options.measuring.steps,
            warm_up_steps=steps_before(self._options.measuring.warm_up_steps, None),
            timeout_s=limit if left is None else min(limit, left),
            with_numerics=with_numerics,
            on_steps=on_steps,
        )

    def numerics(self, change: Change) -> Trial:
        return self.measure(change, with_numerics=True)


class _SearchCache:
    """The tuning cache, where there is one."""

    def __init__(self, path: str | None, command: Sequence[str], space: Space) -> None:
        from stepscope.tune.cache import TuningCache

        self._cache = TuningCache(path) if path else None
        if self._cache is not None:
            self._cache.refuse_strange()
        self._command, self._space = command, space

    def starts(self, given: Trial, search: Search) -> list[Start]:
        from stepscope.tune.start import from_cache

        if self._cache is None:
            return []
        earlier = from_cache(self._cache, self._key(given.setup))
        for note in earlier.notes:
            say(note)
            search.notes.append(note)
        return list(earlier.starts)

    def keep(self, tuning: Tuning, setup: Setup) -> None:
        """What was measured is printed even when it cannot be kept."""
        from stepscope.tune.start import keep

        if self._cache is None:
            return
        try:
            if keep(self._cache, self._key(setup), tuning, setup):
                say(f"the winner is kept in {self._cache}")
        except StepscopeError as problem:
            say(str(problem))

    def _key(self, setup: Setup) -> CacheKey:
        import shlex

        from stepscope.protocol.secrets import masked_words
        from stepscope.tune.start import key_of

        return key_of(shlex.join(masked_words(self._command)), self._space.knobs, setup)


def _codes(path: Path | None) -> tuple[str, ...]:
    """The findings to begin with: of a diagnosis in JSON, of a run that keeps one, or of a run that
    is diagnosed now."""
    from stepscope.protocol.run_folder import DIAGNOSIS_FILE
    from stepscope.tune.start import codes_of

    if path is None:
        return ()
    kept = path / DIAGNOSIS_FILE if path.is_dir() else path
    if path.is_dir() and not kept.exists():
        from stepscope.pipeline.options import Options as ReadingOptions
        from stepscope.pipeline.recording import diagnose

        findings = diagnose([path], ReadingOptions(use_cache=False, progress=progress_bar)).findings
        return tuple(finding.code for finding in findings)
    return codes_of(kept)


def _from_codes(codes: Sequence[str], given: Trial) -> list[Start]:
    from stepscope.tune.start import from_findings

    return from_findings(codes, given.setup.world_size or 1)
