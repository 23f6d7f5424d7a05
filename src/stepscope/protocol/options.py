"""What is asked of the capture, and which steps it does not count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

FIRST_STEPS = 5
"""Not counted: the first steps compile, allocate and wait for the loader's first batches."""
WARM_STEPS = 1
"""Steps with the profiler attached that are not kept: the first one pays for its buffers."""
AFTER_STEPS = 2
"""Not counted after a recording: the loader and the device catch up with the time the file took."""


@dataclass(frozen=True)
class Options:
    """Fields are what RUN/run.json has under `options`; anything else there is somebody else's."""

    start_step: int | None = None
    """The step a recording begins with; None for the first good moment."""
    warm_up_steps: int = 15
    """Steps before a recording may begin by itself: the first ones compile,
    allocate and fill caches."""
    warm_up_s: float = 1.0
    """Seconds of warm-up, beside its steps."""
    num_steps: int = 3
    """Steps in a recording."""
    num_windows: int = 1
    """Recordings a job makes by itself."""
    every_steps: int = 1000
    """Steps between two recordings."""
    stacks: bool = False
    """Whether recordings have Python's stacks: source locations,
    for a larger file and a slower window."""
    modules: bool = False
    """Whether recordings mark the modules' forward passes: findings name modules without
    stacks."""
    memory: bool = False
    """Whether recordings have allocations."""
    sample_s: float = 1.0
    """Seconds between two samples of the counters."""
    max_steps: int | None = None
    """The number of the last step, after which every rank ends itself;
    the step that made the rank's folder is number 0."""
    trial: bool = False
    """Whether this is a trial: settings are applied on top of the job's,
    and its seed and first batches are noted."""
    numerics: bool = False
    """Whether what each step computed is written down: losses, norms of gradients, digests of
    parameters."""
    raised: tuple[str, ...] = ()
    """Settings of a trial that never take a job's own down."""

    @property
    def is_trial(self) -> bool:
        return self.trial or self.numerics or self.max_steps is not None

    @property
    def values(self) -> dict[str, Any]:
        """Values as RUN/run.json has them."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def options_of(values: Mapping[str, Any]) -> Options:
    """Options from those values that have the right kind; the rest keep their defaults."""
    defaults = {f.name: getattr(Options, f.name) for f in fields(Options)}
    good: dict[str, Any] = {}
    for name, default in defaults.items():
        value = values.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        wanted_bool = isinstance(default, bool)
        if value is not None and (
            isinstance(value, bool) if wanted_bool else is_number and value >= 0
        ):
            good[name] = value
    raised = values.get("raised")
    if isinstance(raised, list | tuple):
        good["raised"] = tuple(name for name in raised if isinstance(name, str))
    for name in ("warm_up_steps", "num_steps", "every_steps"):
        good[name] = max(1, int(good.get(name, defaults[name])))
    return Options(**good)
