"""Which configurations of many are tried: a few by chance, then those that a model of what was
timed (Optuna's tree of Parzen estimators) takes for fast.

A configuration that was wrong or failed is told as slower than all that were right, so that the
model keeps away from its like.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.core.experiments.trials import Value
from stepscope.tune.kernels.space import Settings
from stepscope.tune.parameters import import_optuna

MIN_FIRST = 20
FIRST_SHARE = 0.1
"""Share of the trials, by chance, before the model is asked."""
MAX_ASKS = 8
"""Questions to the model for a configuration that was not tried yet, before one is drawn of the
rest."""
FAILED_TIMES = 2.0
"""A configuration that is wrong counts as so many times the slowest of those that were right."""
SEED = 0
Key = tuple[tuple[str, Value], ...]


class KernelSearch:
    """Asked for a configuration, told its time; none is tried twice."""

    def __init__(self, configs: Sequence[Settings], trials: int) -> None:
        self._axes = axes_of(configs)
        self._left: dict[Key, Settings] = {_key(settings): settings for settings in configs}
        self._generator = random.Random(SEED)  # noqa: S311 - which are tried is no secret
        self._slowest: float | None = None
        self._optuna = import_optuna()
        first = max(MIN_FIRST, round(FIRST_SHARE * trials))
        with warnings.catch_warnings():
            # Several parameters together are an experiment of Optuna's since version 2.
            warnings.simplefilter("ignore")
            sampler = self._optuna.samplers.TPESampler(
                seed=SEED, n_startup_trials=first, multivariate=True
            )
        self._study = self._optuna.create_study(sampler=sampler)
        self._distributions = {
            name: self._distribution(values)
            for name, values in self._axes.items()
            if len(values) > 1
        }

    def _distribution(self, values: Sequence[Value]) -> Any:
        """Distribution by place in the list: numbers in order, words without."""
        kinds = self._optuna.distributions
        if is_ordered(values):
            return kinds.IntDistribution(0, len(values) - 1)
        return kinds.CategoricalDistribution(tuple(range(len(values))))

    def ask(self) -> Settings | None:
        """One that was not tried; None where none is left."""
        for _ in range(MAX_ASKS):
            if not self._left:
                return None
            trial = self._study.ask(self._distributions)
            settings = {
                name: values[trial.params.get(name, 0)] for name, values in self._axes.items()
            }
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            if self._left.pop(_key(settings), None) is not None:
                return settings
        if not self._left:
            return None
        return self._left.pop(self._generator.choice(list(self._left)))

    def tell(self, settings: Settings, ns: float | None) -> None:
        """What it took, in any unit; None where it was wrong or failed."""
        self._left.pop(_key(settings), None)
        if ns is not None and ns > 0:
            self._slowest = max(self._slowest or ns, ns)
            value = math.log(ns)
        elif self._slowest is not None:
            value = math.log(FAILED_TIMES * self._slowest)
        else:
            return
        if not all(settings.get(name) in values for name, values in self._axes.items()):
            return
        params = {name: self._axes[name].index(settings[name]) for name in self._distributions}
        trial = self._optuna.trial.create_trial(
            params=params, distributions=self._distributions, value=value
        )
        self._study.add_trial(trial)


def axes_of(configs: Sequence[Settings]) -> Mapping[str, tuple[Value, ...]]:
    """Each setting's values: numbers in their order, words as they come."""
    axes: dict[str, dict[Value, None]] = {}
    for settings in configs:
        for name, value in settings.items():
            axes.setdefault(name, {})[value] = None
    return {
        name: tuple(sorted(values, key=float)) if is_ordered(tuple(values)) else tuple(values)
        for name, values in axes.items()
    }


def is_ordered(values: Sequence[Value]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _key(settings: Settings) -> Key:
    return tuple(sorted(settings.items(), key=lambda item: item[0]))
