"""Switches of the whole process.

Set when torch comes, and again at the first step where the job has changed them.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable
from typing import Any

from stepscope.capture.describe.peek import ask
from stepscope.capture.guard import Guard
from stepscope.capture.trial.applied import Applied, words_of
from stepscope.capture.trial.apply_model import check_compiled
from stepscope.capture.trial.patches import replace
from stepscope.capture.trial.session import TrialSession
from stepscope.protocol.settings import environment_of

NO_GPU = "the job uses no CUDA device"
TF32_FROM = 8
"""Compute capability from which a device has TF32."""


class Flags:
    """What is set for the whole process."""

    def __init__(self, session: TrialSession, torch: Any, applied: Applied) -> None:
        self._session, self._torch, self._applied = session, torch, applied
        self._flags: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
            "tf32": (lambda: torch.get_float32_matmul_precision() != "highest", self._set_tf32),
            "cudnn_benchmark": (
                lambda: torch.backends.cudnn.benchmark,
                lambda value: setattr(torch.backends.cudnn, "benchmark", value),
            ),
            "deterministic": (self._is_deterministic, self._set_deterministic),
            "num_threads": (torch.get_num_threads, torch.set_num_threads),
        }
        self._first: dict[str, Any] = {}
        """What was there when torch came."""

    def apply(self, guard: Guard, torch: Any, applied: Applied) -> None:
        for name, value in applied.wanted(*self._flags).items():
            read, write = self._flags[name]
            self._first[name] = read()
            write(value)
        if applied.wanted("anomaly_mode"):
            self._first["anomaly_mode"] = torch.is_anomaly_enabled()
            replace(guard, torch, "set_anomaly_enabled", self._around_anomaly)
        if applied.settings.get("empty_cache") is False:
            applied.failed("empty_cache", "the job never calls it")
            replace(guard, torch.cuda, "empty_cache", self._instead_of_emptying)

    def settle(self) -> None:
        """Settle after the first step.

        What the job has set otherwise is set again, and what holds is counted.
        """
        applied, torch = self._applied, self._torch
        for name, value in applied.wanted(*self._flags).items():
            try:
                self._settle(name, value)
            except Exception as problem:  # noqa: BLE001 - a part of the boundary: one switch fails, the others go on
                applied.failed(name, words_of(problem))
        if applied.wanted("anomaly_mode"):
            # Turned off, it counts where the job turns it on; turned on, it is on from the start.
            applied.holds("anomaly_mode", before=self._first["anomaly_mode"])
        if applied.settings.get("empty_cache") is True:
            applied.holds("empty_cache", before=True)
        for name, value in applied.wanted("allocator", "launch_blocking").items():
            # The environment carried it; what the job had before is not known here.
            carried = environment_of({name: value})
            other = next(
                (
                    variable
                    for variable, text in carried.items()
                    if os.environ.get(variable) != text
                ),
                None,
            )
            if other is not None:
                applied.failed(name, f"{other} was set to something else in the job")
            elif torch.cuda.is_initialized():
                applied.holds(name, before=None)
            else:
                applied.failed(name, NO_GPU)
        check_compiled(applied)
        if applied.wanted("gc"):
            self._set_gc(applied.settings["gc"])

    def _settle(self, name: str, value: Any) -> None:
        read, write = self._flags[name]
        current = read()
        if current != value:
            write(value)
        if name in ("tf32", "cudnn_benchmark") and not self._torch.cuda.is_initialized():
            self._applied.failed(name, NO_GPU)
        elif (
            name == "tf32"
            and value
            and (ask(self._torch, "cuda.get_device_capability") or (0, 0))[0] < TF32_FROM
        ):
            self._applied.failed(name, "the device has no TF32")
        else:
            before = current if current != value else self._first[name]
            # The environment has carried the number of threads here already.
            self._applied.holds(name, before=None if name == "num_threads" else before)

    def _set_tf32(self, value: bool) -> None:
        # This call is the one that no release warns at.
        self._torch.set_float32_matmul_precision("high" if value else "highest")

    def _is_deterministic(self) -> bool:
        return bool(
            self._torch.are_deterministic_algorithms_enabled()
            or self._torch.backends.cudnn.deterministic
        )

    def _set_deterministic(self, value: bool) -> None:
        self._torch.use_deterministic_algorithms(value, warn_only=True)
        self._torch.backends.cudnn.deterministic = value

    def _around_anomaly(self, original: Any) -> Any:
        wanted = self._applied.settings["anomaly_mode"]

        @functools.wraps(original)
        def wrapper(mode: bool, *args: Any, **kwargs: Any) -> Any:
            if bool(mode) != wanted:
                self._applied.took("anomaly_mode", before=bool(mode))
            return original(wanted, *args, **kwargs)

        if wanted:
            wrapper(wanted)
        return wrapper

    def _instead_of_emptying(self, original: Any) -> Any:
        @functools.wraps(original)
        def wrapper() -> None:
            self._applied.took("empty_cache", before=True)

        return wrapper

    def _set_gc(self, value: str) -> None:
        before = "on" if gc.isenabled() else "off"
        if self._session.writer is not None:
            # The look at the job's objects sees none that are frozen.
            self._session.writer.look()
        if value == "on":
            gc.enable()
        else:
            gc.collect()
            gc.freeze()
            if value == "off":
                gc.disable()
        self._applied.holds("gc", before=before)
