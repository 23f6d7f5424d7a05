"""Settings that a search begins with: each knob at its other end and in its middle, the others as
the first says.

A fixed design, put in line before anything is known: it shows the sampler what each knob does by
itself. What follows is the sampler's.
"""

from __future__ import annotations

import math

from stepscope.core.experiments.trials import Value
from stepscope.tune.knob_space import Knob, Space

MOST_SHARE = 0.6
"""Of all trials: the rest is for what the sampler makes of them."""


def first_settings(space: Space, num_trials: int) -> list[dict[str, Value]]:
    """The first values together, then every knob's last one, then every knob's middle, as far as
    its share of the trials goes."""
    knobs = [knob for knob in space.knobs if knob.values is None or len(knob.values) > 1]
    base = {knob.name: knob.first() for knob in space.knobs}
    points = {knob.name: spread(knob) for knob in knobs}
    far = [{**base, name: values[-1]} for name, values in points.items()]
    middles = [{**base, name: values[1]} for name, values in points.items() if len(values) > 2]
    designed = [space.completed(settings) for settings in (base, *far, *middles)]
    return designed[: max(1, math.floor(MOST_SHARE * num_trials))]


def spread(knob: Knob) -> list[Value]:
    """Its first value, one in the middle, and its last; of a list without order there is no
    middle."""
    values = knob.values
    if values is not None and not knob.is_log:
        middle = [values[len(values) // 2]] if knob.is_ordered and len(values) > 2 else []
        return list(dict.fromkeys([values[0], *middle, values[-1]]))
    assert knob.low is not None and knob.high is not None
    middle_point = math.sqrt(knob.low * knob.high) if knob.is_log else (knob.low + knob.high) / 2
    near = (knob.nearest(float(f"{point:.3g}")) for point in (knob.low, middle_point, knob.high))
    return list(dict.fromkeys(value for value in near if value is not None))
