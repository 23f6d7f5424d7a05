"""Full recomputation of as few layers as make a layout fit.

Memory and time go with the number of layers, so that it is worked out, not searched for.
"""

from __future__ import annotations

import numpy as np

from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import RECOMPUTE, Layouts
from stepscope.plan.memory import memory
from stepscope.plan.parameters import fullest_stage, parameters
from stepscope.plan.rates import Floats

_NONE, _FULL = RECOMPUTE.index("none"), RECOMPUTE.index("full")


def partly_recomputed(job: TrainingJob, layouts: Layouts, limit_bytes: float) -> Layouts:
    """Of layouts that recompute all layers and fit, those that fit with fewer of them, with as few
    as that takes. What fits with none recomputed is left out: it is a layout of its own."""
    is_plain = (layouts.recompute_layers == 0) & (layouts.recompute_every == 1)
    layouts = layouts.take((layouts.recompute == _FULL) & is_plain)
    if not len(layouts):
        return layouts
    without = layouts.changed(recompute=np.full(len(layouts), _NONE))
    all_bytes, none_bytes = _total(job, layouts), _total(job, without)
    in_stage = fullest_stage(job, layouts)
    saved = np.maximum(none_bytes - all_bytes, 1.0)
    least = np.ceil(in_stage * (none_bytes - limit_bytes) / saved - 1e-9)
    is_partial = (none_bytes > limit_bytes) & (least >= 1) & (least < in_stage)
    layouts, least = layouts.take(is_partial), least[is_partial].astype(np.int64)
    if not len(layouts):
        return layouts
    # The stage with the head may be the fullest with some layers and not with others.
    for more in (0, 1, 2):
        some = layouts.changed(recompute_layers=least + more)
        fits = _total(job, some) <= limit_bytes
        if fits.all():
            break
    return some.take(fits & (least + more < fullest_stage(job, some)))


def _total(job: TrainingJob, layouts: Layouts) -> Floats:
    total = memory(job, layouts, parameters(job, layouts)).total
    return np.broadcast_to(total, len(layouts))
