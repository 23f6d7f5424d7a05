"""Hooks on what writes logs: print, logging, progress bars, TensorBoard, trackers.

Classes and functions of libraries that the job itself imports, and no others. A call inside
another one is a part of it; those of other threads hold no step up.
"""

from __future__ import annotations

import builtins
import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from stepscope.capture.caller import calling_line
from stepscope.capture.guard import Guard
from stepscope.capture.hooks.patches import compiling_asker, replace
from stepscope.capture.session import Session
from stepscope.capture.tape import LOGGED, NOTED_NS

LEAST_NS = 20_000
"""Shorter calls are not counted."""
SUMMARY = ("add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_figure")
CLASSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "logging": ("Logger", ("handle",)),
    "tqdm.std": ("tqdm", ("display",)),
    "torch.utils.tensorboard.writer": ("SummaryWriter", (*SUMMARY, "add_text", "flush")),
    "tensorboardX.writer": ("SummaryWriter", (*SUMMARY, "add_text", "flush")),
    "wandb.sdk.wandb_run": ("Run", ("log",)),
    "mlflow.tracking.client": ("MlflowClient", ("log_metric", "log_batch", "log_artifact")),
    "comet_ml.experiment": ("BaseExperiment", ("log_metric", "log_metrics")),
}
"""By module: the class through which all of its calls go, and its methods."""


class Loggers:
    """Those that were found. One is hooked when its module is there: a job may import it late."""

    def __init__(self, guard: Guard, session: Session) -> None:
        self._guard, self._session = guard, session
        self._thread = threading.main_thread().ident
        self._is_inside = False
        self._left = dict(CLASSES)
        self._is_compiling = compiling_asker()
        self._watched = guard.watch(self._logged)
        replace(guard, builtins, "print", self._around)
        self.look()

    def look(self) -> None:
        """Hooks those that have come; any thread may ask."""
        for name in [name for name in self._left if name in sys.modules]:
            owner, methods = self._left[name]
            kind = getattr(sys.modules[name], owner, None)
            if kind is None:
                # Its module is still being imported.
                continue
            del self._left[name]
            for method in methods:
                if callable(kind.__dict__.get(method)):
                    replace(self._guard, kind, method, self._around)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        guard, clock, ident = self._guard, time.perf_counter_ns, threading.get_ident
        is_compiling, watched = self._is_compiling, self._watched

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._is_inside or not guard.is_on or ident() != self._thread:
                return original(*args, **kwargs)
            self._is_inside = True
            begun = clock()
            try:
                return original(*args, **kwargs)
            finally:
                self._is_inside = False
                ended = clock()
                if ended - begun >= LEAST_NS:
                    watched(begun, ended)

        return wrapper

    def _logged(self, begun: int, ended: int) -> None:
        line = calling_line() if ended - begun >= NOTED_NS else None
        self._session.tape.append((LOGGED, begun, ended, line))


def hook_loggers(guard: Guard, session: Session) -> None:
    loggers = Loggers(guard, session)
    session.notice = guard.watch(loggers.look)
