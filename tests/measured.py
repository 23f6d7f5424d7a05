"""Jobs that are measured and judged once by each test process: the demo, and recordings that no
test changes."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepscope.rules.job_case import Job
from stepscope.rules.judge_job import Judged
from tests.shared_data import DEMO, SAMPLES, SHARED

MAX_KEPT = 12
KEYS = ("sources", "step_ns")
"""Parameters of `measure_job` that tell one plain job from another."""
MORE = ("logs", "auxiliary", "run", "whole_run")
"""Parameters that add to what the traces say: a job with any of them is measured anew."""
MEANS = ("workers", "progress", "read_progress")
"""Parameters that change how it is measured, and not what comes of it."""
CONTEXTS = "contexts"
"""The parameter that has the machine to judge by, and whether the user's cache is used."""


class MeasuredOnce:
    """`measure_job` and `judge_job`, with what they gave kept."""

    def __init__(self, measure: Callable[..., Job], judge: Callable[[Job], Judged]) -> None:
        self._measure, self._judge = measure, judge
        self._signature = inspect.signature(measure)
        known = {*KEYS, *MORE, *MEANS, CONTEXTS}
        if known != set(self._signature.parameters):
            names = ", ".join(sorted(known ^ set(self._signature.parameters)))
            raise TypeError(f"tests/measured.py and measure_job's parameters differ: {names}")
        self._kept: OrderedDict[tuple[Any, ...], tuple[Job, list[Judged]]] = OrderedDict()

    def measure(self, *args: Any, **options: Any) -> Job:
        bound = self._signature.bind(*args, **options)
        bound.apply_defaults()
        call = bound.arguments
        if not _is_plain(call):
            return self._measure(*args, **options)
        key = (tuple(call["sources"]), call["step_ns"])
        if key not in self._kept:
            self._kept[key] = self._measure(*args, **options), []
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return self._kept[key][0]

    def judge(self, job: Job) -> Judged:
        for known, judged in self._kept.values():
            if known.case_of is job.case_of and known.facts is job.facts:
                judged[:] = judged or [self._judge(job)]
                return judged[0]
        return self._judge(job)


def _is_plain(call: Mapping[str, Any]) -> bool:
    """Whether the traces alone decide what comes of it, and nobody changes them."""
    contexts = call[CONTEXTS]
    return (
        all(_is_fixed(Path(str(source.path))) for source in call["sources"])
        and not any(call[name] for name in MORE)
        and (contexts is None or not (contexts.use_cache or contexts.hardware is not None))
    )


def _is_fixed(path: Path) -> bool:
    return path == DEMO or SAMPLES in path.parents or SHARED in path.parents
