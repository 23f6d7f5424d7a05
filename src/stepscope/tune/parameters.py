"""The knobs of a search as Optuna's parameters, and back."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

from stepscope.core.experiments.trials import Value
from stepscope.errors import UsageError
from stepscope.tune.knob_space import Knob, Settings, Space

INDEX_SUFFIX = " (place in its list)"
"""Ends the name under which Optuna has a list of numbers: to it they are 0, 1, 2, ..., in order."""
INSTALL = (
    "stepscope tune needs Optuna with SciPy, which are not installed: pip install 'stepscope[tune]'"
)
DIGITS = 3
"""Digits of a number in a continuous range: as many as anybody would write."""


def import_optuna() -> Any:
    """Optuna, without its own words on stderr."""
    try:
        import optuna

        # The sampler's own need, which it would report in the midst of a search.
        importlib.import_module("scipy")
    except ImportError:
        raise UsageError(INSTALL) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Parameters:
    """Settings of a space in Optuna's form: knobs with one value alone are no parameters."""

    def __init__(self, optuna: Any, space: Space) -> None:
        self._space = space
        self.knobs = [knob for knob in space.knobs if knob.values is None or len(knob.values) > 1]
        self._fixed = {
            knob.name: knob.values[0]
            for knob in space.knobs
            if knob.values is not None and len(knob.values) == 1
        }
        self.distributions = {_name(knob): _distribution(optuna, knob) for knob in self.knobs}

    def params(self, settings: Settings) -> dict[str, Any]:
        """Settings as Optuna has them."""
        params: dict[str, Any] = {}
        for knob in self.knobs:
            value = settings[knob.name]
            params[_name(knob)] = knob.choices.index(value) if _is_listed(knob) else value
        return params

    def settings(self, params: Mapping[str, Any]) -> dict[str, Value]:
        """What Optuna chose, with all that follows from it."""
        chosen = {knob.name: _value(knob, params[_name(knob)]) for knob in self.knobs}
        return self._space.completed({**self._fixed, **chosen})

    def is_complete(self, trial: Any) -> bool:
        """Whether one of Optuna's trials has all of its setting."""
        return set(trial.params) == set(self.distributions)


def _value(knob: Knob, param: Any) -> Value:
    if _is_listed(knob):
        listed: Value = knob.choices[param]
        return listed
    if knob.values is not None or isinstance(param, int) or knob.low is None or knob.high is None:
        chosen: Value = param
        return chosen
    return min(max(float(f"{param:.{DIGITS}g}"), knob.low), knob.high)


def _name(knob: Knob) -> str:
    return f"{knob.name}{INDEX_SUFFIX}" if _is_listed(knob) else knob.name


def _is_listed(knob: Knob) -> bool:
    return bool(knob.choices) and knob.is_ordered


def _distribution(optuna: Any, knob: Knob) -> Any:
    kinds = optuna.distributions
    if _is_listed(knob):
        return kinds.IntDistribution(0, len(knob.choices) - 1)
    if knob.choices:
        return kinds.CategoricalDistribution(knob.choices)
    assert knob.low is not None and knob.high is not None
    # Optuna wants a range that its step divides.
    if knob.is_whole:
        first, step = int(knob.low), int(knob.step or 1)
        last = first + (int(knob.high) - first) // step * step
        return kinds.IntDistribution(first, last, log=knob.is_log, step=step)
    high = knob.high
    if knob.step is not None:
        high = knob.low + math.floor((knob.high - knob.low) / knob.step + 1e-9) * knob.step
    return kinds.FloatDistribution(knob.low, high, log=knob.is_log, step=knob.step)
